"""Parts of a file, as a `Range` header names them (RFC 9110)."""

import re

# 18 digits name every byte of every file, and their conversion takes no time
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


class Unsatisfiable(Exception):
    """The file has no such part."""


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """The start and the length of the part that is asked for; `None` for the whole file.

    A header that makes no sense is ignored, as the standard wants it, and so is one that asks for several parts.
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
