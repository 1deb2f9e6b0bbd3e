"""A worker classifies failures in ComfyUI and reacts to them."""

import asyncio
import shlex
import signal
from pathlib import Path

import pytest

from comfyrelay.simulator import Fail, OutOfMemory, Restart, Stuck
from tests.support.api_calls import png
from tests.support.graphs import invert, invert_file
from tests.support.network_proxy import Proxy
from tests.support.whole_system import System
from tests.support.world import PATIENCE_SECONDS

BAD_DEVICE = "CUDA error: an illegal memory access was encountered"


async def test_graph_that_always_fails_is_failed_at_once_without_charge(system: System) -> None:
    effect = await system.plain_effect()
    system.simulator.misbehave(Fail(class_type="ImageInvert", message="tensor sizes must match"))
    await system.started()
    job = await system.until(await system.plain(effect), "failed")
    assert job["attempts"] == 1
    # Operators see texts of the graph, but users of an effect do not.
    assert "tensor" not in job["error"]
    assert "tensor sizes must match" in await operator_error(system, job["id"])


async def test_worker_missing_a_node_does_not_get_the_workflow(system: System) -> None:
    graph = invert()
    graph["2"]["class_type"] = "NoSuchNode"
    effect = await system.effect("unknown-node", graph, properties=[])
    other = await system.plain_effect()
    job = await system.submit(effect)
    await system.started()
    # the worker still gets other workflows
    await system.completed(await system.plain(other))
    found = await system.job(job)
    assert (found["status"], found["attempts"]) == ("queued", 0)
    assert (await system.waiting(job))["text"] == "Waiting for a worker with the node NoSuchNode."
    assert system.simulator.log.prompts_queued == 1
    await system.user("POST", f"/ai-jobs/{job}/cancel", {})


@pytest.mark.journey
@pytest.mark.parametrize("simulators", [2])
@pytest.mark.parametrize("settings", [{"BLOCK_COOLDOWN_SECONDS": "600"}])
async def test_job_that_fails_on_one_worker_succeeds_on_another(system: System) -> None:
    effect = await system.plain_effect()
    system.simulators[0].misbehave(
        Fail(class_type="ImageInvert", exception_type="ModuleNotFoundError", message="no torch")
    )
    await system.started("gpu-1", simulators=[system.simulators[0]])
    job = await system.plain(effect)
    await system.api.until_asked("POST /api/worker/fail")
    await system.started("gpu-2", simulators=[system.simulators[1]])
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 2


@pytest.mark.parametrize("simulators", [2])
async def test_job_that_fails_on_one_gpu_succeeds_on_the_next(system: System) -> None:
    effect = await system.plain_effect()
    # the job is held before the failing node until its worker is known and the other worker is healthy
    stuck = [simulator.misbehave(Stuck(class_type="EmptyImage")) for simulator in system.simulators]
    for simulator in system.simulators:
        simulator.misbehave(Fail(class_type="ImageInvert", exception_type="ModuleNotFoundError", message="no torch"))
    await system.started()
    job = await system.plain(effect)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (counts := [simulator.log.prompts_queued for simulator in system.simulators]).count(1):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    first = counts.index(1)
    system.simulators[1 - first].behave()
    stuck[first].end()
    await system.completed(job)
    assert [simulator.log.prompts_queued for simulator in system.simulators] == [1, 1]
    assert (await system.job(job))["attempts"] == 1


@pytest.mark.parametrize("simulators", [2])
async def test_job_moved_to_another_gpu_waits_there_and_restarts(system: System) -> None:
    effect = await system.plain_effect()
    stuck = [simulator.misbehave(Stuck(class_type="ImageInvert")) for simulator in system.simulators]
    worker = await system.started(prefetch=0)
    jobs = [await system.plain(effect) for _ in range(2)]
    await worker.wait_for_log("worker.job_started", count=2)
    [moved] = [entry["job_id"] for entry in worker.logged("worker.job_started", server="comfyui-1")]
    system.simulators[0].misbehave(
        Fail(class_type="SaveImage", exception_type="ModuleNotFoundError", message="no torch")
    )
    stuck[0].end()
    await system.until_phase(moved, "waiting")
    assert "began_at" not in (await system.job(moved))["progress"]
    stuck[1].end()
    for job in jobs:
        await system.completed(job)
    assert [line for line in await system.log_lines(moved) if line.startswith("Running on")] == [
        "Running on comfyui-1.",
        "Running on comfyui-2.",
    ]
    assert (await system.job(moved))["attempts"] == 1


async def test_memory_is_freed_after_an_out_of_memory_error(system: System) -> None:
    effect = await system.plain_effect()
    system.simulator.misbehave(OutOfMemory(class_type="ImageInvert", times=1))
    await system.started()
    job = await system.plain(effect)
    await system.completed(job)
    # memory is freed after the failure and before the run alone on the GPU
    assert system.simulator.log.count("POST", "/free") + system.simulator.log.count("POST", "/api/free") == 2
    assert (await system.job(job))["attempts"] == 1


async def test_job_too_large_for_the_gpu_fails_with_advice_and_no_charge(system: System) -> None:
    effect = await system.plain_effect()
    system.simulator.misbehave(OutOfMemory(class_type="ImageInvert"))
    await system.started()
    job = await system.plain(effect)
    await system.until(job, "failed")
    found = await system.job(job)
    assert (found["attempts"], system.simulator.log.prompts_queued) == (1, 2)
    assert "not enough memory" in found["error"]
    error = await operator_error(system, job)
    assert "GiB of the GPU to itself" in error
    assert "Use fewer pixels or frames" in error
    assert any("it runs again, alone on its GPU." in line for line in await system.log_lines(job))


@pytest.mark.parametrize("simulators", [2])
async def test_worker_that_alone_runs_out_of_memory_fails_no_job(system: System) -> None:
    effect = await system.plain_effect()
    sick, healthy = system.simulators
    failing = sick.misbehave(OutOfMemory(class_type="ImageInvert"))
    await system.started("gpu-1", simulators=[sick])
    await system.started("gpu-2", simulators=[healthy])
    # Each worker gets a job.
    stuck = healthy.misbehave(Stuck(class_type="EmptyImage"))
    jobs = [await system.plain(effect) for _ in range(2)]
    await system.api.until_asked("POST /api/worker/fail")
    stuck.end()
    jobs += [await system.plain(effect) for _ in range(2)]
    for job in jobs:
        await system.completed(job)
        assert (await system.job(job))["attempts"] == 1
    # The sick worker ran one job twice: with its loaded models, and alone on its GPU.
    assert sick.log.prompts_queued == 2
    [block] = (await system.admin("GET", "/workers/gpu-1"))["blocks"]
    assert block["reason"] == "ran out of memory on a GPU of 24 GiB"
    # The restart of its ComfyUI ends the block.
    failing.end()
    await sick.restart()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await system.admin("GET", "/workers/gpu-1"))["blocks"]:  # noqa: ASYNC110  (blocks send no signal)
            await asyncio.sleep(0.05)


async def test_gpu_in_a_bad_state_gets_no_jobs_until_comfyui_restarts(system: System) -> None:
    effect = await system.plain_effect()
    system.simulator.misbehave(Fail(class_type="ImageInvert", message=BAD_DEVICE, times=1))
    worker = await system.started()
    job = await system.plain(effect)
    await worker.wait_for_log("worker.job_failed")
    # wait long enough for a poll
    await system.reconcile()
    # The job may still have the status from before its lease.
    dispatch = await system.lease_of(job)
    assert (dispatch["status"], dispatch["attempts"]) == ("queued", 1)
    assert system.simulator.log.prompts_queued == 1
    await system.simulator.restart()
    await system.completed(job)


async def test_gpu_in_a_bad_state_is_restarted_with_its_command(system: System, tmp_path: Path) -> None:
    effect = await system.plain_effect()
    system.simulator.misbehave(Fail(class_type="ImageInvert", message=BAD_DEVICE, times=1))
    marker = tmp_path / "restarted"
    # the file is complete once it is renamed
    script = "env > {0}.part && mv {0}.part {0}".format(shlex.quote(str(marker)))
    worker = await system.started(
        comfyui_restart_command=shlex.join(["sh", "-c", script]),
        variables={"COMFY_CLOUD_API_KEY": "the-key", "COMFY_PROVIDERS": "self_hosted", "CUDA_VISIBLE_DEVICES": "1"},
    )
    job = await system.plain(effect)
    await worker.wait_for_log("worker.restarting_comfyui")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not marker.exists():  # noqa: ASYNC110  (files send no signal)
            await asyncio.sleep(0.02)
    # on a real machine, the command does this
    await system.simulator.restart()
    await system.completed(job)
    variables = dict(line.split("=", 1) for line in marker.read_text().splitlines() if "=" in line)
    assert (variables["COMFYUI_URL"], variables["CUDA_VISIBLE_DEVICES"]) == (system.simulator.url, "1")
    # otherwise a ComfyUI started by the command would pass these secrets to its custom nodes
    assert not {"FLEET_SECRET", "COMFY_CLOUD_API_KEY"} & variables.keys()
    assert not [name for name in variables if name.startswith("COMFYRELAY_")]


@pytest.mark.journey
async def test_job_survives_a_killed_comfyui(system: System) -> None:
    effect = await system.effect()
    stuck = system.simulator.misbehave(Stuck(class_type="ImageInvert"))
    await system.started()
    job = await system.image(effect)
    await system.until_running()
    await system.simulator.stop()
    stuck.end()
    await system.until(job, "queued")
    await system.simulator.start()
    await system.completed(job)


async def test_job_survives_a_comfyui_restart_during_a_node(system: System) -> None:
    effect = await system.effect()
    system.simulator.misbehave(Restart(class_type="ImageInvert", times=1, down_seconds=0.2))
    await system.started()
    await system.completed(await system.image(effect))


async def test_worker_can_start_before_its_comfyui(system: System) -> None:
    effect = await system.effect()
    job = await system.image(effect)
    await system.simulator.stop()
    worker = system.worker()
    await worker.start()
    await worker.wait_for_log("worker.waiting_for_comfyui")
    await worker.wait_for_log("worker.registered")
    # Operators see the worker and the reason why it gets no job.
    shown = await system.admin("GET", "/workers/gpu-1")
    assert (shown["state"], shown["leases"]) == ("no_comfyui", 0)
    assert system.simulator.url in shown["gpus"][0]["unavailable_reason"]
    await system.simulator.start()
    await system.completed(job)
    await worker.wait_for_log("worker.registered", count=2)
    assert (await system.admin("GET", "/workers/gpu-1"))["state"] in {"idle", "busy"}


async def test_worker_whose_comfyui_died_is_not_idle(system: System) -> None:
    await system.effect()
    await system.started()
    await system.simulator.stop()
    while (shown := await system.admin("GET", "/workers/gpu-1"))["state"] != "no_comfyui":
        assert shown["state"] == "idle"
        await asyncio.sleep(0.2)
    assert "Its last lines:" in shown["gpus"][0]["unavailable_reason"]


async def test_graph_that_names_a_foreign_file_is_refused(system: System) -> None:
    secret = png("#abcdef")
    (system.simulator.folder / "input" / "secret.png").write_bytes(secret)
    system.assets.append(secret)
    effect = await system.effect("nosy", invert_file("secret.png"), properties=[])
    await system.started()
    job = await system.until(await system.submit(effect), "failed")
    assert job["attempts"] == 1
    assert system.simulator.log.prompts_queued == 0


@pytest.mark.parametrize("settings", [{"BLOCK_COOLDOWN_SECONDS": "600"}])
async def test_comfyui_without_node_definitions_does_not_get_the_job_again(system: System) -> None:
    effect = await system.plain_effect()
    async with Proxy(system.simulator.url) as comfyui:
        comfyui.refuse(b"GET /object_info")
        worker = await system.started(variables={"COMFYUI_BASE_URL": comfyui.url})
        job = await system.plain(effect)
        await worker.wait_for_log("worker.job_failed", fault="worker")
        assert len(worker.logged("worker.job_leased")) == 1
        assert len((await system.admin("GET", "/workers/gpu-1"))["blocks"]) == 1
        await system.started("gpu-2")
        await system.completed(job)
        # stop the worker before its ComfyUI
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0
    assert (await system.job(job))["attempts"] == 2


async def test_run_beyond_its_limit_fails_without_a_retry(system: System) -> None:
    effect = await system.plain_effect()
    await system.admin("PATCH", "/effects/plain", {"max_run_seconds": 1})
    stuck = system.simulator.misbehave(Stuck(class_type="ImageInvert"))
    await system.started()
    job = await system.until(await system.plain(effect), "failed")
    stuck.end()
    assert (job["attempts"], "took too long" in job["error"]) == (1, True)


@pytest.mark.parametrize("simulators", [2])
async def test_run_on_a_comfyui_that_hangs_until_the_limit_is_retried_on_another_worker(system: System) -> None:
    effect = await system.plain_effect()
    await system.admin("PATCH", "/effects/plain", {"max_run_seconds": 1})
    sick, healthy = system.simulators
    stuck = sick.misbehave(Stuck(class_type="ImageInvert"))
    async with Proxy(sick.url) as comfyui:
        worker = await system.started("gpu-1", simulators=[sick], variables={"COMFYUI_BASE_URL": comfyui.url})
        job = await system.plain(effect)
        await worker.wait_for_log("worker.job_started")
        comfyui.hold()
        await worker.wait_for_log("worker.job_failed", fault="worker")
        await system.started("gpu-2", simulators=[healthy])
        await system.completed(job)
        assert (await system.job(job))["attempts"] == 2
        assert worker.logged("worker.comfyui", state="offline")
        stuck.end()
        await comfyui.restore()
        # Stop the worker before its ComfyUI.
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0


async def test_missing_input_fails_the_job_and_not_the_worker(system: System) -> None:
    effect = await system.effect()
    job = await system.image(effect)
    objects = system.folder / "server" / "objects" / "tenants"
    [file] = [path for path in objects.rglob("uploads/*") if path.is_file()]
    file.unlink()
    await system.started()
    assert (await system.until(job, "failed"))["attempts"] == 1
    await system.completed(await system.image(effect))


async def test_worker_that_cannot_write_pauses_claiming(system: System) -> None:
    """On a full disk, for example, the worker would otherwise use up the attempts of one job after another."""
    effect = await system.effect()
    worker = await system.started()
    work = system.folder / "worker" / "gpu-1" / "work"
    work.rmdir()
    work.write_text("in the way")
    job = await system.image(effect)
    await worker.wait_for_log("worker.disk_error")
    await system.until(job, "queued")
    await system.started("gpu-2")
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 2
    assert len(worker.logged("worker.job_leased")) == 1
    work.unlink()
    work.mkdir()


async def test_run_with_a_missing_output_file_is_repeated(system: System) -> None:
    """ComfyUI caches a preview with its image, but the file was removed after the first job."""
    graph = invert()
    graph["3"] = {"class_type": "PreviewImage", "inputs": {"images": ["2", 0]}}
    effect = await system.effect("preview", graph, properties=[])
    await system.started()
    for _ in range(2):
        job = await system.submit(effect)
        await system.completed(job)
        assert (await system.job(job))["attempts"] == 1
    assert system.simulator.log.count("POST", "/free") == 1
    assert system.simulator.log.prompts_queued == 3


async def operator_error(system: System, job_id: str) -> str:
    items = (await system.admin("GET", "/dispatches"))["items"]
    return str(next(item["last_error"] for item in items if item["job_id"] == job_id))
