"""Missing requirements are named at once, a job can wait for them, and they never fail a whole batch."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from comfyrelay.client import Batch, Workflow
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.errors import MissingOnWorkers
from comfyrelay.simulator import Fail, Simulator
from tests.support.desk import OpenDesk, make_desk, open_desk
from tests.support.graphs import invert
from tests.support.world import PATIENCE_SECONDS

RARE = "rare.safetensors"


def with_model(name: str) -> Graph:
    """Return a graph that names a model and runs without it: the node that loads it is not connected."""
    return {**invert(), "9": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": name}}}


async def create_workflow(desk: OpenDesk, graph: Graph) -> Workflow:
    """Add the graph unchanged, with its unconnected node."""
    return await desk.client.create_workflow(
        graph,
        name="mine",
        properties=[],
        output_node_id="3",
        output_extension="png",
        output_mime_type="image/png",
    )


async def wait_for_worker(desk: OpenDesk) -> None:
    """Wait until the worker has registered: until then, missing requirements are unknown."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (now := await desk.client.now()) is None or now.worker is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def wait_for_reason(desk: OpenDesk, job_id: str, reason: str) -> str:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            job = await desk.client.job(job_id)
            if job.waiting is not None and job.waiting.reason == reason:
                return job.waiting.text
            await asyncio.sleep(0.02)


async def test_job_waits_for_a_missing_model_and_then_runs(tmp_path: Path) -> None:
    simulator = Simulator(folder=tmp_path / "comfyui")
    await simulator.start()
    port = int(simulator.url.rpartition(":")[2])
    async with open_desk(make_desk(tmp_path / "desk", comfyui_url=[simulator.url])) as desk:
        await wait_for_worker(desk)
        fancy = {"class_type": "FancySampler", "inputs": {"model": ["9", 0]}}
        graph = {**with_model(RARE), "8": fancy}
        both = (await desk.client.add_graph(graph, name="both")).data
        assert both.missing is not None
        assert both.missing.text == f"The worker is missing the node FancySampler and the model {RARE}."
        assert [(item.kind, item.name) for item in both.missing.items] == [("node", "FancySampler"), ("model", RARE)]

        rare = await create_workflow(desk, with_model(RARE))
        with pytest.raises(MissingOnWorkers, match="Install what is missing, or add it anyway") as refused:
            await desk.client.submit(workflow_slug=rare.slug)
        assert [item["name"] for item in refused.value.missing] == [RARE]
        with pytest.raises(MissingOnWorkers):
            await desk.client.submit_batch([{}, {}], workflow_slug=rare.slug)
        job = await desk.client.submit(workflow_slug=rare.slug, wait_for_missing=True)
        text = await wait_for_reason(desk, job.id, "missing")
        assert text == f"Waiting for a worker with the model {RARE}."
        # other jobs are not delayed
        plain = (await desk.client.add_graph(invert(), name="plain")).data
        assert plain.missing is None
        assert (await desk.ended((await desk.client.submit(workflow_slug=plain.slug)).id)).status == "completed"

        await simulator.stop()
        async with Simulator(port=port, folder=simulator.folder, models={"checkpoints": [RARE]}):
            found = await desk.ended(job.id)
        assert (found.status, found.attempts) == ("completed", 1)


async def test_missing_model_is_refused_with_the_source_of_its_author(tmp_path: Path) -> None:
    async with Simulator() as simulator, open_desk(make_desk(tmp_path, comfyui_url=[simulator.url])) as desk:
        await wait_for_worker(desk)
        graph = with_model(f"folder/{RARE}")
        url = f"https://example.com/{RARE}"
        graph["9"]["_meta"] = {"models": [{"name": RARE, "url": url, "directory": "checkpoints"}]}
        slug = (await create_workflow(desk, graph)).slug
        with pytest.raises(MissingOnWorkers) as refused:
            await desk.client.submit(workflow_slug=slug)
        assert f"The author gets folder/{RARE} from {url}, folder checkpoints." in str(refused.value)
        assert [item["source"] for item in refused.value.missing] == [f"{url}, folder checkpoints"]


async def test_invalid_choice_fails_once_and_holds_the_batch(tmp_path: Path) -> None:
    async with Simulator() as simulator, open_desk(make_desk(tmp_path, comfyui_url=[simulator.url])) as desk:
        scale = {"image": ["1", 0], "upscale_method": "magic", "width": 8, "height": 8, "crop": "disabled"}
        slug = (await create_workflow(desk, {**invert(), "2": {"class_type": "ImageScale", "inputs": scale}})).slug
        batch = await desk.client.submit_batch([{"label": f"item {n}"} for n in range(24)], workflow_slug=slug)
        for _ in range(2):
            # prefetched items may fail as well
            held = await wait_for_batch(
                desk,
                batch.id,
                lambda batch: batch.held is not None and batch.counts["failed"] + batch.counts["paused"] == 24,
            )
            assert held.counts["failed"] <= 3
            assert "'magic' is not a choice of input 'upscale_method'" in str(held.held)
            assert (await desk.client.resume("batch", batch.id)).message == "24 jobs resumed."


async def test_unreadable_model_fails_one_item_and_holds_the_others(tmp_path: Path) -> None:
    async with Simulator() as simulator, open_desk(make_desk(tmp_path, comfyui_url=[simulator.url])) as desk:
        simulator.misbehave(Fail(class_type="ImageInvert", message="ERROR: Could not detect the type of this model."))
        slug = (await create_workflow(desk, invert())).slug
        batch = await desk.client.submit_batch([{"label": f"item {n}"} for n in range(6)], workflow_slug=slug)
        held = await wait_for_batch(
            desk,
            batch.id,
            lambda batch: batch.held is not None and batch.counts["failed"] + batch.counts["paused"] == 6,
        )
        assert held.counts["failed"] <= 3
        assert "Could not detect the type of this model" in str(held.held)


async def wait_for_batch(desk: OpenDesk, batch_id: str, condition: Callable[[Batch], bool]) -> Batch:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition(batch := await desk.client.batch(batch_id)):  # noqa: ASYNC110  (batches have no events)
            await asyncio.sleep(0.02)
    return batch
