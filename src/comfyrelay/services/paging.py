"""Pages of lists, and chunks of long sequences."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultPage(Generic[T]):
    """`next_cursor` is where the next page starts. The last page has none."""

    items: Sequence[T]
    next_cursor: str | None = None

    def with_items(self, items: Sequence[U]) -> "ResultPage[U]":
        """Return a page with the same cursor but other items."""
        return ResultPage(items=items, next_cursor=self.next_cursor)


def make_page(found: Sequence[T], *, limit: int, key: Callable[[T], object] = attrgetter("id")) -> ResultPage[T]:
    """Return a page of up to `limit` items. An additional item in `found` means that there is another page."""
    return cut_page(found[:limit], has_more=len(found) > limit, key=key)


def cut_page(items: Sequence[T], *, has_more: bool, key: Callable[[T], object] = attrgetter("id")) -> ResultPage[T]:
    """Return a page of items that the store has already limited."""
    return ResultPage(items=items, next_cursor=str(key(items[-1])) if has_more and items else None)


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
