"""The network of the soak test injects faults."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from comfyrelay.http_client import listen
from tests.soak.invariants import server_errors
from tests.soak.plan import CLIENTS, STORAGE, Fault, Kind
from tests.soak.wire import Wire

ROUTE = "POST /api/worker/complete"


class Target:
    """Run a server that answers each request with the number of requests so far."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.status = 200

    async def take(self, request: web.BaseRequest) -> web.Response:
        self.bodies.append((await request.read()).decode())
        return web.json_response(len(self.bodies), status=self.status)


@asynccontextmanager
async def open_wire(*faults: Fault) -> AsyncIterator[tuple[Target, Wire, aiohttp.ClientSession]]:
    target = Target()
    listener = listen("127.0.0.1", 0)
    runner = web.ServerRunner(web.Server(target.take))
    await runner.setup()
    await web.SockSite(runner, listener).start()
    try:
        # the first of the two servers does not exist
        missing = "http://127.0.0.1:9"
        present = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with Wire("test", [missing, present]) as wire, aiohttp.ClientSession(wire.url) as http:
            for fault in faults:
                wire.add(fault)
            yield target, wire, http
    finally:
        await runner.cleanup()


def fault(kind: Kind, **fields: float) -> Fault:
    return Fault(at=0, kind=kind, target="test", route=ROUTE, **fields)  # type: ignore[arg-type]


async def send(http: aiohttp.ClientSession) -> int:
    async with http.post("/api/worker/complete", json={"lease_token": "t"}) as answer:
        found: int = await answer.json()
        return found


async def test_request_goes_to_an_available_server() -> None:
    async with open_wire() as (target, wire, http):
        assert await send(http) == 1
    assert target.bodies == ['{"lease_token": "t"}']
    [call] = wire.calls
    assert (call.path, call.status, call.body) == ("/api/worker/complete", 200, {"lease_token": "t"})


async def test_only_a_request_with_a_lost_response_arrives() -> None:
    async with open_wire(fault(Kind.LOSE_REQUEST), fault(Kind.LOSE_ANSWER)) as (target, _wire, http):
        for arrived in (0, 1):
            with pytest.raises(aiohttp.ClientError):
                await send(http)
            assert len(target.bodies) == arrived
        assert await send(http) == 2


async def test_duplicated_request_arrives_twice() -> None:
    async with open_wire(fault(Kind.DUPLICATE)) as (target, wire, http):
        await send(http)
        await wire.settle()
        assert len(target.bodies) == 2


async def test_late_request_arrives_although_its_sender_got_no_response() -> None:
    async with open_wire(fault(Kind.ARRIVE_LATE, seconds=0.01)) as (target, wire, http):
        with pytest.raises(aiohttp.ClientError):
            await send(http)
        await wire.settle()
        assert len(target.bodies) == 1


async def test_delayed_request_arrives_although_its_sender_disconnected() -> None:
    async with open_wire() as (target, wire, http):
        active = wire.add(fault(Kind.DELAY, seconds=0.5))
        sending = asyncio.create_task(send(http))
        await active.met
        sending.cancel()
        await asyncio.wait({sending})
        async with asyncio.timeout(60):
            while not target.bodies:  # noqa: ASYNC110  (the request is in flight)
                await asyncio.sleep(0.01)


async def test_receiver_of_a_request_is_known_before_it_arrives() -> None:
    async with open_wire() as (target, wire, http):
        active = wire.add(fault(Kind.KILL_RECEIVER))
        sending = asyncio.create_task(send(http))
        assert await active.met in wire._targets
        assert target.bodies == []
        active.may_pass.set()
        assert await sending == 1


async def test_fault_shared_by_two_networks_happens_once() -> None:
    async with open_wire() as (first, wire, http), open_wire() as (second, other, other_http):
        other.share(wire.add(fault(Kind.LOSE_REQUEST)))
        with pytest.raises(aiohttp.ClientError):
            await send(other_http)
        assert await send(http) == 1
        assert (len(first.bodies), len(second.bodies)) == (1, 0)


async def test_cut_network_answers_no_request_until_it_is_healed() -> None:
    async with open_wire() as (_target, wire, http):
        wire.cut()
        with pytest.raises(aiohttp.ClientError):
            await send(http)
        wire.heal()
        assert await send(http) == 1


async def test_other_bytes_are_uploaded_to_used_output_urls() -> None:
    async with open_wire() as (target, wire, http):
        path = "/bucket/files/tenants/1/ai-jobs/2/upload-3.png"
        for url in (f"{path}?X-Amz-Signature=1", path, "/bucket/files/tenants/1/uploads/4.png?X-Amz-Signature=1"):
            (await http.put(url, data=b"abc")).release()
        target.bodies.clear()
        assert await wire.write_again() == [200]
        assert target.bodies == ["cba"]


async def test_full_storage_refuses_writes_and_can_be_read() -> None:
    async with open_wire() as (_target, wire, http):
        wire.is_full = True
        assert [(await http.request(method, "/x")).status for method in ("PUT", "POST", "GET")] == [507, 507, 200]
        wire.heal()
        assert (await http.put("/x")).status == 200


@pytest.mark.parametrize(("status", "is_broken"), [(500, True), (502, True), (503, False), (404, False)])
async def test_server_may_answer_503_but_no_other_5xx(status: int, is_broken: bool) -> None:
    async with open_wire() as (target, wire, http):
        target.status = status
        (await http.get("/x")).release()
        assert bool(server_errors({CLIENTS: wire})) is is_broken
        assert server_errors({STORAGE: wire}) == []
