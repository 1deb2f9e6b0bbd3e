"""Editor files run on a server with a fleet, because workers upload their node definitions."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from comfyrelay.simulator import Simulator
from tests.support import commands
from tests.support.editor_files import empty, invert, save, workflow
from tests.support.whole_system import FLEET, System
from tests.support.world import PATIENCE_SECONDS

SAVED = workflow([empty(), invert(2, 1), save(3, 2)], [(1, 1, 0, 2, 0), (2, 2, 0, 3, 0)])


async def command(system: System, *words: str) -> Any:
    """Run a command and parse its JSON; the invariant checks include its jobs."""
    env = {
        "COMFYRELAY_URL": system.api.url,
        "COMFYRELAY_TOKEN": system.user_token,
        "COMFYRELAY_DATA_DIR": str(system.folder / "nothing"),
        "HOME": str(system.folder),
    }
    ran = await commands.run(*words, "--json", env=env)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


async def jobs_of(system: System, batch_id: str) -> Sequence[Any]:
    found = (await system.user("GET", f"/ai-jobs?batch_id={batch_id}"))["items"]
    system._submitted.extend(job["id"] for job in found)
    return [await system.until(job["id"], "completed") for job in found]


@pytest.mark.parametrize(("settings", "simulators"), [({"DEFAULT_FLEET": FLEET}, 2)])
async def test_editor_file_runs_on_a_fleet_as_on_a_desk(any_system: System, tmp_path: Path) -> None:
    system = any_system
    (tmp_path / "editor.json").write_text(json.dumps(SAVED))
    # this is the server's first workflow: workers had registered before and sent the node definitions
    first, second = [
        await system.started(f"gpu-{number}", simulators=[simulator])
        for number, simulator in enumerate(system.simulators, start=1)
    ]
    # both workers have the same nodes and models, so only one uploads them
    await system.api.until_asked("POST /api/worker/definitions", 2)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (sent := [*first.logged("worker.definitions_sent"), *second.logged("worker.definitions_sent")]):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert {report["sha256"] for report in sent} == {sent[0]["sha256"]}

    words = ("run", str(tmp_path / "editor.json"), "--set", "1.width=40", "--out", str(tmp_path / "made"))
    ran = await command(system, *words)
    system._submitted.append(ran["id"])
    [picture] = ran["saved"]
    assert Image.open(picture).size == (40, 48)
    # the picture contains the graph of its run
    batch = await command(system, "batch", "add", str(tmp_path / "editor.json"), "--tries", "4", "--label", "four")
    assert len(await jobs_of(system, batch["id"])) == 4
    again = await command(system, "run", picture, "--out", str(tmp_path / "again"))
    system._submitted.append(again["id"])
    assert Image.open(again["saved"][0]).size == (40, 48)
    # The workflows of the two runs were temporary, but the workflow of the batch is kept.
    assert len((await system.user("GET", "/workflows"))["items"]) == 1


async def test_changed_node_definitions_are_uploaded_again(system: System) -> None:
    await system.plain_effect()
    worker = await system.started(poll_wait_seconds=0.5)
    await worker.wait_for_log("worker.definitions_sent")
    port, folder = int(system.simulator.url.rpartition(":")[2]), system.simulator.folder
    await system.simulator.stop()
    async with Simulator(port=port, folder=folder, models={"checkpoints": ["new.safetensors"]}):
        await worker.wait_for_log("worker.definitions_sent", count=2)
        # The nodes and models are reported first, so that no workflow looks runnable too early.
        assert (await system.admin("GET", "/workers/gpu-1"))["capabilities"]["models"] == ["new.safetensors"]
    graph = {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "new.safetensors"}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    }
    workflow = await system.user("POST", "/workflows", {"graph": graph})
    assert workflow["properties"][0]["choices"] == ["new.safetensors"]


async def test_jobs_run_if_the_server_rejects_node_definitions(system: System) -> None:
    """An older server or a proxy may reject them."""
    effect = await system.plain_effect()
    system.api.refuse(b"POST /api/worker/definitions")
    await system.started()
    await system.completed(await system.plain(effect))
    assert system.api.asked("PUT /api/worker/definitions") == 0
