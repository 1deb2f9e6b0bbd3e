"""Files that ComfyUI writes after the end of a job, or that only ComfyUI knows about, are removed."""

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable

import httpx
import pytest

from comfyrelay.simulator import Fail, Stuck
from tests.support.graphs import invert
from tests.support.network_proxy import END_OF_FORM, Proxy
from tests.support.processes import Service
from tests.support.whole_system import System
from tests.support.world import PATIENCE_SECONDS


async def until_node(system: System, job_id: str, node_id: str) -> None:
    """Wait until ComfyUI runs a node."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        # Only operators can see the nodes of an effect.
        while ((await system.lease_of(job_id))["progress"] or {}).get("node_id") != node_id:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def until_idle(system: System) -> None:
    """Wait until ComfyUI is idle and has written all its files."""
    async with httpx.AsyncClient(base_url=system.simulator.url) as http, asyncio.timeout(PATIENCE_SECONDS):
        while any((await http.get("/queue")).json().values()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def until_clean(system: System) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while system.left_on_comfyui(system.simulator):  # noqa: ASYNC110  (files send no signal)
            await asyncio.sleep(0.02)


def notes(system: System) -> list[str]:
    return [path.name for path in system.folder.rglob("worker/*/left/*")]


async def until_no_notes(system: System) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while notes(system):  # noqa: ASYNC110  (files send no signal)
            await asyncio.sleep(0.02)


async def canceled(system: System, job: str, _worker: Service) -> None:
    await system.user("POST", f"/ai-jobs/{job}/cancel", {})
    await system.until(job, "canceled")


async def paused(system: System, job: str, _worker: Service) -> None:
    await system.user("POST", f"/ai-jobs/{job}/pause", {"mode": "now"})
    await system.until(job, "paused")


async def killed(system: System, job: str, worker: Service) -> None:
    await worker.kill()
    await worker.start()
    await worker.wait_for_log("worker.job_failed")


async def canceled_and_killed(system: System, job: str, worker: Service) -> None:
    await canceled(system, job, worker)
    await worker.wait_for_log("worker.job_requeued")
    await worker.kill()
    await worker.start()
    await worker.wait_for_log("worker.registered", count=2)


async def stopped_by_signal(system: System, job: str, worker: Service) -> None:
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0
    assert len(notes(system)) == 1
    await worker.start()


@pytest.mark.parametrize("stop", [canceled, paused, killed, canceled_and_killed, stopped_by_signal])
async def test_file_saved_after_its_job_was_stopped_is_removed(
    system: System, stop: Callable[[System, str, Service], Awaitable[None]]
) -> None:
    """ComfyUI checks for an interrupt only between nodes."""
    effect = await system.effect()
    stuck = system.simulator.misbehave(Stuck(class_type="SaveImage"))
    worker = await system.started(shutdown_seconds=1)
    job = await system.image(effect)
    await until_node(system, job, "3")
    await stop(system, job, worker)
    stuck.end()
    if stop in (killed, stopped_by_signal):
        await system.completed(job)
    await until_idle(system)
    await until_clean(system)
    await until_no_notes(system)


async def test_previews_of_a_failed_run_are_removed(system: System) -> None:
    graph = invert() | {"4": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}}}
    effect = await system.effect("preview", graph, properties=[])
    failing = system.simulator.misbehave(Stuck(class_type="SaveImage"))
    system.simulator.misbehave(Fail(class_type="SaveImage", message="tensor sizes must match"))
    await system.started()
    job = await system.submit(effect)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not system.left_on_comfyui(system.simulator):  # noqa: ASYNC110  (files send no signal)
            await asyncio.sleep(0.02)
    failing.end()
    await system.until(job, "failed")
    await until_clean(system)
    async with httpx.AsyncClient(base_url=system.simulator.url) as http:
        assert (await http.get("/history")).json() == {}


async def test_outputs_of_an_unrecorded_run_are_removed(
    system: System,
) -> None:
    effect = await system.plain_effect()
    stuck = system.simulator.misbehave(Stuck(class_type="ImageInvert", times=1))
    worker = await system.started()
    job = await system.plain(effect)
    await system.until_running()
    await worker.kill()
    [held] = system.folder.glob("**/held/*.json")
    held.write_text(json.dumps(json.loads(held.read_text()) | {"runs": []}))
    stuck.end()
    await until_idle(system)
    assert system.left_on_comfyui(system.simulator)
    await worker.start()
    await system.completed(job)
    await until_clean(system)


async def test_input_read_after_its_job_was_stopped_is_removed(system: System) -> None:
    """A hung ComfyUI reads its input when it recovers, even though the worker no longer waits."""
    effect = await system.effect()
    async with Proxy(system.simulator.url) as comfyui:
        worker = await system.started(variables={"COMFYUI_BASE_URL": comfyui.url})
        comfyui.hold(suffix=END_OF_FORM)
        job = await system.image(effect)
        await comfyui.until_held()
        comfyui.hold()
        await canceled(system, job, worker)
        comfyui.release()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not system.simulator.log.uploads_written:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await until_clean(system)
        await until_no_notes(system)


async def test_inputs_of_a_killed_worker_are_removed_even_if_unread(system: System) -> None:
    effect = await system.effect()
    async with Proxy(system.simulator.url) as comfyui:
        worker = await system.started(variables={"COMFYUI_BASE_URL": comfyui.url})
        comfyui.hold(suffix=END_OF_FORM)
        job = await system.image(effect)
        await comfyui.until_held()
        await worker.kill()
        await worker.start()
        await worker.wait_for_log("worker.inputs_removed_later")
        comfyui.release()
        await system.completed(job)
        await until_clean(system)
        await until_no_notes(system)
