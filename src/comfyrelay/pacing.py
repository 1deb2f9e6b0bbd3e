"""Let other callers run during long loops on the event loop: a batch has thousands of items."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from typing import TypeVar

# The loop does other work after this many items, which take a few milliseconds.
ITEMS_AT_ONCE = 200

T = TypeVar("T")


async def paced(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield all items, with a pause for other callers after every few."""
    async for chunk in paced_chunks(iter(items)):
        for item in chunk:
            yield item


async def paced_chunks(items: Iterator[T]) -> AsyncIterator[list[T]]:
    """Yield lists of a few items, with a pause for other callers between them."""
    while chunk := list(islice(items, ITEMS_AT_ONCE)):
        yield chunk
        if len(chunk) < ITEMS_AT_ONCE:
            return
        await asyncio.sleep(0)
