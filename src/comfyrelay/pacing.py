"""Let other tasks run during long loops on the event loop: a batch has thousands of items."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from typing import TypeVar

# Other tasks run after this many items, which take a few milliseconds.
ITEMS_AT_ONCE = 200

T = TypeVar("T")


async def paced(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield all items. Other tasks run after every few items."""
    async for chunk in paced_chunks(iter(items)):
        for item in chunk:
            yield item


async def paced_chunks(items: Iterator[T]) -> AsyncIterator[list[T]]:
    """Yield lists of a few items. Other tasks run between the lists."""
    while chunk := list(islice(items, ITEMS_AT_ONCE)):
        yield chunk
        if len(chunk) < ITEMS_AT_ONCE:
            return
        await asyncio.sleep(0)
