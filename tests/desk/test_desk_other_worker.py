"""Another worker at a desk: it never runs the user's script, and is never told how it is run."""

import asyncio
import json
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from comfyrelay.desk.desk import FLEET
from comfyrelay.server.secrets import load_secrets
from comfyrelay.sim import Sim
from comfyrelay.worker.agent import Agent
from comfyrelay.worker.settings import WorkerSettings
from tests.desk.conftest import OpenDesk
from tests.desk.test_desk_script import SAVES, WAITS, about, open_desk, submit, until_said


def _secret(desk: OpenDesk) -> str:
    return load_secrets(desk.desk.settings).fleet["production"][0]


@asynccontextmanager
async def other_worker(desk: OpenDesk, folder: Path, sim: Sim) -> AsyncIterator[None]:
    settings = WorkerSettings(
        api_base_url=desk.ready.url,
        fleet_secret=_secret(desk),
        fleet_slug=FLEET,
        fleet_stage="production",
        worker_id="another",
        comfy_providers=["self_hosted"],
        comfyui_base_url=[sim.url],
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


async def test_another_worker_refuses_a_script_and_the_desks_own_runs_it(tmp_path: Path) -> None:
    # it waits until it is let go
    source = textwrap.dedent("""
        import pathlib, time
        print("here", flush=True)
        while not pathlib.Path("go").exists():
            time.sleep(0.05)
    """) + textwrap.dedent(SAVES)
    async with Sim() as sim, open_desk(tmp_path, source, desk={"finish_seconds": 0, "prefetch": 0}) as desk:
        busy = await submit(desk)
        await until_said(desk, busy, "here")
        async with other_worker(desk, tmp_path, sim):
            waiting = await submit(desk, positive="another cat")
            async with asyncio.timeout(60):
                async for event in desk.client.events(waiting):
                    if event.type == "job:retrying":
                        break
            (desk.ready.data_dir / "script" / "go").touch()
            assert (await desk.ended(waiting))["status"] == "completed"
        refused, ran = (await about(desk, waiting))["attempts"]
        assert (refused["outcome"], refused["fault"], refused["about"]) == ("failed", "worker", None)
        assert "ComfyRelayScript (script): this node is not installed" in refused["error"]
        assert ran["about"]["argv"][1] == str(tmp_path / "mine.py")
        # it was asked whether it has such a node, and ran nothing
        assert sim.log.count("GET", "/history") == 0
        assert (await desk.ended(busy))["status"] == "completed"


async def test_no_command_is_in_a_lease(tmp_path: Path) -> None:
    async with open_desk(tmp_path, WAITS, desk={"finish_seconds": 0, "prefetch": 0}) as desk:
        await until_said(desk, await submit(desk), "waiting")
        async with httpx.AsyncClient(base_url=desk.ready.url, timeout=60) as http:
            told = {"worker_id": "spy", "fleet_slug": FLEET, "stage": "production", "max_concurrency": 1}
            registered = await http.post("/api/worker/register", json=told, headers={"X-Fleet-Secret": _secret(desk)})
            http.headers["Authorization"] = f"Bearer {registered.json()['data']['token']}"
            await submit(desk, positive="another cat")
            asked = {"worker_id": "spy", "providers": ["self_hosted"], "wait_seconds": 20}
            lease = (await http.post("/api/worker/poll", json=asked)).json()["data"]["job"]
            [node] = lease["input_payload"]["workflow"].values()
            assert node["inputs"]["positive"] == "another cat"
            for secret in (sys.executable, "mine.py", "--wait", "--positive"):
                assert secret not in json.dumps(lease)
            ended = {"dispatch_id": lease["dispatch_id"], "lease_token": lease["lease_token"], "reason": "released"}
            (await http.post("/api/worker/requeue", json=ended)).raise_for_status()
            (await http.post("/api/worker/deregister", json={})).raise_for_status()
