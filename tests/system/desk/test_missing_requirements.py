"""If ComfyUI lacks a requirement, a desk names it at once, jobs may wait for it, and no batch fails as a whole."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from comfyrelay.client import Workflow
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.simulator import Simulator
from comfyrelay.simulator.nodes.catalogue import DEFINITIONS
from tests.support import editor_files as editor
from tests.support.desk import OpenDesk, make_desk, open_desk
from tests.support.world import PATIENCE_SECONDS
from tests.system.desk.test_commands import command


async def add(desk: OpenDesk, graph: Graph) -> Workflow:
    """Add the graph unchanged, including nodes that lead to no output."""
    return await desk.client.create_workflow(
        graph,
        name="mine",
        properties=[],
        output_node_id="3",
        output_extension="png",
        output_mime_type="image/png",
    )


async def until_registered(desk: OpenDesk) -> None:
    """Wait until the worker has registered: missing requirements are unknown before that."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (now := await desk.client.now()) is None or now.worker is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_editor_file_waits_for_its_nodes_and_runs_once_they_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "mine.json"
    nodes = [editor.empty(), editor.invert(2, 1), editor.save(3, 2)]
    saved.write_text(json.dumps(editor.workflow(nodes, [(1, 1, 0, 2, 0), (2, 2, 0, 3, 0)])))
    simulator = Simulator(folder=tmp_path / "comfyui")
    async with open_desk(
        make_desk(tmp_path / "desk", comfyui_url=[await started_without(simulator, monkeypatch)])
    ) as desk:
        url = desk.ready.url
        await until_registered(desk)
        code, _, err = await command(url, "run", str(saved), "--anyway")
        no_job_yet = "It cannot become a job yet, not even with --anyway."
        assert code == 2
        assert (
            f"{no_job_yet} `comfyrelay workflows add {saved} --anyway` stores it. It can be run once a worker has"
            in err
        )
        code, _, err = await command(url, "workflows", "add", str(saved))
        assert (code, "Or add it with --anyway: then it waits" in err) == (2, True)
        assert await desk.client.workflows() == []
        code, out, _ = await command(url, "workflows", "add", str(saved), "--anyway")
        assert (code, "Waiting for nodes that no worker has: ImageInvert." in out) == (0, True)
        code, out, _ = await command(url, "workflows")
        assert "Waiting for nodes that no worker has: ImageInvert" in " ".join(out.split())
        code, _, err = await command(url, "run", "mine", "--anyway")
        assert (code, "mine: Waiting for nodes that no worker has: ImageInvert" in err, no_job_yet in err) == (
            2,
            True,
            True,
        )
        # the message does not ask for finished steps again
        code, _, err = await command(url, "batch", "add", str(saved), "--tries", "2", "--anyway")
        assert (code, f"{no_job_yet} It is stored as 'mine'. It can be run once a worker has the nodes" in err) == (
            2,
            True,
        ), err
        assert "workflows add" not in err

        await simulator.stop()
        monkeypatch.undo()
        async with Simulator(port=int(simulator.url.rpartition(":")[2]), folder=simulator.folder):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (await desk.client.workflows())[0].waiting is not None:  # noqa: ASYNC110  (they have no events)
                    await asyncio.sleep(0.02)
            code, out, err = await command(url, "run", "mine", "--set", "width=32", "--out", str(tmp_path / "made"))
            assert (code, out.strip().endswith(".png")) == (0, True), err


async def started_without(simulator: Simulator, monkeypatch: pytest.MonkeyPatch) -> str:
    """Start a simulator without `ImageInvert`; return its address."""
    monkeypatch.delitem(cast(dict[str, Any], DEFINITIONS), "ImageInvert")
    await simulator.start()
    return simulator.url
