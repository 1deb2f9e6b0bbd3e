"""The queue runs on a user's machine."""

import asyncio
import contextlib
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from comfyrelay.desk.data_folder import SHARED
from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.simulator import Simulator
from comfyrelay.system.disks import filesystem_of
from tests.support.api_calls import png
from tests.support.graphs import invert
from tests.support.processes import Service, run_command
from tests.support.server_processes import free_port
from tests.system.acceptance.script_desk import HELD, PATIENCE_SECONDS, SLOW, ScriptDesk, open_desk_at
from tests.system.desk.test_killed import DeskProcess, desk_process

pytestmark = pytest.mark.asyncio(loop_scope="session")

# The disks that a Windows computer shows inside WSL.
WSL_MOUNTS = (("/", "ext4"), ("/mnt/c", "9p"))


# Concurrency


async def test_jobs_run_one_at_a_time_by_default(desk: ScriptDesk) -> None:
    """ComfyUI never runs more than one job of the desk, script or graph, so jobs do not compete for GPU memory.

    Where: `desk/desk.py`, `desk/scripts/server.py`
    """
    desk.simulator.misbehave(HELD)
    jobs = [await desk.graph("graph"), await desk.script(), await desk.graph("another")]
    for place, job in enumerate(jobs):
        await desk.until_running(job)
        # ComfyUI has finished the job, but its output is still being stored
        for before in jobs[:place]:
            await desk.ended(before)
        queue = (await desk.http.get(f"{desk.simulator.url}/queue")).json()
        assert len(queue["queue_running"]) + len(queue["queue_pending"]) <= 1
        assert [name for name in jobs if await _is_running(desk, name)] == [job]
        desk.simulator.behave()
        desk.simulator.misbehave(HELD)
    desk.simulator.behave()
    assert [(await desk.ended(job)).status for job in jobs] == ["completed"] * 3


async def test_setting_allows_parallel_jobs(tmp_path: Path) -> None:
    """Each of two GPUs has its own ComfyUI; one setting names both servers, and two jobs run in parallel.

    Where: `comfyui_url`, `max_concurrency`
    """
    async with Simulator(folder=tmp_path / "comfyui") as one, Simulator() as other:
        for comfyui in (one, other):
            comfyui.misbehave(HELD)
        async with open_desk_at(tmp_path, one, other, shutdown_seconds=0) as script_desk:
            jobs = [await script_desk.graph(f"job {number}") for number in range(2)]
            for job_id in jobs:
                await script_desk.until_running(job_id)
            for comfyui in (one, other):
                comfyui.behave()
            assert [(await script_desk.ended(job)).status for job in jobs] == ["completed", "completed"]


async def test_oldest_job_runs_first(desk: ScriptDesk) -> None:
    """By default, jobs run first come, first served.

    Where: `services/queue/leasing.py`
    """
    desk.simulator.misbehave(HELD)
    await desk.assert_run_order([await desk.graph(f"job {number}") for number in range(4)])


async def test_higher_priority_runs_first(desk: ScriptDesk) -> None:
    """A job can have a priority, which takes precedence over age.

    Where: `--priority`; `services/queue/leasing.py`
    """
    desk.simulator.misbehave(HELD)
    running = await desk.graph("running")
    await desk.until_running(running)
    # the inputs of this job are already downloaded, so it still runs next
    fetched = await desk.graph("fetched")
    await desk.until_fetched(fetched)
    late, urgent = await desk.graph("late"), await desk.graph("urgent", priority=5)
    await desk.assert_run_order([running, fetched, urgent, late])


# Restarts


@pytest.mark.journey
async def test_queue_is_in_sqlite_and_survives_a_restart(tmp_path: Path) -> None:
    """Accepted jobs, their order, pauses, history and logs are in database files on disk.

    Where: [schema](schema.md); `store/`
    """
    async with Simulator(folder=tmp_path / "comfyui") as simulator:
        async with open_desk_at(tmp_path, simulator, shutdown_seconds=0) as script_desk:
            done = await script_desk.script()
            await script_desk.ended(done)
            log = await script_desk.log(done)
            simulator.misbehave(SLOW)
            batch_id, items = await script_desk.graphs(5)
            await script_desk.until_running(items[0])
            # so that this job still runs next
            await script_desk.until_fetched(items[1])
            await script_desk.client.pause("job", items[4], now=True)
            await script_desk.client.move("job", items[3], "top")
        rows = 0
        for path in (tmp_path / "desk").glob("*.db"):
            with contextlib.closing(sqlite3.connect(path)) as database:
                names = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
                rows += database.execute("SELECT count(*) FROM ai_jobs").fetchone()[0] if "ai_jobs" in names else 0
        assert rows == 6
        simulator.behave()
        simulator.misbehave(HELD)
        async with open_desk_at(tmp_path, simulator) as script_desk:
            assert await script_desk.status(done) == "completed"
            assert await script_desk.log(done) == log
            await script_desk.assert_run_order([items[0], items[1], items[3], items[2]])
            await script_desk.ended(items[2])
            assert await script_desk.status(items[4]) == "paused"
            assert (await script_desk.client.batch(batch_id)).counts[JobStatus.COMPLETED] == 4


async def test_interrupted_job_fails_and_is_recoverable_if_configured(tmp_path: Path) -> None:
    """If configured, a job that ran during a crash fails with the reason, and one click runs it again.

    Where: `interrupted_jobs = "fail"`
    """
    async with Simulator() as simulator, desk_process(tmp_path, simulator, interrupted_jobs="fail") as desk:
        job_id = await _killed_while_running(desk, simulator)
        await _ended(desk, job_id)
        found = await desk.client.job(job_id)
        assert (found.status, "killed" in (found.error or "")) == ("failed", True)
        again = (await desk.client.retry("job", job_id)).data
        await _ended(desk, again.id)
        assert (await desk.client.job(again.id)).status == "completed"


async def test_interrupted_job_runs_again_after_a_crash(tmp_path: Path) -> None:
    """After a crash, no job remains running and no item is lost: it runs again within its maximum of attempts.

    Where: `worker/state.py`, `worker/jobs/job.py`
    """
    async with Simulator() as simulator, desk_process(tmp_path, simulator) as desk:
        job_id = await _killed_while_running(desk, simulator)
        await _ended(desk, job_id)
        assert (await desk.client.job(job_id)).status == "completed"


# Reproducibility


async def test_waiting_job_keeps_its_inputs_and_values(desk: ScriptDesk) -> None:
    """Inputs, values, presets and workflows may change while a job waits; the job does not.

    Where: `domain/payloads.py`, `services/jobs/uploads.py`
    """
    desk.simulator.misbehave(HELD)
    await desk.until_running(await desk.graph("running"))
    picture = desk.desk.input_folder / "snapshot" / "one.png"
    picture.parent.mkdir()
    picture.write_bytes(png("#ff0000"))
    preset = await desk.client.create_preset("mine", {"frames": 2})
    wish = {"effect_slug": "image-to-clip", "input_subdir": "snapshot", "preset": "mine"}
    [clip] = await desk.items((await desk.client.add_batch(wish)).id)
    [inverted] = await desk.items(
        (await desk.client.add_batch({"effect_slug": "invert-image", "input_subdir": "snapshot"})).id
    )
    picture.write_bytes(png("#0000ff"))
    await desk.client.remove_preset(preset.id)
    black = {"width": 16, "height": 16, "batch_size": 1, "color": 0}
    async with _changed(desk, "invert-image", {"2": {"class_type": "EmptyImage", "inputs": black}}):
        desk.simulator.behave()
        assert (await desk.ended(clip)).status == "completed"
        assert {input_.key: input_.value for input_ in (await desk.about(clip)).inputs}["frames"] == 2
        assert (await desk.ended(inverted)).status == "completed"
        [saved] = await desk.client.download_outputs(inverted, picture.parent)
        # red, inverted; blue would be yellow
        assert Image.open(saved).convert("RGB").getpixel((0, 0)) == (0, 255, 255)


async def test_repeated_request_creates_one_job(desk: ScriptDesk) -> None:
    """A repeated request creates no second job.

    Where: `idempotency_key`; `services/jobs/submission/submit.py`
    """
    wish: dict[str, Any] = {**await desk.new_graph(), "idempotency_key": "once"}
    first, again = await desk.client.submit(**wish), await desk.client.submit(**wish)
    assert first.id == again.id
    assert len([job async for job in desk.client.jobs()]) == 1


# Installation


async def test_first_start_and_first_picture_need_no_setup(tmp_path: Path) -> None:
    """A trial needs no setup: no token, no database, no model and no ComfyUI.

    Where: [quickstart](../tutorial/quickstart.md)
    """
    environment = {"COMFYRELAY_DATA_DIR": str(tmp_path / "data"), "COMFYRELAY_PORT": str(free_port())}
    up = Service("desk", "up", environment=environment, log=tmp_path / "up.log")
    await up.start()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            # another process writes the file and sends no signal
            while f"http://127.0.0.1:{environment['COMFYRELAY_PORT']}" not in up.text():
                assert up.is_running, up.text()
                await asyncio.sleep(0.05)
        sample = tmp_path / "data" / "inputs" / "examples" / "sample.png"
        words = ("run", "invert-image", "--input", str(sample), "--out", str(tmp_path / "made"))
        code, output = await run_command(*words, environment=environment, log=tmp_path / "run.log")
        assert code == 0, output
        [file] = (tmp_path / "made").iterdir()
        assert Image.open(file).size == Image.open(sample).size
        up.send(signal.SIGINT)
        assert await up.ended() == 0, up.text()
    finally:
        await up.kill()


async def test_windows_drive_is_refused_in_wsl() -> None:
    """In WSL, the data is stored on a Linux disk, where SQLite is safe; a Windows drive is refused with advice.

    Where: `desk/data_folder.py`
    """
    assert filesystem_of(Path("/mnt/c/Users/me/comfyrelay"), mounts=WSL_MOUNTS) in SHARED
    assert filesystem_of(Path("/home/me/.local/share/comfyrelay"), mounts=WSL_MOUNTS) not in SHARED


async def _is_running(desk: ScriptDesk, job_id: str) -> bool:
    """Return whether a job is running and not only prefetched."""
    now = await desk.client.now()
    assert now is not None
    return job_id in [job.id for job in now.running]


async def _killed_while_running(desk: DeskProcess, simulator: Simulator) -> str:
    simulator.misbehave(SLOW)
    workflow = await desk.client.add_graph(invert(), name="mine")
    job = await desk.client.submit(workflow_slug=workflow.data.slug)
    async for event in desk.client.events(job.id):
        if event.type == "progress":
            break
    await desk.service.kill()
    simulator.behave()
    await desk.start()
    return str(job.id)


async def _ended(desk: DeskProcess, job_id: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for _event in desk.client.events(job_id):
            pass


@asynccontextmanager
async def _changed(desk: ScriptDesk, slug: str, nodes: dict[str, Any]) -> AsyncIterator[None]:
    """Replace the nodes of a workflow until the block ends."""
    url = f"/api/admin/workflows/{slug}"
    graph = (await desk.http.get(url)).json()["data"]["graph"]
    (await desk.http.patch(url, json={"graph": {**graph, **nodes}})).raise_for_status()
    try:
        yield
    finally:
        (await desk.http.patch(url, json={"graph": graph})).raise_for_status()
