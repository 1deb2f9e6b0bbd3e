"""Upload the newest preview of a running job while a user watches. Failures never affect the job."""

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

MAX_BYTES = 64 * 1024
# Minimum pause between two previews of one job.
PAUSE_SECONDS = 1.0
# A slower upload is dropped, because a newer preview exists by then.
PUT_SECONDS = 5.0
LONGEST_SIDE = 512
QUALITIES = (80, 60, 35)
# ComfyUI's previews have a few hundred pixels per side. An image that claims far more is not decoded.
MAX_PIXELS = 64 * 1024**2
_JPEG = b"\xff\xd8\xff"


class PreviewUploader:
    def __init__(self, lease: Lease, transfers: Transfers, *, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._lease = lease
        self._transfers = transfers
        self._pause_seconds = pause_seconds
        # The newest image, until it is sent.
        self._newest: bytes | None = None

    def take(self, image: bytes) -> None:
        """Replace the newest image."""
        self._newest = image
        if self._lease.preview_seconds:
            self._lease.watched.notify()

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Send previews while the block runs."""
        task = asyncio.create_task(self._send())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            self._newest = None

    async def _send(self) -> None:
        while True:
            await self._lease.watched.wait()
            target, image = self._lease.preview, self._newest
            if image is None or target is None or not target.seconds_left:
                continue
            self._newest = None
            try:
                if (small := await asyncio.to_thread(shrink, image)) is not None:
                    await self._transfers.put(small, target.url, target.headers, seconds=PUT_SECONDS)
            except TransferFailed as error:
                log.debug("worker.preview_failed", dispatch_id=self._lease.dispatch_id, why=error.detail)
            except Exception:
                log.warning("worker.preview_crashed", dispatch_id=self._lease.dispatch_id, exc_info=True)
            await asyncio.sleep(self._pause_seconds)


def shrink(image: bytes) -> bytes | None:
    """Return a small JPEG, or `None` if the image is too large or Pillow is not installed."""
    if len(image) <= MAX_BYTES and image.startswith(_JPEG):
        return image
    if find_spec("PIL") is None:
        return None
    # Pillow is an extra, which may not be installed on GPU hosts.
    from PIL import Image, UnidentifiedImageError  # noqa: PLC0415

    try:
        with Image.open(BytesIO(image), formats=("JPEG", "PNG", "WEBP")) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                return None
            opened.draft("RGB", (LONGEST_SIDE, LONGEST_SIDE))
            picture = opened.convert("RGB")
    except (UnidentifiedImageError, OSError, ValueError):
        return None
    picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    for quality in QUALITIES:
        file = BytesIO()
        picture.save(file, "JPEG", quality=quality)
        if file.tell() <= MAX_BYTES:
            return file.getvalue()
    return None
