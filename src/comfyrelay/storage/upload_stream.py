"""Limit the size of an incoming upload."""

from functools import partial

from comfyrelay.errors import InvalidInput
from comfyrelay.storage.folder import disk
from comfyrelay.storage.threads import in_thread
from comfyrelay.storage.writer import ObjectWriter


class Receiver:
    """Receives the chunks of one object."""

    def __init__(self, writer: ObjectWriter, *, path: str, size: int | None, max_size: int | None) -> None:
        self._writer = writer
        self._path = path
        self._size = size
        self._limit = min((each for each in (size, max_size) if each is not None), default=None)
        self.received = 0

    async def write(self, piece: bytes) -> None:
        self.received += len(piece)
        if self._limit is not None and self.received > self._limit:
            raise InvalidInput(f"The upload is too large: at most {self._limit} bytes are allowed.")
        with disk(self._path):
            await in_thread(partial(self._writer.write, piece))

    def check_complete(self) -> None:
        """Raise an error if the upload is shorter than announced."""
        if self._size is not None and self.received != self._size:
            raise InvalidInput(f"The upload ended after {self.received} of {self._size} bytes.")
