"""A worker starts ComfyUI; jobs survive crashes of ComfyUI, and no process outlives the worker."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from comfyrelay.comfyui.processes import state_files
from comfyrelay.simulator import Stuck
from tests.support.comfyui_install import FakeInstall, wait_until_running
from tests.support.processes import Service, run_command
from tests.support.whole_system import System
from tests.support.world import PATIENCE_SECONDS

STUCK = {"name": "Stuck", "class_type": "ImageInvert"}


@pytest.fixture
def install(folder: Path) -> FakeInstall:
    return FakeInstall(folder / "ComfyUI")


def managed_settings(install: FakeInstall, **more: Any) -> dict[str, Any]:
    return {
        "simulators": [],
        "comfyui_dir": install.folder,
        "comfyui_python": sys.executable,
        "comfyui_args": "--cpu",
        **more,
    }


async def until_all_stopped(install: FakeInstall) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        # processes send no signal when they exit
        while install.running_pids:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def first_slot(system: System) -> Any:
    answer = await system.http.get("/api/slots", headers={"Authorization": f"Bearer {system.admin_token}"})
    return next(iter(answer.json()["data"]["items"]), None)


def leftover_files(worker: Service, folder: Path) -> list[Path]:
    root = folder / "worker" / worker.name / "comfyui"
    kinds = ("input", "output", "temp")
    found = [path for kind in kinds for path in root.glob(f"*/{kind}/**/*") if path.is_file()]
    # shared files are links
    return [path for path in found if not path.is_symlink()]


async def test_two_processes_on_a_gpu_run_in_parallel_and_recover(system: System, install: FakeInstall) -> None:
    effect = await system.plain_effect()
    install.behave(misbehave=[STUCK])
    worker = await system.started(**managed_settings(install, per_gpu=2))
    jobs = [await system.plain(effect), await system.plain(effect)]
    await wait_until_running(install, 2)
    # each process has its own folders and none of the worker's secrets
    outputs = {start["argv"][start["argv"].index("--output-directory") + 1] for start in install.starts}
    assert len(outputs) == 2
    assert not any("FLEET_SECRET" in start["environment"] for start in install.starts)
    install.behave()
    for start in install.starts:
        os.kill(start["pid"], signal.SIGKILL)
    for job in jobs:
        await system.completed(job)
    assert leftover_files(worker, system.folder) == []
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0
    assert install.running_pids == []


async def test_check_registers_a_worker_that_will_start_comfyui(system: System, install: FakeInstall) -> None:
    await system.plain_effect()
    # This Python lacks torch, so the check fails for another reason.
    _, text = await system.checked(**managed_settings(install))
    assert "no   control plane" not in text
    assert "workflow plain: It would be assigned" in text
    assert install.running_pids == []


@pytest.mark.parametrize("is_launcher", [False, True], ids=["itself", "its launcher"])
async def test_killed_process_completes_both_of_its_jobs_after_restart(
    system: System, install: FakeInstall, *, is_launcher: bool
) -> None:
    effect = await system.plain_effect()
    worker = await system.started(**managed_settings(install))
    # by then, the job is known to be short
    for _ in range(2):
        await system.completed(await system.plain(effect))
    [start] = install.starts
    url = f"http://127.0.0.1:{start['port']}"
    async with httpx.AsyncClient(base_url=url) as http, asyncio.timeout(PATIENCE_SECONDS):
        assert (await http.post("/simulator/misbehave", json=STUCK)).is_success
        jobs = [await system.plain(effect), await system.plain(effect)]
        while [len(runs) for runs in (await http.get("/queue")).json().values()] != [1, 1]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    os.kill(psutil.Process(start["pid"]).ppid() if is_launcher else start["pid"], signal.SIGKILL)
    for job in jobs:
        await system.completed(job)
    log = system.folder / "worker" / worker.name / "comfyui" / "comfyui-1" / "comfyui.log"
    [_, first, second] = log.read_text("utf-8").split("--- ")
    assert (first.count("got prompt"), second.count("got prompt")) == (4, 2)
    assert leftover_files(worker, system.folder) == []


async def test_process_that_alone_runs_out_of_memory_is_restarted_and_gets_jobs_again(
    system: System, install: FakeInstall
) -> None:
    effect = await system.plain_effect()
    install.behave(misbehave=[{"name": "OutOfMemory", "class_type": "ImageInvert"}])
    await system.started("gpu-1", **managed_settings(install, comfyui_args=""))
    await system.started("gpu-2")
    # Each worker gets a job.
    stuck = system.simulator.misbehave(Stuck(class_type="EmptyImage"))
    jobs = [await system.plain(effect), await system.plain(effect)]
    await system.api.until_asked("POST /api/worker/fail")
    install.behave()
    stuck.end()
    for job in jobs:
        await system.completed(job)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(install.starts) < 2 or (await system.admin("GET", "/workers/gpu-1"))["blocks"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_process_that_runs_out_of_memory_after_a_completed_job_is_restarted(
    system: System, install: FakeInstall
) -> None:
    effect = await system.plain_effect()
    await system.started(**managed_settings(install))
    await system.completed(await system.plain(effect))
    [start] = install.starts
    misbehaviour = {"name": "OutOfMemory", "class_type": "ImageInvert"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{start['port']}") as http:
        assert (await http.post("/simulator/misbehave", json=misbehaviour)).is_success
    await system.plain(effect)
    async with asyncio.timeout(PATIENCE_SECONDS):
        # processes send no signal when they start
        while len(install.starts) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert not psutil.pid_exists(start["pid"])


async def test_slots_report_the_process_count_and_its_reason(system: System, install: FakeInstall) -> None:
    effect = await system.plain_effect()
    install.behave(misbehave=[STUCK])
    await system.started(**{**managed_settings(install, per_gpu="auto"), "comfyui_args": ""})
    job = await system.plain(effect)
    await wait_until_running(install, 1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (slot := await first_slot(system)) is None or slot["packing"] is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert slot["on_gpu"] == 1
    assert slot["packing"].startswith("1 process: ")
    install.behave()
    install.kill()
    await system.completed(job)


@pytest.mark.journey
async def test_killed_worker_stops_its_comfyui_and_its_job_resumes(system: System, install: FakeInstall) -> None:
    effect = await system.plain_effect()
    install.behave(misbehave=[STUCK], child=True)
    worker = await system.started(**managed_settings(install))
    job = await system.plain(effect)
    await wait_until_running(install, 1)
    assert len(install.running_pids) == 2
    await worker.kill()
    await until_all_stopped(install)
    install.behave()
    await worker.start()
    await system.completed(job)


async def test_last_output_of_a_crashed_comfyui_is_kept_for_the_operator(system: System, install: FakeInstall) -> None:
    effect = await system.plain_effect()
    install.behave(misbehave=[STUCK])
    await system.started(**managed_settings(install))
    job = await system.plain(effect)
    await wait_until_running(install, 1)
    install.behave()
    install.kill()
    await system.completed(job)
    last_error_text = (await system.lease_of(job))["last_error"]
    assert "got prompt" in last_error_text
    # earlier output belongs to other runs, so only the operator sees it
    assert "To see the GUI go to" not in last_error_text
    assert "got prompt" not in str(await system.job(job))


async def test_commands_show_comfyui_state_and_output(system: System, install: FakeInstall) -> None:
    await system.plain_effect()
    await system.started(**managed_settings(install))
    environment = {
        "COMFYRELAY_DATA_DIR": str(system.folder / "nothing"),
        "COMFYRELAY_WORKER_DATA_DIR": str(system.folder / "worker"),
    }
    code, text = await run_command("comfyui", "list", "--json", environment=environment, log=system.folder / "list.log")
    assert code == 0
    assert '"state": "up"' in text
    code, text = await run_command(
        "comfyui", "logs", "comfyui-1", environment=environment, log=system.folder / "logs.log"
    )
    assert code == 0
    assert "To see the GUI go to" in text


async def test_real_comfyui_is_started_restarted_and_stopped(system: System) -> None:
    """`TESTS_COMFYUI_DIR` must name its folder and `TESTS_COMFYUI_PYTHON` its Python; it runs on the CPU."""
    place = os.environ.get("TESTS_COMFYUI_DIR")
    if place is None:
        pytest.skip("TESTS_COMFYUI_DIR names no ComfyUI to try this with")
    effect = await system.plain_effect()
    settings: dict[str, Any] = {
        "simulators": [],
        "comfyui_dir": place,
        "comfyui_python": os.environ.get("TESTS_COMFYUI_PYTHON"),
        "comfyui_args": "--cpu",
        "per_gpu": 2,
    }
    worker = await system.started(**settings)
    found = {note.name: (note, log) for note, log in state_files.find(system.folder / "worker")}
    assert len(found) == 2
    for _ in range(2):
        await system.completed(await system.plain(effect))
    # kill each process once while jobs wait
    jobs = [await system.plain(effect) for _ in range(4)]
    for note, _ in found.values():
        [_launcher, *own] = [pid for pid, _ in note.alive] or [0]
        for pid in own:
            os.kill(pid, signal.SIGKILL)
    for job in jobs:
        await system.completed(job)
    await worker.wait_for_log("comfyui.up", count=len(found) + 1)
    assert leftover_files(worker, system.folder) == []
    for note, log in state_files.find(system.folder / "worker"):
        assert "To see the GUI go to" in log.read_text("utf-8"), note
    await worker.kill()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while any(note.is_alive for note, _ in state_files.find(system.folder / "worker")):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    await worker.start()
    await system.completed(await system.plain(effect))


async def test_broken_environment_is_reported_and_nothing_starts(system: System, install: FakeInstall) -> None:
    venv = install.folder / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").touch()
    (venv / "bin" / "python").symlink_to("/nowhere/python3.9")
    worker = system.worker(**managed_settings(install, comfyui_python=None))
    await worker.start()
    assert await worker.ended() == 2
    assert f"The Python environment {venv} of ComfyUI cannot be used" in " ".join(worker.text().split())
    code, text = await system.checked(**managed_settings(install, comfyui_python=None))
    assert code == 1
    assert "cannot be used" in text
