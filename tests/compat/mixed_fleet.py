"""Two versions of ComfyUI behind one queue: each job runs where its nodes exist, on a server and on a desk.

`python -m tests.compat` runs it after the versions. The first line of a docstring is a row of its table.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.processes.gpus import LocalGpu
from comfyrelay.comfyui.processes.options import ManagedOptions
from comfyrelay.comfyui.processes.supervisor import ProcessState, Supervisor
from tests.support.chromium import open_chromium
from tests.support.daily_loop import JourneyDesk, walk_daily_loop
from tests.support.desk import make_desk, open_desk
from tests.support.web_app import build_app
from tests.support.whole_system import open_system

FOLDER = Path(os.environ.get("COMPAT_FOLDER", "."))
OLD, NEW = "0.7.0", "0.28.0"
# Importing torch and all nodes takes long on a busy machine.
START_SECONDS = 900.0
JOBS_OF_EACH = 2


@dataclass(frozen=True)
class RunningVersion:
    url: str
    folder: Path


@pytest.fixture
async def versions(tmp_path: Path) -> AsyncIterator[dict[str, RunningVersion]]:
    async with AsyncExitStack() as stack:
        started: dict[str, Supervisor] = {}
        for version in (OLD, NEW):
            gpu = LocalGpu(key="cpu", name="CPU", memory_bytes=None, variables={})
            options = ManagedOptions(folder=FOLDER / version, arguments=("--cpu",))
            started[version] = Supervisor(options, folder=tmp_path / version, gpus=[gpu])
            await started[version].open()
            stack.push_async_callback(started[version].close)
        async with asyncio.timeout(START_SECONDS):
            # Other processes decide.
            while not all(_is_up(supervisor) for supervisor in started.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        processes = {version: supervisor.processes[0] for version, supervisor in started.items()}
        yield {version: RunningVersion(process.url, process.folder) for version, process in processes.items()}


def _is_up(supervisor: Supervisor) -> bool:
    return bool(supervisor.processes) and supervisor.processes[0].state is ProcessState.UP


def graphs() -> Mapping[str, tuple[Graph, str | None]]:
    """Graphs by name, and the version that alone can run each."""
    empty = {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 7}}
    tiles = {"image": ["1", 0], "tile_width": 64, "tile_height": 64, "overlap": 0}
    slow = {"steps": 1, "seconds": 0.01, "seed": 3}
    return {
        "either": (_saved(empty), None),
        "new-only": (_saved(empty, {"class_type": "SplitImageToTileList", "inputs": tiles}), NEW),
        "old-only": (_saved({"class_type": "CompatOldImage", "inputs": slow}), OLD),
    }


def _saved(*nodes: dict[str, Any]) -> Graph:
    last = {"images": [str(len(nodes)), 0], "filename_prefix": "mixed"}
    return {str(number): node for number, node in enumerate([*nodes, {"class_type": "SaveImage", "inputs": last}], 1)}


async def test_jobs_of_a_server_run_where_their_nodes_exist(
    versions: Mapping[str, RunningVersion], tmp_path: Path
) -> None:
    """A server with workers of 0.7.0 and 0.28.0: each job runs where its nodes exist"""
    async with open_system(tmp_path, {}) as system:
        effects: dict[str, int] = {}
        for name, (graph, _) in graphs().items():
            effects[name] = await system.effect(name, graph, properties=[], output_node_id=str(len(graph)))
        for version, running in versions.items():
            folders = {"comfyui_folders": str(running.folder)}
            address = {"COMFYUI_BASE_URL": running.url}
            await system.started(f"comfyui-{version}", simulators=[], variables=address, **folders)
        jobs = [(await system.submit(effects[name]), name) for name in graphs() for _ in range(JOBS_OF_EACH)]
        for job_id, name in jobs:
            assert (await system.completed(job_id)).startswith(b"\x89PNG")
            needed = graphs()[name][1]
            used = (await system.lease_of(job_id))["last_worker_id"]
            assert used in ([f"comfyui-{needed}"] if needed else [f"comfyui-{version}" for version in versions])
        await system.check()


async def test_jobs_of_a_desk_run_where_their_nodes_exist(
    versions: Mapping[str, RunningVersion], tmp_path: Path
) -> None:
    """A desk with ComfyUI 0.7.0 and 0.28.0: each job runs where its nodes exist"""
    urls = ",".join(running.url for running in versions.values())
    async with open_desk(make_desk(tmp_path / "desk", comfyui_url=urls)) as desk:
        jobs: list[tuple[str, str]] = []
        for name, (graph, _) in graphs().items():
            added = (await desk.client.add_graph(graph, name=name)).data
            submitted = [await desk.client.submit(workflow_slug=added.slug) for _ in range(JOBS_OF_EACH)]
            jobs += [(job.id, name) for job in submitted]
        for job_id, name in jobs:
            job = await desk.ended(job_id)
            assert job.status == "completed", job.error
            needed = graphs()[name][1]
            about = await desk.client.about(job_id)
            assert about is not None
            usable = [versions[needed]] if needed else versions.values()
            assert about.comfyui_url in {running.url for running in usable}


async def test_daily_loop_of_a_desk_with_two_versions(versions: Mapping[str, RunningVersion], tmp_path: Path) -> None:
    """A desk in Chromium with ComfyUI 0.7.0 and 0.28.0: the same loop"""
    build_app()
    urls = ",".join(running.url for running in versions.values())
    async with open_chromium() as browser:
        await walk_daily_loop(JourneyDesk(tmp_path, comfyui_url=urls), browser)
