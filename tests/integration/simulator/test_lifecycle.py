"""Simulators start, stop and restart, also many in parallel."""

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest

from comfyrelay.errors import InvalidInput
from comfyrelay.simulator import Received, Simulator, Slow, SlowHttp, Stuck, serve, slow_from_text
from tests.integration.simulator.raw_client import Client, listening, until
from tests.support.world import PATIENCE_SECONDS

TEXT = {"1": {"class_type": "PreviewAny", "inputs": {"source": "hello"}}}


async def test_fifty_simulators_run_in_parallel() -> None:
    simulators = [Simulator() for _ in range(50)]
    await asyncio.gather(*(simulator.start() for simulator in simulators))
    try:
        assert len({simulator.url for simulator in simulators}) == 50
        async with httpx.AsyncClient() as http:
            for simulator in simulators:
                assert (await http.post(f"{simulator.url}/prompt", json={"prompt": TEXT})).status_code == 200
    finally:
        await asyncio.gather(*(simulator.close() for simulator in simulators))


async def test_stopping_does_not_wait_for_connections_or_a_stuck_node(simulator: Simulator) -> None:
    simulator.misbehave(Stuck())
    client = Client(simulator)
    await client.queue_prompt(TEXT)
    simulator.misbehave(SlowHttp(seconds=100 * PATIENCE_SECONDS, path="/history"))
    waiting = asyncio.create_task(client.http.get("/history"))
    async with listening(simulator):
        await until(lambda: _has_history_request(simulator))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await simulator.stop()
    with pytest.raises(httpx.TransportError):
        await waiting


async def _has_history_request(simulator: Simulator) -> bool:
    return simulator.log.count("GET", "/history") == 1


async def test_simulator_can_be_started_and_stopped_twice(simulator: Simulator) -> None:
    await simulator.start()
    await simulator.stop()
    await simulator.stop()
    await simulator.start()
    assert (await Client(simulator).http.get("/prompt")).status_code == 200


async def test_restarting_simulator_is_unreachable(simulator: Simulator) -> None:
    async def is_down() -> bool:
        try:
            await Client(simulator).http.get("/prompt")
        except httpx.ConnectError:
            return True
        return False

    task = asyncio.create_task(simulator.restart(down_seconds=1))
    await until(is_down)
    await task
    assert not await is_down()


async def test_port_in_use_is_reported(simulator: Simulator) -> None:
    with pytest.raises(OSError, match="address already in use"):
        async with Simulator(port=int(simulator.url.rpartition(":")[2])):
            pass


async def test_own_folder_is_kept_and_a_temporary_one_is_removed(tmp_path: Path) -> None:
    async with Simulator(folder=tmp_path / "comfy") as own, Simulator() as other:
        temporary = other.folder
        assert own.folder == tmp_path / "comfy"
    assert (tmp_path / "comfy" / "input").is_dir()
    assert not temporary.exists()


async def test_requests_are_logged(simulator: Simulator) -> None:
    client = Client(simulator)
    await client.http.get("/queue")
    await client.http.post("/interrupt")
    assert list(simulator.log.requests) == [Received("GET", "/queue"), Received("POST", "/interrupt")]
    assert simulator.log.count("GET", "/queue") == 1
    assert simulator.log.interrupts == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_command_serves_until_a_signal(number: signal.Signals) -> None:
    ready: asyncio.Queue[Simulator] = asyncio.Queue()
    task = asyncio.create_task(serve(Simulator(misbehaviour=[Slow(seconds=0.01)]), on_ready=ready.put_nowait))
    simulator = await asyncio.wait_for(ready.get(), PATIENCE_SECONDS)
    assert (await Client(simulator).http.get("/models/checkpoints")).json() == [
        "simulator.safetensors",
        "broken.safetensors",
    ]
    os.kill(os.getpid(), number)
    await asyncio.wait_for(task, PATIENCE_SECONDS)


def test_slow_class_is_read_from_an_option() -> None:
    assert slow_from_text("ImageInvert=1.5") == Slow(class_type="ImageInvert", seconds=1.5)
    assert slow_from_text("=2") == Slow(seconds=2.0)
    with pytest.raises(InvalidInput):
        slow_from_text("ImageInvert")
