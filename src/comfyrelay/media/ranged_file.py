"""A remote file as a seekable file object that reads ranges on demand."""

import io
import os
from collections.abc import Callable


class RangedFile(io.RawIOBase):
    """Reads ranges on demand."""

    def __init__(self, fetch: Callable[[int, int], bytes], *, size: int) -> None:
        self._fetch = fetch
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position, possibly past the end."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError("This is before the first byte.")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # all that BufferedReader gives
        """Fill the buffer, or less at the end."""
        wanted = min(len(buffer), self._size - self._position)
        if wanted <= 0:
            return 0
        data = self._fetch(self._position, wanted)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
