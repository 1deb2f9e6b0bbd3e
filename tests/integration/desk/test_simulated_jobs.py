"""The simulator is for trials: jobs for ComfyUI wait until ComfyUI is available, and then run."""

import asyncio
from pathlib import Path

from pydantic import Field

from comfyrelay.client import Client
from comfyrelay.desk.desk import Desk
from comfyrelay.desk.settings import DeskSettings
from comfyrelay.protocol.desk import SimulatedJobs
from comfyrelay.settings import CommaSeparated
from comfyrelay.simulator import Simulator
from tests.support.chromium import PROMPT_GRAPH
from tests.support.desk import OpenDesk, make_desk, open_desk
from tests.support.graphs import invert
from tests.support.server_processes import free_port
from tests.support.world import PATIENCE_SECONDS


def desk_without_url(folder: Path, port: int, *, simulator: bool = False) -> Desk:
    """Return a desk that looks for ComfyUI at the default URL because none is configured."""

    class SettingsWithDefaultUrl(DeskSettings):
        comfyui_url: CommaSeparated = Field([f"http://127.0.0.1:{port}"])

    desk = make_desk(folder)
    desk.desk = SettingsWithDefaultUrl(simulator=simulator)
    return desk


async def add_jobs(client: Client, *, count: int = 1) -> list[str]:
    """Add jobs that run a user's graph."""
    slug = (await client.add_graph(invert(), name="mine")).data.slug
    batch = await client.submit_batch([{} for _ in range(count)], workflow_slug=slug)
    return [job.id async for job in client.jobs(batch_id=batch.id)]


async def add_example(desk: OpenDesk) -> str:
    image = await desk.client.upload(desk.desk.input_folder / "examples" / "sample.png")
    return (await desk.client.submit(effect_id=1, input_file_id=image)).id


async def wait_for_comfyui_reason(client: Client, job_id: str) -> str:
    """Wait until the job waits for ComfyUI; return the reason as text."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            waiting = (await client.job(job_id)).waiting
            if waiting is not None and waiting.reason == "no_comfyui":
                return waiting.text
            await asyncio.sleep(0.05)


async def test_waiting_jobs_run_on_a_comfyui_started_after_the_desk(tmp_path: Path, fast_reconnect: None) -> None:
    port = free_port()
    async with Simulator(port=port), open_desk(desk_without_url(tmp_path, port)) as desk:
        [before] = await add_jobs(desk.client)
        assert (await desk.ended(before)).status == "completed"
    async with open_desk(desk_without_url(tmp_path, port)) as desk:
        jobs = await add_jobs(desk.client, count=12)
        await wait_for_comfyui_reason(desk.client, jobs[0])
    async with open_desk(desk_without_url(tmp_path, port)) as desk:
        assert desk.ready.simulated_jobs is SimulatedJobs.NOTHING
        assert desk.ready.silent == desk.ready.comfyui
        # a desk that has ever had a ComfyUI does not simulate examples
        example = await add_example(desk)
        text = await wait_for_comfyui_reason(desk.client, example)
        assert f"http://127.0.0.1:{port}" in text
        assert text.endswith("The job runs as soon as ComfyUI is available.")
        assert (await desk.client.desk()).simulated_jobs == "nothing"
        async with Simulator(port=port) as simulator:
            assert [(await desk.ended(job)).status for job in [*jobs, example]] == ["completed"] * 13
            assert simulator.log.count("POST", "/prompt") == 13


async def test_examples_run_simulated_and_other_jobs_wait_for_comfyui(tmp_path: Path, fast_reconnect: None) -> None:
    port = free_port()
    found = asyncio.Event()
    closed_desk = desk_without_url(tmp_path, port)
    closed_desk.on_comfyui = found.set
    async with open_desk(closed_desk) as desk:
        assert (desk.ready.simulated_jobs, (await desk.client.desk()).simulated_jobs) == ("examples", "examples")
        [own] = await add_jobs(desk.client)
        assert (await desk.ended(await add_example(desk))).status == "completed"
        await wait_for_comfyui_reason(desk.client, own)
        async with Simulator(port=port) as simulator:
            assert (await desk.ended(own)).status == "completed"
            assert found.is_set()
            assert (await desk.client.desk()).simulated_jobs == "nothing"
            assert (await desk.ended(await add_example(desk))).status == "completed"
            assert simulator.log.count("POST", "/prompt") == 2
    async with open_desk(desk_without_url(tmp_path, port)) as desk:
        assert desk.ready.simulated_jobs is SimulatedJobs.NOTHING


async def test_simulator_runs_only_jobs_added_while_it_is_chosen(tmp_path: Path, fast_reconnect: None) -> None:
    port = free_port()
    async with open_desk(desk_without_url(tmp_path, port)) as desk:
        [for_comfyui] = await add_jobs(desk.client)
    async with open_desk(desk_without_url(tmp_path, port, simulator=True)) as desk:
        assert (await desk.client.desk()).simulated_jobs == "everything"
        tries = await add_jobs(desk.client, count=3)
        assert (await desk.ended(tries[-1])).status == "completed"
        await wait_for_comfyui_reason(desk.client, for_comfyui)
    async with Simulator(port=port) as simulator, open_desk(desk_without_url(tmp_path, port)) as desk:
        # unfinished simulated jobs are still simulated
        assert {(await desk.ended(job_id)).status for job_id in [*tries, for_comfyui]} == {"completed"}
        assert simulator.log.count("POST", "/prompt") == 1


IMAGE_TO_IMAGE = {
    "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "v1-5-pruned-emaonly-fp16.safetensors"}},
    "2": {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat", "clip": ["1", 1]}},
    "3": {"class_type": "LoadImage", "inputs": {"image": "example.png"}},
    "4": {"class_type": "VAEEncode", "inputs": {"pixels": ["3", 0], "vae": ["1", 2]}},
    "5": {
        "class_type": "KSampler",
        "inputs": {
            **{"model": ["1", 0], "positive": ["2", 0], "negative": ["2", 0], "latent_image": ["4", 0]},
            **{"seed": 1, "steps": 2, "cfg": 8, "sampler_name": "euler", "scheduler": "normal", "denoise": 0.8},
        },
    },
    "6": {"class_type": "VAEDecode", "inputs": {"samples": ["5", 0], "vae": ["1", 2]}},
    "7": {"class_type": "SaveImage", "inputs": {"images": ["6", 0], "filename_prefix": "made"}},
}


async def test_simulator_runs_the_image_to_image_template_of_comfyui(tmp_path: Path) -> None:
    async with open_desk(desk_without_url(tmp_path, free_port(), simulator=True)) as desk:
        slug = (await desk.client.add_graph(IMAGE_TO_IMAGE, name="mine")).data.slug
        image = await desk.client.upload(desk.desk.input_folder / "examples" / "sample.png")
        job = await desk.client.submit(workflow_slug=slug, input_file_id=image)
        assert (await desk.ended(job.id)).status == "completed"


async def test_rerun_uses_the_current_backend(tmp_path: Path) -> None:
    port = free_port()
    async with open_desk(desk_without_url(tmp_path, port, simulator=True)) as desk:
        slug = (await desk.client.add_graph(PROMPT_GRAPH, name="mine")).data.slug
        simulated = await desk.ended((await desk.client.submit(workflow_slug=slug)).id)
        assert simulated.status == "failed"
    async with Simulator(port=port) as simulator, open_desk(desk_without_url(tmp_path, port)) as desk:
        await desk.ended((await desk.client.retry("job", simulated.id)).data.id)
        assert simulator.log.count("POST", "/prompt")


async def test_tries_of_the_prompt_example_differ_and_are_searchable(tmp_path: Path) -> None:
    async with open_desk(desk_without_url(tmp_path, free_port())) as desk:
        request = {"effect_slug": "text-to-image", "prompts": ["a cat", "a dog"], "tries": 2}
        batch = await desk.client.add_batch(request)
        contents = []
        for job_id in [job.id async for job in desk.client.jobs(batch_id=batch.id)]:
            assert (await desk.ended(job_id)).status == "completed"
            [saved] = await desk.client.download_outputs(job_id, tmp_path / job_id)
            contents.append(saved.read_bytes())
        assert len(set(contents)) == 4
        assert len([job async for job in desk.client.jobs(search="DOG")]) == 2


async def test_simulated_result_is_not_reused_for_comfyui(tmp_path: Path) -> None:
    port = free_port()
    async with open_desk(desk_without_url(tmp_path, port, simulator=True)) as desk:
        slug = (await desk.client.add_graph(invert(), name="mine")).data.slug
        simulated = await desk.client.submit(workflow_slug=slug, reuse=True)
        assert (await desk.ended(simulated.id)).status == "completed"
        assert (await desk.client.submit(workflow_slug=slug, reuse=True)).reused_from == simulated.id
    async with open_desk(desk_without_url(tmp_path, port)) as desk:
        for_comfyui = await desk.client.submit(workflow_slug=slug, reuse=True)
        assert (for_comfyui.status, for_comfyui.reused_from) == ("queued", None)
