"""Effect assets are downloaded once for all jobs; user files are downloaded only for their job."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from comfyrelay.comfyui.client.uploads import Attachment
from comfyrelay.errors import Fault, TransferFailed
from comfyrelay.worker.files.assets import AssetCache
from comfyrelay.worker.files.inputs import MAX_DOWNLOADS, Inputs, asset_folder
from comfyrelay.worker.files.transfers import Transfers
from comfyrelay.worker.lease import Lease
from tests.support.leases import Storage, answer_with, make_asset, make_lease, no_refresh, open_storage
from tests.support.world import PATIENCE_SECONDS

LUT = b"an asset of the effect"
PHOTO = b"a photo of the user"


@dataclass(kw_only=True)
class Bench:
    storage: Storage
    inputs: Inputs
    cache: AssetCache
    work: Path

    def lease(self, number: int = 1) -> Lease:
        """Return a lease whose job has a user's photo and an asset of its effect."""
        assets = (make_asset("photo.jpg", is_primary_input=True), make_asset("lut.png", content=LUT))
        urls = self.storage.urls("photo.jpg", "lut.png")
        return make_lease(number, assets=assets, urls=urls, input_name="Grandma's 80th.JPEG")

    @property
    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.work)) for path in self.work.rglob("*") if path.is_file())


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    transfers = Transfers(retries=1, first_pause_seconds=0.01)
    cache = AssetCache(tmp_path / "assets", max_bytes=1000)
    async with open_storage() as storage:
        storage.files = {"photo.jpg": PHOTO, "lut.png": LUT}
        inputs = Inputs(transfers, cache, folder=tmp_path / "work", asset_folder="assets")
        yield Bench(storage=storage, inputs=inputs, cache=cache, work=tmp_path / "work")
    await transfers.close()


async def never(_request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def test_inputs_are_fetched_and_assigned_to_their_folders(bench: Bench) -> None:
    lease = bench.lease()
    photo, lut = await bench.inputs.fetch(lease, refresh=no_refresh)
    assert isinstance(photo.source, Path)
    assert isinstance(lut.source, Path)
    assert (photo.source.read_bytes(), lut.source.read_bytes()) == (PHOTO, LUT)
    assert (photo.placeholder, photo.folder, photo.shared) == ("__photo.jpg__", f"job-{lease.name}", False)
    assert (lut.placeholder, lut.folder, lut.shared) == ("__lut.png__", "assets", True)
    assert (photo.content_hash, lut.content_hash) == (None, hashlib.sha256(LUT).hexdigest())
    for attachment in (photo, lut):
        attachment.check()


async def test_only_the_suffix_of_a_user_file_name_is_kept(bench: Bench) -> None:
    photo, _ = await bench.inputs.fetch(bench.lease(), refresh=no_refresh)
    assert photo.name == "0.jpeg"
    assert "Grandma" not in f"{photo}{bench.files}"


async def test_assets_are_cached_and_user_files_are_removed(bench: Bench) -> None:
    for number in (1, 2):
        lease = bench.lease(number)
        await bench.inputs.fetch(lease, refresh=no_refresh)
        bench.inputs.clean(lease)
        # cleaning twice is harmless
        bench.inputs.clean(lease)
        assert bench.files == []
    assert [request.path for request in bench.storage.requests].count("/lut.png") == 1
    assert [request.path for request in bench.storage.requests].count("/photo.jpg") == 2


async def test_cleanup_keeps_unrelated_files(bench: Bench) -> None:
    first, second = bench.lease(1), bench.lease(2)
    for lease in (first, second):
        await bench.inputs.fetch(lease, refresh=no_refresh)
    (bench.work / first.name / "output.png").write_bytes(b"made")
    bench.inputs.clean(first)
    assert bench.files == [f"{first.name}/output.png", f"{second.name}/inputs/0.jpeg"]


async def test_asset_is_kept_while_a_job_needs_it(bench: Bench, tmp_path: Path) -> None:
    cache = AssetCache(tmp_path / "small", max_bytes=0)
    transfers = Transfers(retries=0)
    inputs = Inputs(transfers, cache, folder=tmp_path / "work", asset_folder="assets")
    first, second = bench.lease(1), bench.lease(2)
    _, lut = await inputs.fetch(first, refresh=no_refresh)
    await inputs.fetch(second, refresh=no_refresh)
    inputs.clean(first)
    assert isinstance(lut.source, Path)
    assert lut.source.is_file()
    inputs.clean(second)
    assert not lut.source.exists()
    await transfers.close()


@pytest.mark.parametrize(
    ("name", "url", "kind", "suffix"),
    [
        ("a.JPG", "x.png", "image", ".jpg"),
        (None, "folder/x.webp", "image", ".webp"),
        ("no suffix", "x%2Epng", "image", ".png"),
        ("a.tar/../x", "none", "image", ".png"),
        (None, "none", "video", ".mp4"),
        (None, "none", "audio", ".wav"),
        ("a.not!safe", "none", "text", ".bin"),
    ],
)
async def test_suffix_comes_from_the_name_the_url_or_the_type(
    bench: Bench, name: str | None, url: str, kind: str, suffix: str
) -> None:
    bench.storage.answers = [answer_with(200, body=b"x")]
    asset = make_asset(url, type=kind, is_primary_input=True)
    lease = make_lease(assets=(asset,), urls=bench.storage.urls(url), input_name=name)
    (attachment,) = await bench.inputs.fetch(lease, refresh=no_refresh)
    assert attachment.name == f"0{suffix}"


async def test_only_the_primary_input_has_the_suffix_of_the_user_file(bench: Bench) -> None:
    lease = make_lease(
        assets=(make_asset("photo.jpg"),), urls=bench.storage.urls("photo.jpg"), input_name="something.webm"
    )
    (attachment,) = await bench.inputs.fetch(lease, refresh=no_refresh)
    assert attachment.name == "0.jpg"


async def test_concurrent_downloads_are_limited(bench: Bench) -> None:
    names = [f"{number}.png" for number in range(3 * MAX_DOWNLOADS)]
    bench.storage.files |= dict.fromkeys(names, b"x")
    lease = make_lease(assets=tuple(map(make_asset, names)), urls=bench.storage.urls(*names))
    attachments = await bench.inputs.fetch(lease, refresh=no_refresh)
    assert [attachment.placeholder for attachment in attachments] == [f"__{name}__" for name in names]
    assert bench.storage.most_at_once == MAX_DOWNLOADS


async def test_missing_input_leaves_no_files(bench: Bench, tmp_path: Path) -> None:
    cache = AssetCache(tmp_path / "small", max_bytes=0)
    transfers = Transfers(retries=0)
    inputs = Inputs(transfers, cache, folder=bench.work, asset_folder="assets")
    may_answer = asyncio.Event()

    async def answer_missing_files_late(request: web.Request) -> web.StreamResponse:
        if (content := bench.storage.files.get(request.path.lstrip("/"))) is not None:
            return web.Response(body=content)
        await may_answer.wait()
        return web.Response(status=404)

    lease = make_lease(
        assets=(make_asset("gone.png"), make_asset("photo.jpg"), make_asset("lut.png", content=LUT)),
        urls=bench.storage.urls("gone.png", "photo.jpg", "lut.png"),
    )
    bench.storage.answers = [answer_missing_files_late] * 3
    task = asyncio.create_task(inputs.fetch(lease, refresh=no_refresh))
    while cache.bytes == 0 or bench.files != [f"{lease.name}/inputs/1.jpg"]:  # noqa: ASYNC110  (files send no event)
        await asyncio.sleep(0.01)
    may_answer.set()
    with pytest.raises(TransferFailed) as caught:
        await task
    assert caught.value.fault is Fault.JOB
    assert (bench.files, cache.bytes) == ([], 0)
    await transfers.close()


async def test_missing_input_fails_without_waiting_for_the_others(bench: Bench) -> None:
    bench.storage.answers = [answer_with(404), never]
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(TransferFailed):
            await bench.inputs.fetch(bench.lease(), refresh=no_refresh)


async def test_canceled_fetch_leaves_no_files(bench: Bench) -> None:
    bench.storage.answers = [never, never]
    task = asyncio.create_task(bench.inputs.fetch(bench.lease(), refresh=no_refresh))
    await bench.storage.arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.files == []


async def test_urls_replaced_by_a_heartbeat_are_used(bench: Bench) -> None:
    lease = bench.lease()
    fresh = lease.urls
    lease.urls = bench.storage.urls("photo.jpg", "lut.png")
    bench.storage.answers = [answer_with(403)]
    refreshed = 0

    async def refresh() -> None:
        nonlocal refreshed
        refreshed += 1
        lease.urls = fresh

    assert len(await bench.inputs.fetch(lease, refresh=refresh)) == 2
    assert refreshed == 1


async def test_invalid_hash_is_refused(bench: Bench) -> None:
    asset = make_asset("lut.png", content_hash="../../etc/passwd")
    lease = make_lease(assets=(asset,), urls=bench.storage.urls("lut.png"))
    with pytest.raises(TransferFailed, match="not a SHA-256") as caught:
        await bench.inputs.fetch(lease, refresh=no_refresh)
    assert caught.value.fault is Fault.JOB


async def test_job_without_files_has_no_inputs(bench: Bench) -> None:
    assert await bench.inputs.fetch(make_lease(), refresh=no_refresh) == []
    bench.inputs.clean(make_lease())


def test_workers_have_separate_asset_folders() -> None:
    workers = ["/a/gpu-1", "/b/gpu-1", "/a/gpu-2", "/a/gpu.2", "/a/gpü", "/a/gpö", f"/a/{'x' * 200}"]
    folders = [asset_folder(Path(worker)) for worker in workers]
    assert len(set(folders)) == len(workers)
    for folder in folders:
        Attachment(source=b"", placeholder="x", folder=folder).check()
    assert folders[0].startswith("assets-gpu-1-")
