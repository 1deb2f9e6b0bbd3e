"""Previews of one job: while somebody watches, the newest picture that ComfyUI has sent of it is put where the control
plane says. Nothing of this may hold up the job, or fail it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from io import BytesIO

import structlog

from comfyrelay.errors import TransferFailed
from comfyrelay.worker.files.transfers import Transfers
from comfyrelay.worker.lease import Lease

log = structlog.get_logger(__name__)

MOST_BYTES = 64 * 1024
# Between two of one job.
PAUSE_SECONDS = 1.0
# A picture that takes longer is of no use: there is a newer one by then.
PUT_SECONDS = 5.0
LONGEST_SIDE = 512
QUALITIES = (80, 60, 35)
# What ComfyUI sends is a picture of a few hundred pixels; what claims to be far more is not opened.
MOST_PIXELS = 64 * 1024**2
_JPEG = b"\xff\xd8\xff"


class PreviewUploader:
    def __init__(self, lease: Lease, transfers: Transfers, *, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._lease = lease
        self._transfers = transfers
        self._pause_seconds = pause_seconds
        # as it came, until somebody watches
        self._newest: bytes | None = None
        self._news = lease.watched

    def take(self, image: bytes) -> None:
        """A picture that ComfyUI has sent, as often as it likes: all but the newest are dropped."""
        self._newest = image
        if self._lease.preview_seconds:
            self._news.notify()

    @asynccontextmanager
    async def being_sent(self) -> AsyncIterator[None]:
        """While the job runs, send what is wanted; after it nothing is sent any more."""
        sending = asyncio.create_task(self._send())
        try:
            yield
        finally:
            sending.cancel()
            await asyncio.wait({sending})
            self._newest = None

    async def _send(self) -> None:
        while True:
            await self._news.wait()
            target, image = self._lease.preview, self._newest
            if image is None or target is None or not target.seconds_left:
                continue
            self._newest = None
            try:
                if (small := await asyncio.to_thread(shrunk, image)) is not None:
                    await self._transfers.put(small, target.url, target.headers, seconds=PUT_SECONDS)
            except TransferFailed as error:
                log.debug("worker.preview_failed", dispatch_id=self._lease.dispatch_id, why=error.detail)
            except Exception:
                log.warning("worker.preview_broke", dispatch_id=self._lease.dispatch_id, exc_info=True)
            await asyncio.sleep(self._pause_seconds)


def shrunk(image: bytes) -> bytes | None:
    """A JPEG that is small enough; `None` where none can be made of it, as without Pillow of one that is too large."""
    if len(image) <= MOST_BYTES and image.startswith(_JPEG):
        return image
    if find_spec("PIL") is None:
        return None
    # it comes with an extra: a GPU host has ComfyUI's own, or goes without
    from PIL import Image, UnidentifiedImageError  # noqa: PLC0415

    try:
        with Image.open(BytesIO(image), formats=("JPEG", "PNG", "WEBP")) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                return None
            opened.draft("RGB", (LONGEST_SIDE, LONGEST_SIDE))
            picture = opened.convert("RGB")
    except (UnidentifiedImageError, OSError, ValueError):
        return None
    picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    for quality in QUALITIES:
        file = BytesIO()
        picture.save(file, "JPEG", quality=quality)
        if file.tell() <= MOST_BYTES:
            return file.getvalue()
    return None
