"""In a fleet or desk with two versions of ComfyUI, each job runs where its nodes exist."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from comfyrelay.comfyui.comfy_api.client import ComfyApiClient
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.simulator import Simulator
from tests.support.comfy_site import open_comfy_site, working
from tests.support.desk import make_desk, open_desk
from tests.support.graphs import invert
from tests.support.world import Backend

OLD, NEW = "0.7.0", "0.28.0"
OLD_MODEL = "old.safetensors"
# Only newer versions can save texts.
TEXT: Graph = {
    "1": {"class_type": "PrimitiveString", "inputs": {"value": "a lake"}},
    "2": {"class_type": "SaveText", "inputs": {"text": ["1", 0], "filename_prefix": "note", "format": "txt"}},
}
OLD_IMAGE: Graph = {
    "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": OLD_MODEL}},
    "2": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 1, "color": 3}},
    "4": {"class_type": "VAEEncode", "inputs": {"pixels": ["2", 0], "vae": ["1", 2]}},
    "5": {"class_type": "VAEDecode", "inputs": {"samples": ["4", 0], "vae": ["1", 2]}},
    "3": {"class_type": "SaveImage", "inputs": {"images": ["5", 0], "filename_prefix": "old"}},
}
GRAPHS: dict[str, Graph] = {"new": TEXT, "old": OLD_IMAGE, "either": invert()}


@pytest.fixture
async def versions() -> AsyncIterator[tuple[Simulator, Simulator]]:
    """Yield an older and a newer ComfyUI; only the older one has a model."""
    models = {"checkpoints": [OLD_MODEL]}
    async with Simulator(version=OLD, models=models) as old, Simulator(version=NEW) as new:
        yield old, new


def check(versions: tuple[Simulator, Simulator]) -> None:
    """Check that each version ran the two jobs that need it; the other two may run on either."""
    old, new = (simulator.log.prompts_queued for simulator in versions)
    assert (min(old, new) >= 2, old + new) == (True, 6)


async def test_job_of_a_server_runs_on_the_version_that_has_its_nodes(
    versions: tuple[Simulator, Simulator], backend: Backend, tmp_path: Path
) -> None:
    old, new = versions
    async with (
        open_comfy_site(backend, tmp_path, simulator=new) as site,
        working(site.url, tmp_path / "old", old, worker_id="gpu-old"),
        ComfyApiClient(site.token, url=site.url, poll_seconds=0.05) as client,
    ):
        results = await asyncio.gather(*(client.run(graph) for graph in GRAPHS.values() for _ in range(2)))
    assert all(result.files for result in results)
    check(versions)
    # A worker without the nodes gets no request.
    assert sum(simulator.log.count("POST", "/prompt") for simulator in versions) == len(results)


async def test_job_of_a_desk_runs_on_the_version_that_has_its_nodes(
    versions: tuple[Simulator, Simulator], tmp_path: Path
) -> None:
    urls = [simulator.url for simulator in versions]
    async with open_desk(make_desk(tmp_path / "desk", comfyui_url=urls)) as desk:
        for name, graph in GRAPHS.items():
            added = (await desk.client.add_graph(graph, name=name)).data
            for _ in range(2):
                job = await desk.ended((await desk.client.submit(workflow_slug=added.slug)).id)
                assert job.status == "completed", job.error
    check(versions)
