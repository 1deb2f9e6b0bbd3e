"""Check that a stored object has the media type that it claims to have."""

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from comfyrelay.errors import InvalidInput, StorageUnavailable
from comfyrelay.extras import require
from comfyrelay.media import probe_process
from comfyrelay.media.image_headers import read_image_header
from comfyrelay.media.info import (
    ImageEdit,
    MediaInfo,
    MediaRefused,
    ProbeLimits,
    RefusalReason,
    Renditions,
    check_frames,
    check_pixels,
)
from comfyrelay.media_types import MediaKind, media_kind
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.storage.paths import no_object

__all__ = ["ImageEdit", "MediaInfo", "ProbeLimits", "Probes", "Renditions"]

# The first read contains the header of nearly every file.
HEAD_BYTES = 1024 * 1024
# The settings of the limits.
_SETTINGS: Mapping[RefusalReason, str] = {
    "pixels": "COMFYRELAY_PROBE_MAX_PIXELS",
    "frames": "COMFYRELAY_PROBE_MAX_FRAMES",
    "memory": "COMFYRELAY_PROBE_MEMORY_BYTES",
    "time": "COMFYRELAY_PROBE_TIMEOUT_SECONDS",
}
LATE = "Storage did not return the object in time. Try again."


class Probes:
    """Probes media in a limited number of processes; further calls wait."""

    def __init__(self, limits: ProbeLimits | None = None, *, processes: int = 2) -> None:
        self._limits = limits or ProbeLimits()
        # Probes wait for reads, which run in the default executor, so they must not occupy that executor.
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
        allow_unread: bool = False,
        is_whole: bool = False,
    ) -> MediaInfo:
        """Return the properties of an object, or raise `InvalidInput` if it is not readable media of this type.

        The object's size and its first `HEAD_BYTES` are read unless given. With `allow_unread`, a file that exceeds a
        limit is not refused. With `is_whole`, the duration and the frames of a video or sound are measured, instead of
        those that its header claims. Errors of an output are for operators, and name the setting of the limit.
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
            reader = _RangeReader(store, path, size=size, head=head, limits=self._limits)
            return await self._probe(kind, reader, is_whole=is_whole)
        except MediaRefused as error:
            why = self._explain(error, kind, names_setting=subject == "output")
            if allow_unread and error.why != "unreadable":
                width, height = error.size or (None, None)
                return MediaInfo(kind=kind, width=width, height=height, unread=why)
            raise InvalidInput(f"The {subject} {why}.") from None

    async def draw(
        self, store: ObjectStore, path: str, *, mime_type: str, size: int, head: bytes = b""
    ) -> Renditions | None:
        """Draw the poster and the preview of a probed image or video. Returns `None` for other kinds of media."""
        kind = media_kind(mime_type)
        if kind not in ("image", "video"):
            return None
        require("media")
        reader = _RangeReader(store, path, size=size, head=head, limits=self._limits)
        await reader.read_head()
        work = partial(probe_process.draw, kind, size=size, limits=self._limits, read=reader.read)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except MediaRefused as error:
            why = self._explain(error, kind, names_setting=True)
            raise InvalidInput(f"No poster was made: the file {why}.") from None

    async def edit(self, store: ObjectStore, path: str, edit: ImageEdit, *, mask: bytes = b"") -> bytes:
        """Change the channels or the format of an image. The result comes from an untrusted process. Raises
        `InvalidInput` if the object or the mask is not an image or exceeds a limit."""
        if (stat := await store.stat(path)) is None:
            raise no_object(path)
        require("media")
        reader = _RangeReader(store, path, size=stat.size, head=b"", limits=self._limits)

        def read(start: int, length: int) -> bytes:
            of_file = max(0, min(length, stat.size - start))
            found = reader.read(start, of_file) if of_file else b""
            # A slice copies its bytes.
            of_mask = max(0, start - stat.size)
            return found + mask[of_mask : of_mask + length - of_file]

        whole = replace(edit, mask_bytes=len(mask))
        size = stat.size + len(mask)
        work = partial(probe_process.edit, whole, size=size, limits=self._limits, read=read)
        try:
            await reader.read_head()
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except MediaRefused as error:
            raise InvalidInput(f"The file {self._explain(error, 'image')}.") from None

    async def read_workflow(self, store: ObjectStore, path: str) -> bytes | None:
        """Return the workflow that ComfyUI embedded in an object, as unchecked JSON; `None` if there is none. Raises
        `InvalidInput` if reading it would exceed a limit."""
        if (stat := await store.stat(path)) is None:
            raise no_object(path)
        require("media")
        reader = _RangeReader(store, path, size=stat.size, head=b"", limits=self._limits)
        work = partial(probe_process.read_workflow, size=stat.size, limits=self._limits, read=reader.read)
        try:
            await reader.read_head()
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except MediaRefused as error:
            if error.why == "unreadable":
                return None
            raise InvalidInput(f"The file {self._explain(error, 'file')}.") from None

    async def _probe(self, kind: MediaKind, reader: "_RangeReader", *, is_whole: bool) -> MediaInfo:
        head = await reader.read_head()
        if kind == "image" and (header := read_image_header(head)) is not None:
            check_pixels(header.width, header.height, self._limits)
            check_frames(header.frames or 1, self._limits)
        work = partial(
            probe_process.probe, kind, size=reader.size, limits=self._limits, read=reader.read, is_whole=is_whole
        )
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _explain(self, error: MediaRefused, kind: MediaKind, *, names_setting: bool = False) -> str:
        limits, (width, height) = self._limits, error.size or (0, 0)
        explanations: dict[RefusalReason, str] = {
            "pixels": too_many_pixels(width, height, limits.max_pixels),
            "frames": f"is too long: an image may have {limits.max_frames:,} frames at most",
            "blocks": "is made of too many small blocks to be read: save it again with another program",
            "memory": f"needs more than {limits.max_memory_bytes // 1024**2:,} MiB of memory to be read",
            "time": f"takes longer than {limits.timeout_seconds:g} s to be read",
            "bytes": f"is too large to be read: more than {limits.max_bytes:,} bytes would be needed",
            "tracks": "has several video tracks: save it with one of them",
            "workflow": (
                f"contains a workflow that is too large: at most {limits.max_workflow_bytes:,} bytes and "
                f"{limits.max_workflow_values:,} values are allowed"
            ),
            "unreadable": "is not readable audio" if kind == "audio" else f"is not a readable {kind}",
        }
        setting = _SETTINGS.get(error.why) if names_setting else None
        return explanations[error.why] + (f" ({setting})" if setting is not None else "")


def too_many_pixels(width: int, height: int, max_pixels: int) -> str:
    return f"is too large: it has {width} × {height} pixels, and at most {max_pixels:,} are allowed"


class _RangeReader:
    """Reads ranges of an object for a probe process, within limits on size and time."""

    def __init__(self, store: ObjectStore, path: str, *, size: int, head: bytes, limits: ProbeLimits) -> None:
        self._store = store
        self._path = path
        self.size = size
        self._bytes_left = limits.max_bytes
        self._seconds_left = limits.timeout_seconds
        self._loop = asyncio.get_running_loop()
        self._head = head

    async def read_head(self) -> bytes:
        """Read the first bytes and cache them for `read`."""
        length = self._take(min(self.size, HEAD_BYTES))
        if len(self._head) >= length:
            return self._head
        try:
            self._head = await asyncio.wait_for(self._range(0, length), self._seconds_left)
        except TimeoutError:
            raise StorageUnavailable(LATE) from None
        return self._head

    def read(self, start: int, length: int) -> bytes:
        """Read a range. Call it in a thread."""
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
