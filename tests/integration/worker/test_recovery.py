"""After a failure, ComfyUI is recovered before the next job can start on it."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic

import pytest
from structlog.testing import capture_logs

from comfyrelay.comfyui.processes.supervisor import ProcessExit
from comfyrelay.comfyui.runs.events import Started
from comfyrelay.comfyui.runs.timeouts import RunTimeouts
from comfyrelay.errors import DeviceFault, OutOfMemory, RunLost, ServerRefused
from comfyrelay.simulator import Fail, Simulator, Stuck
from comfyrelay.simulator import OutOfMemory as NoMemory
from comfyrelay.worker.comfyui.recovery import RecoveringClient, SupervisedProcess
from comfyrelay.worker.comfyui.restarts import Restarts
from tests.support.graphs import invert
from tests.support.world import PATIENCE_SECONDS

BAD_GPU = "CUDA error: an illegal memory access was encountered"


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    async with Simulator() as simulator:
        yield simulator


@pytest.fixture
async def client(simulator: Simulator) -> AsyncIterator[RecoveringClient]:
    client = RecoveringClient(simulator.url, timeouts=RunTimeouts())
    yield client
    await client.close()


async def cause_gpu_fault(simulator: Simulator, client: RecoveringClient) -> None:
    simulator.misbehave(Fail(class_type="ImageInvert", exception_type="RuntimeError", message=BAD_GPU, times=1))
    with pytest.raises(DeviceFault):
        await client.run(invert())


async def test_memory_is_freed_before_out_of_memory_is_raised(simulator: Simulator, client: RecoveringClient) -> None:
    simulator.misbehave(NoMemory(class_type="ImageInvert", times=1))
    with pytest.raises(OutOfMemory):
        await client.run(invert())
    assert simulator.log.count("POST", "/free") == 1


async def test_faulty_gpu_is_refused_until_comfyui_is_restarted(simulator: Simulator, client: RecoveringClient) -> None:
    await client.check()
    await cause_gpu_fault(simulator, client)
    assert client.has_gpu_fault
    for _ in range(2):
        with pytest.raises(ServerRefused, match="restarted"):
            await client.check()
    await simulator.restart()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while client.has_gpu_fault:
            try:
                await client.check()
            except ServerRefused:
                # the client may not yet have noticed the lost connection
                await asyncio.sleep(0.05)
    assert (await client.run(invert())).files


class TestRestarts:
    def restarts(self, *command: str, wait_seconds: float = 60.0) -> Restarts:
        return Restarts(command, wait_seconds=wait_seconds)

    async def test_server_that_recovers_alone_is_not_restarted(
        self, simulator: Simulator, client: RecoveringClient, tmp_path: Path
    ) -> None:
        trace = tmp_path / "restarted"
        restarts = self.restarts(sys.executable, "-c", f"open({str(trace)!r}, 'w')")
        restarts.restart_unless_recovered(client)
        await asyncio.gather(*restarts._tasks.values())
        assert not trace.exists()
        assert not client.is_restarting
        await client.check()

    async def test_faulty_server_is_restarted_at_once_and_gets_no_job_meanwhile(
        self, simulator: Simulator, client: RecoveringClient, tmp_path: Path
    ) -> None:
        await cause_gpu_fault(simulator, client)
        trace = tmp_path / "restarted"
        restarts = self.restarts(sys.executable, "-c", f"open({str(trace)!r}, 'w')")
        restarts.restart_unless_recovered(client)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not trace.exists():  # noqa: ASYNC110  (files send no event)
                await asyncio.sleep(0.02)
        assert client.is_restarting
        await simulator.restart()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*restarts._tasks.values())
        assert not client.is_restarting
        await client.check()

    async def test_server_gets_no_job_while_it_is_restarting(self, client: RecoveringClient) -> None:
        client.is_restarting = True
        with pytest.raises(ServerRefused, match="being restarted"):
            await client.check()
        await client.check_health()

    async def test_failing_restart_command_leaves_the_server_restarting(
        self, simulator: Simulator, client: RecoveringClient
    ) -> None:
        await cause_gpu_fault(simulator, client)
        restarts = self.restarts("/nothing/here")
        with capture_logs() as logs:
            restarts.restart_unless_recovered(client)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not any(log["event"] == "worker.restart_failed" for log in logs):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert client.is_restarting
        assert client.has_gpu_fault
        await restarts.close()


class ExitedProcess(SupervisedProcess):
    """A process that exited after printing these lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str]] = []

    async def exit_since(self, began: float) -> ProcessExit:
        return ProcessExit(at=began, reason="it was killed.", lines=self.lines)

    async def mark_run_started(self) -> None: ...

    def restart_stuck(self, why: str) -> None: ...


async def test_job_error_excludes_output_of_earlier_jobs(simulator: Simulator) -> None:
    process = ExitedProcess()
    client = RecoveringClient(simulator.url, timeouts=RunTimeouts(refused_seconds=0.1), process=process)
    stuck = simulator.misbehave(Stuck(class_type="ImageInvert"))
    begun, accepted = asyncio.Event(), asyncio.Event()
    process.lines.append((monotonic(), "an image of another user"))
    first = asyncio.create_task(
        client.run(invert(), on_event=lambda event: begun.set() if isinstance(event, Started) else None)
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        await begun.wait()
        # the second run waits behind the first, whose output follows
        second = asyncio.create_task(client.run(invert(), on_event=lambda _event: accepted.set()))
        await accepted.wait()
        process.lines.append((monotonic(), "the last word of the first"))
        await simulator.stop()
        stuck.end()
        with pytest.raises(RunLost, match="it was killed") as of_first:
            await first
        with pytest.raises(RunLost, match="it was killed") as of_second:
            await second
    assert of_first.value.raw == "the last word of the first"
    assert of_second.value.raw is None
    await client.close()
