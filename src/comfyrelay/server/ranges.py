"""Send a file, or a byte range of it from the `Range` header (RFC 9110)."""

import re
from collections.abc import AsyncIterator

# 18 digits are enough for every file, and cheap to convert.
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


class Unsatisfiable(Exception):
    """The range is outside the file."""


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the start and length of the requested range; `None` for the whole file.

    Invalid headers are ignored, as the standard requires, and so are headers with several ranges.
    """
    found = _RANGE.fullmatch(header.replace(" ", "")) if header else None
    if found is None or found[0] == "bytes=-":
        return None
    first, last = found[1], found[2]
    if not first:
        length = min(int(last), size)
        if length == 0:
            raise Unsatisfiable
        return size - length, length
    start, end = int(first), int(last) if last else size - 1
    if last and end < start:
        return None
    if start >= size:
        raise Unsatisfiable
    return start, min(end, size - 1) - start + 1


async def started(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Read the first chunk before the response starts: a file that was just deleted is a 404, not a broken response."""
    first = await anext(chunks, b"")

    async def with_first() -> AsyncIterator[bytes]:
        yield first
        async for chunk in chunks:
            yield chunk

    return with_first()
