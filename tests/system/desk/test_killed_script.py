"""The desk is killed while a user's script runs: its processes stop, and its runs are recovered."""

import asyncio
import json
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from comfyrelay.simulator import Simulator, Slow
from tests.support.api_calls import png
from tests.support.graphs import invert
from tests.support.script_runs import is_alive, pids_in, until
from tests.system.desk.test_killed import DeskProcess, desk_process

# A script that knows nothing about ComfyRelay: it queues a graph, starts a child that ignores signals, and waits for
# the file.
SCRIPT = """
    import json, os, signal, subprocess, sys, time, urllib.request
    from pathlib import Path

    Path("pids").mkdir(exist_ok=True)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True)
    for pid in (os.getpid(), child.pid):
        Path("pids", str(pid)).touch()
    base = os.environ["COMFYUI_BASE_URL"]
    graph = json.loads(GRAPH)
    next(iter(graph.values()))["inputs"]["text"] = "masterpiece, " + sys.argv[sys.argv.index("--positive") + 1]
    body = json.dumps({"prompt": graph, "client_id": "mine"}).encode()
    request = urllib.request.Request(base + "/prompt", body, {"Content-Type": "application/json"})
    prompt_id = json.load(urllib.request.urlopen(request))["prompt_id"]
    print("queued", prompt_id, flush=True)
    while not (found := json.load(urllib.request.urlopen(f"{base}/history/{prompt_id}")).get(prompt_id)):
        time.sleep(0.05)
    path = Path("made.png").absolute()
    path.write_bytes(PICTURE)
    print("Saved:", path)
"""


@asynccontextmanager
async def desk_with_script(folder: Path, simulator: Simulator, **settings: str) -> AsyncIterator[DeskProcess]:
    named = f"PICTURE = {png('#112233')!r}\nGRAPH = {json.dumps(invert())!r}\n"
    (folder / "mine.py").write_text(named + textwrap.dedent(SCRIPT), "utf-8")
    config = folder / "comfyrelay.toml"
    config.write_text(
        f"[desk.script]\nscript = {json.dumps(str(folder / 'mine.py'))}\noutput_extension = 'png'\n"
        f"working_folder = {json.dumps(str(folder))}\ngrace_seconds = 0.3\n"
    )
    async with desk_process(folder, simulator, config=config, **settings) as desk:
        yield desk


async def prompts_in(simulator: Simulator) -> set[str]:
    async with httpx.AsyncClient(base_url=simulator.url) as http:
        queue = (await http.get("/queue")).json()
    return {item[1] for item in (*queue["queue_running"], *queue["queue_pending"])}


async def killed_during_script(desk: DeskProcess, simulator: Simulator, *, is_known: bool = True) -> tuple[str, str]:
    """Kill the desk; return the job and the prompt that its script left, which the desk had recorded if `is_known`."""
    payload = {"positive": "a cat in the rain", "input_subdir": "examples"}
    job = await desk.client.submit(workflow_slug="script", input_payload=payload)
    async with asyncio.timeout(60):
        async for log in desk.client.logs(job.id, is_followed=True):
            if log.line.startswith("queued "):
                break
        [prompt_id] = await prompts_in(simulator)
        while is_known and prompt_id not in held_by(desk).read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await desk.service.kill()
    if not is_known:
        # as if the desk had been killed at once: it checks for prompts of a script every half second
        held = json.loads(held_by(desk).read_text())
        held_by(desk).write_text(json.dumps(held | {"runs": held["runs"][:1]}))
    return job.id, prompt_id


def held_by(desk: DeskProcess) -> Path:
    [held] = (desk.folder / "data" / "worker" / "desk" / "held").glob("*.json")
    return held


async def ended(desk: DeskProcess, job_id: str) -> str:
    async with asyncio.timeout(60):
        async for _event in desk.client.events(job_id):
            pass
    return str((await desk.client.job(job_id)).status)


@pytest.mark.journey
async def test_script_and_its_children_die_with_the_desk(tmp_path: Path) -> None:
    async with Simulator() as simulator:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000))
        async with desk_with_script(tmp_path, simulator) as desk:
            await killed_during_script(desk, simulator)
            pids = pids_in(tmp_path / "pids")
            assert len(pids) == 2
            await until(lambda: not any(map(is_alive, pids)))


@pytest.mark.parametrize(("then", "is_known"), [("fail", True), ("requeue", True), ("requeue", False)])
async def test_prompt_of_a_killed_script_is_stopped_before_the_next(tmp_path: Path, then: str, is_known: bool) -> None:
    async with Simulator() as simulator:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000, times=1))
        async with desk_with_script(tmp_path, simulator, interrupted_jobs=then) as desk:
            job_id, orphan = await killed_during_script(desk, simulator, is_known=is_known)
            assert await prompts_in(simulator) == {orphan}
            await desk.start()
            # the job could not finish while the first prompt, which takes ten minutes, occupies ComfyUI
            if then == "fail":
                assert await ended(desk, job_id) == "failed"
                assert orphan not in await prompts_in(simulator)
                job_id = (await desk.client.retry("job", job_id)).data.id
            assert await ended(desk, job_id) == "completed"
            await desk.agrees()


async def test_prefetched_script_job_costs_no_attempt(tmp_path: Path) -> None:
    async with Simulator() as simulator:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000, times=1))
        async with desk_with_script(tmp_path, simulator, interrupted_jobs="fail") as desk:
            # both have the same prompt text, so a leftover of the first could be mistaken for the prompt of the second
            payload = {"positive": "a cat in the rain", "input_subdir": "examples"}
            first, second = [
                (await desk.client.submit(workflow_slug="script", input_payload=payload)).id for _ in range(2)
            ]
            folder = desk.folder / "data" / "worker" / "desk" / "held"
            async with asyncio.timeout(60):
                async for log in desk.client.logs(first, is_followed=True):
                    if log.line.startswith("queued "):
                        break
                while len(list(folder.glob("*.json"))) < 2:  # noqa: ASYNC110  (files send no signal)
                    await asyncio.sleep(0.05)
            await desk.service.kill()
            await desk.start()
            assert await ended(desk, first) == "failed"
            assert await ended(desk, second) == "completed"
