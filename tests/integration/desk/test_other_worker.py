"""A second worker of a desk never gets the user's script, and no lease contains the script's command line."""

import asyncio
import json
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from comfyrelay.desk.startup.first_start import FLEET
from comfyrelay.server.http.secrets import load_secrets
from comfyrelay.simulator import Simulator
from comfyrelay.worker.agent import Agent
from comfyrelay.worker.settings import WorkerSettings
from tests.integration.desk.test_script_jobs import SAVES, WAITS, about_job, open_script_desk, submit, wait_for_log
from tests.support.desk import OpenDesk
from tests.support.graphs import invert


def _secret(desk: OpenDesk) -> str:
    return load_secrets(desk.desk.settings).fleet["production"][0]


@asynccontextmanager
async def other_worker(desk: OpenDesk, folder: Path, simulator: Simulator) -> AsyncIterator[None]:
    settings = WorkerSettings(
        api_base_url=desk.ready.url,
        fleet_secret=_secret(desk),
        fleet_slug=FLEET,
        fleet_stage="production",
        worker_id="another",
        comfy_providers=["self_hosted"],
        comfyui_base_url=[simulator.url],
        data_dir=folder / "another",
        metadata_url="off",
    )
    agent = Agent(settings, signals=False)
    working = asyncio.create_task(agent.run())
    try:
        yield
    finally:
        agent.stop()
        await asyncio.gather(working, return_exceptions=True)


async def test_second_worker_gets_graphs_and_no_script(tmp_path: Path) -> None:
    # the script waits until the test releases it
    source = textwrap.dedent("""
        import pathlib, time
        print("here", flush=True)
        while not pathlib.Path("go").exists():
            time.sleep(0.05)
    """) + textwrap.dedent(SAVES)
    desk_settings = {"shutdown_seconds": 0, "prefetch": 0}
    async with (
        Simulator() as own,
        Simulator() as simulator,
        open_script_desk(tmp_path, source, desk={**desk_settings, "comfyui_url": [own.url]}) as desk,
    ):
        busy = await submit(desk)
        await wait_for_log(desk, busy, "here")
        async with other_worker(desk, tmp_path, simulator):
            waiting = await submit(desk, positive="another cat")
            # the desk's own worker is busy, so the other worker skips the script and runs this job
            slug = (await desk.client.add_graph(invert(), name="mine")).data.slug
            graph_job = await desk.client.submit(workflow_slug=slug)
            assert (await desk.ended(graph_job.id)).status == "completed"
            assert (await about_job(desk, waiting)).attempts == []
            (desk.ready.data_dir / "script" / "go").touch()
            assert (await desk.ended(waiting)).status == "completed"
        [ran] = (await about_job(desk, waiting)).attempts
        assert (ran.about or {})["argv"][1] == str(tmp_path / "mine.py")
        assert simulator.log.count("POST", "/prompt") == 1
        assert (await desk.ended(busy)).status == "completed"


async def test_lease_contains_no_command(tmp_path: Path) -> None:
    async with open_script_desk(tmp_path, WAITS, desk={"shutdown_seconds": 0, "prefetch": 0}) as desk:
        await wait_for_log(desk, await submit(desk, positive="another cat"), "waiting")
        # the lease as the worker received it, stored with details of the run
        [held] = (desk.ready.data_dir / "worker").glob("**/held/*.json")
        state = json.loads(held.read_text())
        assert "--positive" in state["about"]["argv"]
        lease = state["job"]
        [node] = lease["input_payload"]["workflow"].values()
        assert node["inputs"]["positive"] == "another cat"
        for secret in (sys.executable, "mine.py", "--wait", "--positive"):
            assert secret not in json.dumps(lease)
