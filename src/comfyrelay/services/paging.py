"""A page of a list, as every list is given out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed(Generic[T]):
    """`next_cursor` is where the next page begins; `None` on the last one."""

    items: Sequence[T]
    next_cursor: str | None = None

    def holding(self, items: Sequence[U]) -> "Listed[U]":
        """The same page with these in place of what it holds."""
        return Listed(items=items, next_cursor=self.next_cursor)


def listed(found: Sequence[T], key: Callable[[T], object], *, limit: int) -> Listed[T]:
    """A page of what was found, of which one more than fits was asked for."""
    if len(found) <= limit:
        return Listed(items=found)
    return Listed(items=found[:limit], next_cursor=str(key(found[limit - 1])))
