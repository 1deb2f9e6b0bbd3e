"""A stored object as a seekable file, of which only what is asked for is read."""

import io
import os
import time
from collections.abc import Callable

from comfyrelay.errors import ComfyRelayError, StorageUnavailable


class RangedFile(io.RawIOBase):
    """Reads ranges on demand, up to a number of bytes and until a moment of the monotonic clock.

    Media libraries hide the errors of the files they read; `failure` keeps what the store said.
    """

    def __init__(self, fetch: Callable[[int, int], bytes], *, size: int, max_bytes: int, deadline: float) -> None:
        self._fetch = fetch
        self._size = size
        self._left = max_bytes
        self._deadline = deadline
        self._position = 0
        self.failure: ComfyRelayError | None = None

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def seekable(self) -> bool:
        """Whether the position can be set."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position; it may be past the end."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError("This is before the first byte.")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # all that BufferedReader gives
        """Fill the buffer from the position on, less at the end."""
        wanted = min(len(buffer), self._size - self._position)
        if wanted <= 0:
            return 0
        self._left -= wanted
        if self._left < 0:
            raise OSError("This reads more than is allowed.")
        data = self._read(wanted)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _read(self, length: int) -> bytes:
        try:
            if time.monotonic() >= self._deadline:
                raise StorageUnavailable("The object could not be read in time.")
            return self._fetch(self._position, length)
        except ComfyRelayError as error:
            self.failure = error
            raise
