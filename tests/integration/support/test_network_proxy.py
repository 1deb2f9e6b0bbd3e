"""The network proxy that other tests use."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.network_proxy import Proxy


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read() or b"hello")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", echo)
    async with TestServer(app) as server, Proxy(str(server.make_url(""))) as proxy:
        yield proxy


async def test_proxy_forwards_both_ways(proxy: Proxy) -> None:
    async with httpx.AsyncClient(base_url=proxy.url) as http:
        sent = bytes(range(256)) * 4096
        assert (await http.put("/x", content=sent)).content == sent


async def test_cut_closes_open_connections_and_refuses_new_ones(proxy: Proxy) -> None:
    async with httpx.AsyncClient(base_url=proxy.url) as http:
        proxy.hold()
        asking = asyncio.create_task(http.get("/x"))
        await proxy.until_held()
        await proxy.cut()
        with pytest.raises(httpx.TransportError):
            await asking
        with pytest.raises(httpx.ConnectError):
            await http.get("/x")
        await proxy.restore()
        assert (await http.get("/x")).text == "hello"


async def test_only_named_requests_are_held(proxy: Proxy) -> None:
    async with httpx.AsyncClient(base_url=proxy.url) as http:
        proxy.hold(b"PUT /")
        putting = asyncio.create_task(http.put("/x", content=b"kept"))
        await proxy.until_held()
        assert (await http.get("/x")).text == "hello"
        assert not putting.done()
        proxy.release()
        assert (await putting).content == b"kept"


async def test_bandwidth_is_limited(proxy: Proxy) -> None:
    async with httpx.AsyncClient(base_url=proxy.url) as http:
        proxy.bytes_per_second = 1_000_000
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        await http.put("/x", content=bytes(100_000))
        # the bytes travel both ways
        assert loop.time() - began_at >= 0.2
