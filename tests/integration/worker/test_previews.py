"""Previews of one job: which of ComfyUI's images go to storage, when, and how small."""

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
from tests.support.leases import Storage, answering, make_lease, open_storage
from tests.support.world import PATIENCE_SECONDS


def picture(side: int, form: str, *, seed: int = 0) -> bytes:
    """Noise, which no format compresses."""
    made = io.BytesIO()
    Image.frombytes("RGB", (side, side), random.Random(seed).randbytes(side * side * 3)).save(made, form)
    return made.getvalue()


SMALL = picture(32, "JPEG")


@asynccontextmanager
async def sending(*, pause_seconds: float = 0.0) -> AsyncIterator[tuple[Storage, Lease, PreviewUploader]]:
    async with open_storage() as storage:
        transfers = Transfers()
        lease = make_lease()
        made = PreviewUploader(lease, transfers, pause_seconds=pause_seconds)
        try:
            async with made.sending():
                yield storage, lease, made
        finally:
            await transfers.close()


def watch(storage: Storage, lease: Lease, *, seconds: float = 1000.0) -> None:
    headers = {"Content-Type": "image/jpeg"}
    lease.preview = PreviewTarget(url=storage.url("preview"), headers=headers, until=time.monotonic() + seconds)
    lease.watched.notify()


async def put(storage: Storage, count: int) -> None:
    """Wait until this many images have been stored and answered."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(storage.requests) < count or storage.at_once:
            storage.arrived.clear()
            await asyncio.wait({asyncio.create_task(storage.arrived.wait())}, timeout=0.01)


async def test_unwatched_run_sends_no_preview_and_keeps_the_newest() -> None:
    async with sending() as (storage, lease, made):
        for number in range(100):
            made.take(picture(8, "JPEG", seed=number))
        assert storage.requests == []
        watch(storage, lease)
        await put(storage, 1)
        assert storage.files == {"preview": picture(8, "JPEG", seed=99)}
        assert storage.requests[0].headers["Content-Type"] == "image/jpeg"


async def test_previews_are_rate_limited() -> None:
    async with sending(pause_seconds=1000.0) as (storage, lease, made):
        watch(storage, lease)
        made.take(SMALL)
        await put(storage, 1)
        for number in range(100):
            made.take(picture(8, "JPEG", seed=number))
        await asyncio.sleep(0)
        assert len(storage.requests) == 1


async def test_finished_run_sends_no_preview() -> None:
    async with open_storage() as storage:
        transfers, lease = Transfers(), make_lease()
        made = PreviewUploader(lease, transfers)
        async with made.sending():
            pass
        watch(storage, lease)
        made.take(SMALL)
        await asyncio.sleep(0)
        assert storage.requests == []
        await transfers.close()


async def test_look_that_is_over_counts_no_more() -> None:
    async with sending() as (storage, lease, made):
        watch(storage, lease, seconds=0.0)
        made.take(SMALL)
        lease.watched.notify()
        await asyncio.sleep(0)
        watch(storage, lease)
        await put(storage, 1)
        assert len(storage.requests) == 1


async def test_storage_in_trouble_costs_a_picture_and_nothing_else() -> None:
    async with sending() as (storage, lease, made):
        storage.answers += [answering(500), answering(403)]
        watch(storage, lease)
        for number in (1, 2, 3):
            made.take(picture(8, "JPEG", seed=number))
            await put(storage, number)
        assert storage.files == {"preview": picture(8, "JPEG", seed=3)}


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_large_picture_is_made_small(form: str) -> None:
    small = shrink(picture(1024, form))
    assert small is not None
    assert len(small) <= MAX_BYTES
    with Image.open(io.BytesIO(small)) as image:
        assert (image.format, image.size) == ("JPEG", (512, 512))


def test_small_jpeg_is_sent_as_it_is() -> None:
    assert shrink(SMALL) is SMALL


def test_without_pillow_only_what_is_small_enough_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(previews, "find_spec", lambda _name: None)
    assert shrink(SMALL) is SMALL
    assert shrink(picture(512, "JPEG")) is None
    assert shrink(picture(8, "PNG")) is None


def test_invalid_image_is_not_sent() -> None:
    assert shrink(b"\x89PNG and then nothing") is None
