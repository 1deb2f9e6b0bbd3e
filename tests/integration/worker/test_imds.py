"""EC2 metadata is read with IMDSv2, and a missing metadata service causes no wait."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from aiohttp import web

from comfyrelay.worker.host.imds import Imds
from tests.support.ec2_metadata import SPOT, Metadata

NOWHERE = "http://127.0.0.1:1"


@asynccontextmanager
async def open_imds(url: str, *, pause_seconds: float = 0.0) -> AsyncIterator[Imds]:
    imds = Imds(url, pause_seconds=pause_seconds)
    try:
        yield imds
    finally:
        await imds.close()


@asynccontextmanager
async def serve(handle: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(handle)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def test_instance_id_region_and_type_are_read() -> None:
    async with Metadata(instance_type="g6e.2xlarge", region="eu-west-1") as metadata, open_imds(metadata.url) as imds:
        assert await imds.text("instance-id") == "i-0123456789abcdef0"
        assert await imds.text("placement/region") == "eu-west-1"
        assert await imds.text("instance-type") == "g6e.2xlarge"
        assert await imds.text("instance-life-cycle") == "spot"
        assert imds.is_available
        assert metadata.tokens_given == 1
        metadata.arm("instance-life-cycle", "on-demand")
        assert await imds.text("instance-life-cycle") == "on-demand"


async def test_metadata_without_a_token_is_refused() -> None:
    """The simulated service requires a token, so the other tests fail if the worker sends none."""
    async with Metadata() as metadata, httpx.AsyncClient(base_url=metadata.url) as http:
        assert (await http.get("/latest/meta-data/instance-id")).status_code == 401
        assert (await http.put("/latest/api/token")).status_code == 400


async def test_missing_notice_is_none_and_a_notice_has_the_time_from_ec2() -> None:
    async with Metadata(clock_seconds=3600) as metadata, open_imds(metadata.url) as imds:
        assert await imds.get(SPOT) is None
        assert imds.is_available
        metadata.arm(SPOT, '{"action": "terminate"}\n')
        found = await imds.get(SPOT)
        assert found is not None
        text, now = found
        assert text == '{"action": "terminate"}'
        assert now is not None
        assert abs(now - datetime.now(UTC) - timedelta(hours=1)) < timedelta(minutes=5)


async def test_simulator_can_be_armed_by_another_process() -> None:
    async with (
        Metadata() as metadata,
        open_imds(metadata.url) as imds,
        httpx.AsyncClient(base_url=metadata.url) as http,
    ):
        await http.put(f"/_control/{SPOT}", content='{"action": "stop"}')
        found = await imds.get(SPOT)
        assert found is not None
        assert found[0] == '{"action": "stop"}'
        await http.delete(f"/_control/{SPOT}")
        assert await imds.get(SPOT) is None


async def test_refused_token_is_replaced() -> None:
    async with Metadata() as metadata, open_imds(metadata.url) as imds:
        assert await imds.text("instance-id")
        metadata.expire_tokens()
        assert await imds.text("instance-id")
        assert metadata.tokens_given == 2


async def test_token_is_renewed_before_it_expires() -> None:
    async with Metadata(token_seconds=0) as metadata, open_imds(metadata.url) as imds:
        assert await imds.text("instance-id")
        metadata.token_seconds = 100
        assert await imds.text("instance-id")
        assert await imds.text("instance-id")
        assert metadata.tokens_given == 2


async def test_unreachable_metadata_service_returns_none() -> None:
    async with open_imds(NOWHERE) as imds:
        assert await imds.text("instance-id") is None
        assert await imds.text("placement/region") is None
        assert await imds.text("instance-life-cycle") is None
        assert not imds.is_available


async def test_silent_metadata_service_delays_only_the_first_request() -> None:
    released = asyncio.Event()
    connections = []

    async def hold(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await released.wait()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, open_imds(f"http://{host}:{port}", pause_seconds=60) as imds:
        assert [
            await imds.text("instance-id"),
            await imds.text("placement/region"),
            await imds.text("instance-type"),
        ] == [None, None, None]
        assert len(connections) == 1
        released.set()


@pytest.mark.parametrize(
    ("status", "text"),
    [(403, "disabled"), (404, "not of this cloud"), (405, ""), (200, "<html>Please sign in</html>"), (200, "")],
)
async def test_other_server_at_the_metadata_address_is_not_ec2(status: int, text: str) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with serve(app) as url, open_imds(url) as imds:
        assert await imds.get("instance-id") is None
        assert not imds.is_available


async def test_answer_with_an_invalid_date_has_no_time() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="AQAE" if request.method == "PUT" else "InService", headers={"Date": "today"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with serve(app) as url, open_imds(url) as imds:
        assert await imds.get("autoscaling/target-lifecycle-state") == ("InService", None)


async def test_proxy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, NOWHERE)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with Metadata() as metadata, open_imds(metadata.url) as imds:
        assert await imds.text("instance-id") == "i-0123456789abcdef0"
