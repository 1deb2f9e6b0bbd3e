"""Transfers are complete or leave nothing, are retried, and get new URLs when storage refuses the old ones."""

import asyncio
import hashlib
import re
import tracemalloc
from collections.abc import AsyncIterator, Callable
from itertools import count, pairwise
from pathlib import Path

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from comfyrelay.errors import Fault, LeaseLost, TransferFailed
from comfyrelay.protocol.worker import OutputUrl
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.storage.s3 import S3Objects
from comfyrelay.worker.files.transfers import Transfers
from tests.support.full import full_only
from tests.support.leases import Answer, Storage, answer_with, disconnect, no_refresh, open_storage
from tests.support.server_processes import free_port
from tests.support.storage import BUCKET, Clock, serve_files
from tests.support.world import PATIENCE_SECONDS

LARGE = 64 * 1024**2


@pytest.fixture
async def storage() -> AsyncIterator[Storage]:
    async with open_storage() as storage:
        yield storage


@pytest.fixture
async def transfers() -> AsyncIterator[Transfers]:
    transfers = Transfers(retries=3, first_pause_seconds=0.01)
    yield transfers
    await transfers.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "output.png"
    path.write_bytes(b"the output")
    return path


class Refreshed:
    """Count the requests for new URLs."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.count = 0
        self._then = then

    async def __call__(self) -> None:
        self.count += 1
        self._then()


class TestDownloads:
    async def test_download_returns_the_size(self, storage: Storage, transfers: Transfers, tmp_path: Path) -> None:
        storage.files["a"] = b"12345"
        to = tmp_path / "new" / "folder" / "a.png"
        assert await transfers.download(lambda: storage.url("a"), to, refresh=no_refresh) == 5
        assert to.read_bytes() == b"12345"

    @pytest.mark.parametrize("status", [408, 429, 500, *full_only(502, 503)])
    async def test_busy_storage_is_retried(
        self, storage: Storage, transfers: Transfers, tmp_path: Path, status: int
    ) -> None:
        storage.files["a"] = b"12345"
        storage.answers = [answer_with(status), disconnect, answer_with(status, headers={"Retry-After": "0"})]
        assert await transfers.download(lambda: storage.url("a"), tmp_path / "a", refresh=no_refresh) == 5

    async def test_download_fails_after_its_retries(
        self, storage: Storage, transfers: Transfers, tmp_path: Path
    ) -> None:
        storage.answers = [answer_with(503)] * 9
        with pytest.raises(TransferFailed, match="storage answered with 503") as caught:
            await transfers.download(lambda: storage.url("a"), tmp_path / "a", refresh=no_refresh)
        assert caught.value.fault is Fault.WORKER
        assert len(storage.requests) == 1 + 3
        assert list(tmp_path.iterdir()) == []

    async def test_pauses_between_retries_grow(self, storage: Storage, tmp_path: Path) -> None:
        storage.answers = [answer_with(503)] * 9
        transfers = Transfers(retries=3, first_pause_seconds=0.1)
        loop = asyncio.get_running_loop()
        asked_at: list[float] = []

        def url() -> str:
            asked_at.append(loop.time())
            return storage.url("a")

        with pytest.raises(TransferFailed):
            await transfers.download(url, tmp_path / "a", refresh=no_refresh)
        pauses = [later - earlier for earlier, later in pairwise(asked_at)]
        # each pause is 75 to 125% of twice the previous pause
        assert all(pause >= 0.075 * 2**number for number, pause in enumerate(pauses))
        await transfers.close()

    @pytest.mark.parametrize("status", [404, 410])
    async def test_missing_input_fails_the_job(
        self, storage: Storage, transfers: Transfers, tmp_path: Path, status: int
    ) -> None:
        storage.answers = [answer_with(status)]
        with pytest.raises(TransferFailed, match="no longer in storage") as caught:
            await transfers.download(lambda: storage.url("a"), tmp_path / "a", refresh=no_refresh)
        assert caught.value.fault is Fault.JOB
        assert len(storage.requests) == 1

    @pytest.mark.parametrize(
        "refusal", [answer_with(401), answer_with(403), answer_with(400, text="<Code>ExpiredToken</Code>")]
    )
    async def test_refused_url_is_replaced(
        self, storage: Storage, transfers: Transfers, tmp_path: Path, refusal: Answer
    ) -> None:
        storage.files["new"] = b"12345"
        storage.answers = [refusal]
        urls = ["old"]
        refresh = Refreshed(then=lambda: urls.append("new"))
        size = await transfers.download(lambda: storage.url(urls[-1]), tmp_path / "a", refresh=refresh)
        assert (size, refresh.count) == (5, 1)
        assert [request.path for request in storage.requests] == ["/old", "/new"]

    async def test_lost_lease_stops_the_download(self, storage: Storage, transfers: Transfers, tmp_path: Path) -> None:
        async def lost() -> None:
            raise LeaseLost

        storage.answers = [answer_with(403)]
        with pytest.raises(LeaseLost):
            await transfers.download(lambda: storage.url("a"), tmp_path / "a", refresh=lost)

    async def test_download_with_a_wrong_checksum_is_retried(
        self, storage: Storage, transfers: Transfers, tmp_path: Path
    ) -> None:
        storage.files["a"] = b"12345"
        storage.answers = [answer_with(200, body=b"12x45")]
        digest = hashlib.sha256(b"12345").hexdigest()
        await transfers.download(lambda: storage.url("a"), tmp_path / "a", refresh=no_refresh, sha256=digest)
        assert (tmp_path / "a").read_bytes() == b"12345"

    async def test_download_fails_if_the_checksum_remains_wrong(
        self, storage: Storage, transfers: Transfers, tmp_path: Path
    ) -> None:
        storage.files["a"] = b"12345"
        with pytest.raises(TransferFailed, match="checksum") as caught:
            await transfers.download(lambda: storage.url("a"), tmp_path / "a", refresh=no_refresh, sha256="0" * 64)
        assert caught.value.fault is Fault.WORKER
        assert list(tmp_path.iterdir()) == []

    async def test_truncated_download_is_retried(self, storage: Storage, transfers: Transfers, tmp_path: Path) -> None:
        async def cut_off(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Length": "5"})
            await response.prepare(request)
            await response.write(b"12")
            return await disconnect(request)

        storage.files["a"] = b"12345"
        storage.answers = [cut_off]
        assert await transfers.download(lambda: storage.url("a"), tmp_path / "a", refresh=no_refresh) == 5

    async def test_compressed_object_is_saved_unchanged(
        self, storage: Storage, transfers: Transfers, tmp_path: Path
    ) -> None:
        """The checksum covers the bytes as stored."""
        storage.answers = [answer_with(200, body=b"not really packed", headers={"Content-Encoding": "gzip"})]
        await transfers.download(lambda: storage.url("a"), tmp_path / "a", refresh=no_refresh)
        assert (tmp_path / "a").read_bytes() == b"not really packed"
        assert storage.requests[0].headers["Accept-Encoding"] == "identity"

    async def test_redirect_is_followed(self, storage: Storage, transfers: Transfers, tmp_path: Path) -> None:
        storage.files["elsewhere"] = b"12345"
        storage.answers = [answer_with(307, headers={"Location": "/elsewhere"})]
        assert await transfers.download(lambda: storage.url("a"), tmp_path / "a", refresh=no_refresh) == 5

    async def test_canceled_download_leaves_no_file(
        self, storage: Storage, transfers: Transfers, tmp_path: Path
    ) -> None:
        async def endless(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"x" * 1024**2)
            begun.set()
            await asyncio.Event().wait()
            return response

        begun = asyncio.Event()
        storage.answers = [endless]
        task = asyncio.create_task(transfers.download(lambda: storage.url("a"), tmp_path / "a", refresh=no_refresh))
        await begun.wait()
        while not list(tmp_path.iterdir()):  # noqa: ASYNC110  (files send no event)
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert list(tmp_path.iterdir()) == []

    async def test_unwritable_disk_is_reported(self, storage: Storage, transfers: Transfers, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(TransferFailed, match="cannot be written on the worker") as caught:
            await transfers.download(lambda: storage.url("a"), tmp_path / "file" / "a", refresh=no_refresh)
        assert caught.value.fault is Fault.WORKER

    @pytest.mark.parametrize("url", ["http://127.0.0.1:9/a?X-Amz-Signature=secret", "nonsense", "http://[x/secret", ""])
    async def test_error_message_does_not_contain_the_url(self, tmp_path: Path, url: str) -> None:
        transfers = Transfers(retries=0)
        with pytest.raises(TransferFailed) as caught:
            await transfers.download(lambda: url, tmp_path / "a", refresh=no_refresh)
        assert re.search(r"secret|127|//", caught.value.detail) is None
        await transfers.close()


class TestUploads:
    async def test_upload_is_retried_until_storage_is_reachable(self, source: Path) -> None:
        port, tries = free_port(), count(1)
        enough = asyncio.Event()

        def urls() -> OutputUrl:
            if next(tries) == 6:
                enough.set()
            return OutputUrl(url=f"http://127.0.0.1:{port}/out")

        stored: list[bytes] = []

        async def store(request: web.Request) -> web.Response:
            stored.append(await request.read())
            return web.Response()

        app = web.Application()
        app.router.add_put("/out", store)
        server = TestServer(app, port=port)
        transfers = Transfers(retries=1, first_pause_seconds=0.01, upload_patience_seconds=60)
        uploading = asyncio.create_task(transfers.upload(source, urls, refresh=no_refresh))
        await asyncio.wait_for(enough.wait(), PATIENCE_SECONDS)
        await server.start_server()
        await asyncio.wait_for(uploading, PATIENCE_SECONDS)
        assert stored == [b"the output"]
        await server.close()
        await transfers.close()

    async def test_upload_sends_its_length_and_exactly_the_signed_headers(
        self, storage: Storage, transfers: Transfers, source: Path
    ) -> None:
        urls = storage.output_url(headers={"Content-Type": "image/x-odd; a=b", "x-amz-meta-a": "1"})
        await transfers.upload(source, lambda: urls, refresh=no_refresh)
        assert storage.files["output"] == b"the output"
        headers = storage.requests[0].headers
        assert (headers["Content-Type"], headers["x-amz-meta-a"]) == ("image/x-odd; a=b", "1")
        assert headers["Content-Length"] == "10"
        assert "Transfer-Encoding" not in headers

    async def test_empty_file_is_uploaded(self, storage: Storage, transfers: Transfers, source: Path) -> None:
        source.write_bytes(b"")
        await transfers.upload(source, storage.output_url, refresh=no_refresh)
        assert storage.files["output"] == b""
        assert storage.requests[0].headers["Content-Length"] == "0"

    @pytest.mark.parametrize("status", [429, 500])
    async def test_busy_storage_is_retried(
        self, storage: Storage, transfers: Transfers, source: Path, status: int
    ) -> None:
        storage.answers = [answer_with(status), answer_with(status)]
        await transfers.upload(source, storage.output_url, refresh=no_refresh)
        assert storage.files["output"] == b"the output"

    @pytest.mark.parametrize("status", [307, 400, 404, *full_only(301, 411, 413, 422)])
    async def test_permanent_upload_error_is_not_retried(
        self, storage: Storage, transfers: Transfers, source: Path, status: int
    ) -> None:
        storage.answers = [answer_with(status, headers={"Location": "/elsewhere"})]
        with pytest.raises(TransferFailed, match=f"storage answered with {status}") as caught:
            await transfers.upload(source, storage.output_url, refresh=no_refresh)
        assert caught.value.fault is Fault.WORKER
        assert len(storage.requests) == 1

    async def test_refused_url_is_replaced(self, storage: Storage, transfers: Transfers, source: Path) -> None:
        storage.answers = [answer_with(403)]
        urls = [storage.output_url()]
        refresh = Refreshed(then=lambda: urls.append(urls[0].model_copy(update={"url": storage.url("new")})))
        await transfers.upload(source, lambda: urls[-1], refresh=refresh)
        assert storage.files == {"new": b"the output"}

    async def test_url_refused_during_the_upload_is_replaced(
        self, storage: Storage, transfers: Transfers, source: Path
    ) -> None:
        """Storage answers and hangs up while the worker is still sending, so the answer may be lost."""

        async def refuse_at_once(request: web.Request) -> web.StreamResponse:
            response = web.Response(status=403)
            response.force_close()
            return response

        with source.open("wb") as file:
            file.truncate(LARGE)
        storage.answers = [refuse_at_once]
        refresh = Refreshed()
        await transfers.upload(source, storage.output_url, refresh=refresh)
        assert refresh.count == 1
        assert len(storage.files["output"]) == LARGE

    async def test_url_is_refreshed_after_a_lost_connection(
        self, storage: Storage, transfers: Transfers, source: Path
    ) -> None:
        """Storage may have refused the URL in an answer that was lost."""
        storage.answers = [disconnect]
        refresh = Refreshed()
        await transfers.upload(source, storage.output_url, refresh=refresh)
        assert (storage.files["output"], refresh.count) == (b"the output", 1)

    async def test_unreachable_storage_fails_the_upload(self, transfers: Transfers, source: Path) -> None:
        nowhere = OutputUrl(url="http://127.0.0.1:9/")
        with pytest.raises(TransferFailed, match="storage cannot be reached") as caught:
            await transfers.upload(source, lambda: nowhere, refresh=no_refresh)
        assert caught.value.fault is Fault.WORKER

    async def test_missing_local_file_is_reported(self, storage: Storage, transfers: Transfers, tmp_path: Path) -> None:
        with pytest.raises(TransferFailed, match="cannot be read on the worker: No such file"):
            await transfers.upload(tmp_path / "gone", storage.output_url, refresh=no_refresh)


async def test_bytes_are_counted_by_direction(storage: Storage, source: Path, tmp_path: Path) -> None:
    counted: list[tuple[str, int]] = []
    transfers = Transfers(on_bytes=lambda direction, count: counted.append((direction, count)))
    await transfers.upload(source, storage.output_url, refresh=no_refresh)
    await transfers.download(lambda: storage.url("output"), tmp_path / "a", refresh=no_refresh)
    await transfers.close()
    assert counted == [("upload", 10), ("download", 10)]


async def test_proxy_is_not_used_for_this_machine(
    storage: Storage, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    transfers = Transfers(retries=0)
    await transfers.upload(source, storage.output_url, refresh=no_refresh)
    assert storage.files["output"] == b"the output"
    elsewhere = storage.output_url().model_copy(update={"url": "http://storage.invalid/output"})
    with pytest.raises(TransferFailed, match="cannot be reached"):
        await transfers.upload(source, lambda: elsewhere, refresh=no_refresh)
    await transfers.close()


async def test_large_file_is_streamed(transfers: Transfers, tmp_path: Path, clock: Clock) -> None:
    source = tmp_path / "large"
    with source.open("wb") as file:
        file.truncate(LARGE)
    async with serve_files(tmp_path / "objects", clock=clock) as objects:
        signed = await objects.sign_upload("a.mp4", content_type="video/mp4", ttl_seconds=60)
        target = OutputUrl(url=signed.url, headers=signed.headers)
        download = await objects.sign_download("a.mp4", ttl_seconds=60)
        tracemalloc.start()
        await transfers.upload(source, lambda: target, refresh=no_refresh)
        await transfers.download(lambda: download, tmp_path / "back", refresh=no_refresh)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (tmp_path / "back").stat().st_size == LARGE
    assert peak < LARGE / 4


@pytest.fixture
def clock() -> Clock:
    return Clock()


class TestRealStores:
    @pytest.fixture
    def s3(self, aws: None, tmp_path: Path) -> S3Objects:
        return S3Objects(BUCKET, f"transfers/{tmp_path.name}")

    @pytest.fixture
    async def local(self, tmp_path: Path, clock: Clock) -> AsyncIterator[ObjectStore]:
        async with serve_files(tmp_path / "objects", clock=clock) as store:
            yield store

    @pytest.fixture(params=["s3", "local"])
    def store(self, request: pytest.FixtureRequest) -> ObjectStore:
        found: ObjectStore = request.getfixturevalue(request.param)
        return found

    async def test_uploaded_file_can_be_downloaded(
        self, store: ObjectStore, transfers: Transfers, source: Path, tmp_path: Path
    ) -> None:
        signed = await store.sign_upload("ü a.png", content_type="image/png", ttl_seconds=60)
        urls = OutputUrl(url=signed.url, headers=signed.headers)
        await transfers.upload(source, lambda: urls, refresh=no_refresh)
        stat = await store.stat("ü a.png")
        assert stat is not None
        assert stat.content_type == "image/png"
        url = await store.sign_download("ü a.png", ttl_seconds=60)
        digest = hashlib.sha256(b"the output").hexdigest()
        await transfers.download(lambda: url, tmp_path / "back", refresh=no_refresh, sha256=digest)
        assert (tmp_path / "back").read_bytes() == b"the output"

    async def test_expired_url_is_replaced(
        self, store: ObjectStore, transfers: Transfers, source: Path, clock: Clock
    ) -> None:
        async def sign(ttl_seconds: int) -> None:
            signed = await store.sign_upload("a.png", content_type="image/png", ttl_seconds=ttl_seconds)
            urls.append(OutputUrl(url=signed.url, headers=signed.headers))

        async def sign_again() -> None:
            clock.later_seconds = 0
            await sign(600)

        urls: list[OutputUrl] = []
        await sign(1)
        # only the clock of the local store can be set
        clock.later_seconds = 5
        async with httpx.AsyncClient(trust_env=False) as http:
            while (await http.put(urls[0].url, headers=urls[0].headers)).is_success:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await transfers.upload(source, lambda: urls[-1], refresh=sign_again)
        assert await store.get("a.png") == b"the output"
        assert len(urls) == 2

    async def test_missing_object_fails_the_job(self, store: ObjectStore, transfers: Transfers, tmp_path: Path) -> None:
        url = await store.sign_download("gone.png", ttl_seconds=60)
        with pytest.raises(TransferFailed) as caught:
            await transfers.download(lambda: url, tmp_path / "a", refresh=no_refresh)
        assert caught.value.fault is Fault.JOB
