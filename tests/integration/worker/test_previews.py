"""A worker uploads some of ComfyUI's preview images of a job, at a limited rate and size."""

import asyncio
import io
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from PIL import Image

from comfyrelay.worker.files.transfers import Transfers
from comfyrelay.worker.jobs import previews
from comfyrelay.worker.jobs.previews import MAX_BYTES, PreviewUploader, shrink
from comfyrelay.worker.lease import Lease, PreviewTarget
from tests.support.leases import Storage, answer_with, make_lease, open_storage
from tests.support.world import PATIENCE_SECONDS


def make_image(side: int, form: str, *, seed: int = 0) -> bytes:
    """Return an image of noise, which no format can compress."""
    file = io.BytesIO()
    Image.frombytes("RGB", (side, side), random.Random(seed).randbytes(side * side * 3)).save(file, form)
    return file.getvalue()


SMALL = make_image(32, "JPEG")


@asynccontextmanager
async def sending(*, pause_seconds: float = 0.0) -> AsyncIterator[tuple[Storage, Lease, PreviewUploader]]:
    async with open_storage() as storage:
        transfers = Transfers()
        lease = make_lease()
        uploader = PreviewUploader(lease, transfers, pause_seconds=pause_seconds)
        try:
            async with uploader.sending():
                yield storage, lease, uploader
        finally:
            await transfers.close()


def watch(storage: Storage, lease: Lease, *, seconds: float = 1000.0) -> None:
    headers = {"Content-Type": "image/jpeg"}
    lease.preview = PreviewTarget(url=storage.url("preview"), headers=headers, until=time.monotonic() + seconds)
    lease.watched.notify()


async def wait_for_uploads(storage: Storage, count: int) -> None:
    """Wait until this many images have been stored and the uploads answered."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(storage.requests) < count or storage.at_once:
            storage.arrived.clear()
            await asyncio.wait({asyncio.create_task(storage.arrived.wait())}, timeout=0.01)


async def test_unwatched_run_sends_no_preview_and_keeps_the_newest() -> None:
    async with sending() as (storage, lease, uploader):
        for number in range(100):
            uploader.take(make_image(8, "JPEG", seed=number))
        assert storage.requests == []
        watch(storage, lease)
        await wait_for_uploads(storage, 1)
        assert storage.files == {"preview": make_image(8, "JPEG", seed=99)}
        assert storage.requests[0].headers["Content-Type"] == "image/jpeg"


async def test_previews_are_rate_limited() -> None:
    async with sending(pause_seconds=1000.0) as (storage, lease, uploader):
        watch(storage, lease)
        uploader.take(SMALL)
        await wait_for_uploads(storage, 1)
        for number in range(100):
            uploader.take(make_image(8, "JPEG", seed=number))
        await asyncio.sleep(0)
        assert len(storage.requests) == 1


async def test_finished_run_sends_no_preview() -> None:
    async with open_storage() as storage:
        transfers, lease = Transfers(), make_lease()
        uploader = PreviewUploader(lease, transfers)
        async with uploader.sending():
            pass
        watch(storage, lease)
        uploader.take(SMALL)
        await asyncio.sleep(0)
        assert storage.requests == []
        await transfers.close()


async def test_expired_viewer_gets_no_preview() -> None:
    async with sending() as (storage, lease, uploader):
        watch(storage, lease, seconds=0.0)
        uploader.take(SMALL)
        lease.watched.notify()
        await asyncio.sleep(0)
        watch(storage, lease)
        await wait_for_uploads(storage, 1)
        assert len(storage.requests) == 1


async def test_failed_upload_skips_only_its_image() -> None:
    async with sending() as (storage, lease, uploader):
        storage.answers += [answer_with(500), answer_with(403)]
        watch(storage, lease)
        for number in (1, 2, 3):
            uploader.take(make_image(8, "JPEG", seed=number))
            await wait_for_uploads(storage, number)
        assert storage.files == {"preview": make_image(8, "JPEG", seed=3)}


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_large_image_is_shrunk(form: str) -> None:
    small = shrink(make_image(1024, form))
    assert small is not None
    assert len(small) <= MAX_BYTES
    with Image.open(io.BytesIO(small)) as image:
        assert (image.format, image.size) == ("JPEG", (512, 512))


def test_small_jpeg_is_sent_unchanged() -> None:
    assert shrink(SMALL) is SMALL


def test_large_images_are_not_sent_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(previews, "find_spec", lambda _name: None)
    assert shrink(SMALL) is SMALL
    assert shrink(make_image(512, "JPEG")) is None
    assert shrink(make_image(8, "PNG")) is None


def test_invalid_image_is_not_sent() -> None:
    assert shrink(b"\x89PNG and then nothing") is None
