"""Paginated responses."""

from collections.abc import Callable
from typing import TypeVar

from comfyrelay.protocol.base import Answer, Page
from comfyrelay.services.paging import ResultPage

T = TypeVar("T")
U = TypeVar("U")


def plain_page(listed: ResultPage[T]) -> Answer[Page[T]]:
    """Return a page whose items are response models already."""
    return Answer(data=Page(items=list(listed.items), next_cursor=listed.next_cursor))


def page_of(listed: ResultPage[T], body: Callable[[T], U]) -> Answer[Page[U]]:
    """Return a page with the response model of each item."""
    return Answer(data=Page(items=[body(item) for item in listed.items], next_cursor=listed.next_cursor))
