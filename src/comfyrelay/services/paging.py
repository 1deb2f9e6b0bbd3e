"""Pages of lists, and chunks of long sequences."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed(Generic[T]):
    """`next_cursor` starts the next page; the last page has none."""

    items: Sequence[T]
    next_cursor: str | None = None

    def holding(self, items: Sequence[U]) -> "Listed[U]":
        """The same page with other items."""
        return Listed(items=items, next_cursor=self.next_cursor)


def listed(found: Sequence[T], key: Callable[[T], object], *, limit: int) -> Listed[T]:
    """Make a page of `found`, which holds `limit + 1` items if there are more."""
    if len(found) <= limit:
        return Listed(items=found)
    return Listed(items=found[:limit], next_cursor=str(key(found[limit - 1])))


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
