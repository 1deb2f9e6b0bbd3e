"""Check that a stored object is the media type it claims to be."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from comfyrelay.errors import InvalidInput, StorageUnavailable
from comfyrelay.extras import require
from comfyrelay.media import probe_process
from comfyrelay.media.image_headers import claim_of
from comfyrelay.media.info import Drawn, MediaInfo, MediaRefused, ProbeLimits, Why, check_frames, check_pixels
from comfyrelay.media_types import MediaKind, media_kind
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.storage.paths import no_object

__all__ = ["Drawn", "MediaInfo", "ProbeLimits", "Probes"]

# First read: it contains the header of nearly every file.
HEAD_BYTES = 1024 * 1024
LATE = "The object could not be read in time."


class Probes:
    """Probes media in a limited number of processes; further calls wait."""

    def __init__(self, limits: ProbeLimits | None = None, *, processes: int = 2) -> None:
        self._limits = limits or ProbeLimits()
        # Its own threads: probes wait for reads, which need the common threads.
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="comfyrelay-probe")

    async def probe(
        self,
        store: ObjectStore,
        path: str,
        *,
        mime_type: str,
        subject: str = "output",
        size: int | None = None,
        head: bytes = b"",
    ) -> MediaInfo:
        """Return what the object is, or raise `InvalidInput` if it is not readable media of this type.

        Its size and its first `HEAD_BYTES` are read unless given.
        """
        if size is None:
            if (stat := await store.stat(path)) is None:
                raise no_object(path)
            size = stat.size
        if size == 0:
            raise InvalidInput(f"The {subject} is empty.")
        kind = media_kind(mime_type)
        if kind == "file":
            return MediaInfo(kind=kind)
        require("media")
        try:
            return await self._probe(kind, _Reading(store, path, size=size, head=head, limits=self._limits))
        except MediaRefused as error:
            raise InvalidInput(f"The {subject} {self._words(error, kind)}.") from None

    async def draw(
        self, store: ObjectStore, path: str, *, mime_type: str, size: int, head: bytes = b""
    ) -> Drawn | None:
        """Make poster and preview of an object that was probed, if possible."""
        kind = media_kind(mime_type)
        if kind not in ("image", "video"):
            return None
        require("media")
        reading = _Reading(store, path, size=size, head=head, limits=self._limits)
        await reading.begin()
        work = partial(probe_process.draw, kind, size=size, limits=self._limits, read=reading.read)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except MediaRefused as error:
            raise InvalidInput(f"No poster was made: the file {self._words(error, kind)}.") from None

    async def _probe(self, kind: MediaKind, reading: "_Reading") -> MediaInfo:
        head = await reading.begin()
        if kind == "image" and (claim := claim_of(head)) is not None:
            check_pixels(claim.width, claim.height, self._limits)
            check_frames(claim.frames, self._limits)
        work = partial(probe_process.probe, kind, size=reading.size, limits=self._limits, read=reading.read)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _words(self, error: MediaRefused, kind: MediaKind) -> str:
        limits, (width, height) = self._limits, error.size or (0, 0)
        words: dict[Why, str] = {
            "pixels": f"is too large: it has {width} × {height} pixels, and at most {limits.max_pixels:,} are allowed",
            "frames": f"is too long: an image may have {limits.max_frames:,} frames at most",
            "blocks": "is made of too many small blocks to be read: save it again with another program",
            "memory": f"needs more than {limits.max_memory_bytes // 1024**2:,} MiB of memory to be read",
            "time": f"takes longer than {limits.timeout_seconds:g} s to be read",
            "bytes": f"is too large to be read: more than {limits.max_bytes:,} bytes would be needed",
            "unreadable": "is not readable audio" if kind == "audio" else f"is not a readable {kind}",
        }
        return words[error.why]


class _Reading:
    """Reads ranges of an object for a probe process, within limits of size and time."""

    def __init__(self, store: ObjectStore, path: str, *, size: int, head: bytes, limits: ProbeLimits) -> None:
        self._store = store
        self._path = path
        self.size = size
        self._bytes_left = limits.max_bytes
        self._seconds_left = limits.timeout_seconds
        self._loop = asyncio.get_running_loop()
        self._head = head

    async def begin(self) -> bytes:
        """Read and keep the first bytes."""
        length = self._take(min(self.size, HEAD_BYTES))
        if len(self._head) >= length:
            return self._head
        try:
            self._head = await asyncio.wait_for(self._range(0, length), self._seconds_left)
        except TimeoutError:
            raise StorageUnavailable(LATE) from None
        return self._head

    def read(self, start: int, length: int) -> bytes:
        """Read a range, called from a thread."""
        if start + length <= len(self._head):
            return self._head[start : start + length]
        begun = time.monotonic()
        future = asyncio.run_coroutine_threadsafe(self._range(start, self._take(length)), self._loop)
        try:
            return future.result(max(0.0, self._seconds_left))
        except TimeoutError:
            future.cancel()
            raise StorageUnavailable(LATE) from None
        finally:
            self._seconds_left -= time.monotonic() - begun

    def _take(self, length: int) -> int:
        self._bytes_left -= length
        if self._bytes_left < 0:
            raise MediaRefused("bytes")
        return length

    async def _range(self, start: int, length: int) -> bytes:
        return b"".join([piece async for piece in self._store.stream(self._path, start=start, length=length)])
