"""Is a stored object the media it is said to be?"""

import asyncio
import io
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from comfyrelay.errors import InvalidInput, StorageUnavailable
from comfyrelay.extras import require
from comfyrelay.storage.media_info import MediaInfo, MediaKind, Unreadable
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.storage.paths import no_object
from comfyrelay.storage.ranged import RangedFile

__all__ = ["MediaInfo", "MediaKind", "ProbeLimits", "media_kind", "probe"]

# One read of this size finds the header of nearly every file.
BLOCK_BYTES = 1024 * 1024

# Threads of its own: a probe waits for reads, which need the common threads that many probes would hold.
_THREADS = ThreadPoolExecutor(4, thread_name_prefix="comfyrelay-probe")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeLimits:
    """What one probe may cost. Images are read whole, so none may be larger than half of `max_bytes`."""

    max_bytes: int = 512 * 1024 * 1024
    # where Pillow, too, refuses a decompression bomb
    max_pixels: int = 178_956_970
    timeout_seconds: float = 60


def media_kind(mime_type: str) -> MediaKind:
    """Return what objects of this type are."""
    kind, _, subtype = mime_type.lower().partition("/")
    # a drawing in SVG is text, which no decoder can check
    if kind == "image" and not subtype.startswith("svg"):
        return "image"
    if kind == "audio":
        return "audio"
    return "video" if kind == "video" else "file"


async def probe(
    store: ObjectStore, path: str, *, mime_type: str, subject: str = "output", limits: ProbeLimits | None = None
) -> MediaInfo:
    """Return what the object is, or raise `InvalidInput` when it is not readable media of this type."""
    limits = limits or ProbeLimits()
    stat = await store.stat(path)
    if stat is None:
        raise no_object(path)
    if stat.size == 0:
        raise InvalidInput(f"The {subject} is empty.")
    kind = media_kind(mime_type)
    if kind == "file":
        return MediaInfo(kind=kind)
    require("media")
    file = _open(store, path, stat.size, limits)
    work = asyncio.get_running_loop().run_in_executor(_THREADS, _read, file, kind, limits)
    try:
        return await asyncio.wait_for(work, limits.timeout_seconds)
    except TimeoutError:
        raise StorageUnavailable(f"The {subject} could not be checked in time.") from None
    except Unreadable:
        what = "readable audio" if kind == "audio" else f"a readable {kind}"
        raise InvalidInput(f"The {subject} is not {what}.") from None


def _open(store: ObjectStore, path: str, size: int, limits: ProbeLimits) -> RangedFile:
    loop = asyncio.get_running_loop()
    deadline = time.monotonic() + limits.timeout_seconds

    def fetch(start: int, length: int) -> bytes:
        future = asyncio.run_coroutine_threadsafe(_range(store, path, start, length), loop)
        try:
            return future.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            future.cancel()
            raise StorageUnavailable("The object could not be read in time.") from None

    return RangedFile(fetch, size=size, max_bytes=limits.max_bytes, deadline=deadline)


async def _range(store: ObjectStore, path: str, start: int, length: int) -> bytes:
    return b"".join([piece async for piece in store.stream(path, start=start, length=length)])


def _read(file: RangedFile, kind: Literal["audio", "image", "video"], limits: ProbeLimits) -> MediaInfo:
    # they bring Pillow and FFmpeg, which are an extra, and a process starts sooner without them
    from comfyrelay.storage.containers import read_container  # noqa: PLC0415
    from comfyrelay.storage.images import read_image  # noqa: PLC0415

    try:
        with io.BufferedReader(file, BLOCK_BYTES) as buffered:
            if kind == "image":
                return read_image(buffered, max_pixels=limits.max_pixels)
            return read_container(
                buffered, kind=kind, max_pixels=limits.max_pixels, timeout_seconds=limits.timeout_seconds
            )
    except Exception as error:
        # both libraries raise nearly anything for a broken file, but a store that is down is not the file's fault
        if file.failure is not None:
            raise file.failure from None
        raise Unreadable from error
