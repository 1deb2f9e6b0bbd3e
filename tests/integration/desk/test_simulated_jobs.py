"""The simulator is for test runs: jobs meant for ComfyUI wait for it, and run when it is available."""

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


def usual_place(folder: Path, port: int, *, simulator: bool = False) -> Desk:
    """A desk without a named ComfyUI: it is searched in its usual place, and found."""

    class Usual(DeskSettings):
        comfyui_url: CommaSeparated = Field([f"http://127.0.0.1:{port}"])

    desk = make_desk(folder)
    desk.desk = Usual(simulator=simulator)
    return desk


async def add(client: Client, *, count: int = 1) -> list[str]:
    """Add jobs of a user graph."""
    slug = (await client.add_graph(invert(), name="mine")).data.slug
    batch = await client.submit_batch([{} for _ in range(count)], workflow_slug=slug)
    return [job.id async for job in client.jobs(batch_id=batch.id)]


async def add_example(desk: OpenDesk) -> str:
    image = await desk.client.upload(desk.desk.input_folder / "examples" / "sample.png")
    return (await desk.client.submit(effect_id=1, input_file_id=image)).id


async def until_awaited(client: Client, job_id: str) -> str:
    """Wait until the job waits for ComfyUI; return the reason as text."""
    async with asyncio.timeout(30):
        while True:
            waiting = (await client.job(job_id)).waiting
            if waiting is not None and waiting.reason == "no_comfyui":
                return waiting.text
            await asyncio.sleep(0.05)


async def test_waiting_jobs_run_on_a_comfyui_started_after_the_desk(tmp_path: Path, fast_reconnect: None) -> None:
    port = free_port()
    async with Simulator(port=port), open_desk(usual_place(tmp_path, port)) as desk:
        [before] = await add(desk.client)
        assert (await desk.ended(before)).status == "completed"
    async with open_desk(usual_place(tmp_path, port)) as desk:
        jobs = await add(desk.client, count=12)
        await until_awaited(desk.client, jobs[0])
    async with open_desk(usual_place(tmp_path, port)) as desk:
        assert desk.ready.simulated_jobs is SimulatedJobs.NOTHING
        assert desk.ready.silent == desk.ready.comfyui
        # not even an example: a user with a ComfyUI wants that
        example = await add_example(desk)
        text = await until_awaited(desk.client, example)
        assert f"http://127.0.0.1:{port}" in text
        assert text.endswith("The job runs as soon as ComfyUI is available.")
        assert (await desk.client.desk()).simulated_jobs == "nothing"
        async with Simulator(port=port) as simulator:
            assert [(await desk.ended(job)).status for job in [*jobs, example]] == ["completed"] * 13
            assert simulator.log.count("POST", "/prompt") == 13


async def test_examples_run_simulated_and_other_jobs_wait_for_comfyui(tmp_path: Path, fast_reconnect: None) -> None:
    port = free_port()
    came = asyncio.Event()
    made = usual_place(tmp_path, port)
    made.on_comfyui = came.set
    async with open_desk(made) as desk:
        assert (desk.ready.simulated_jobs, (await desk.client.desk()).simulated_jobs) == ("examples", "examples")
        [own] = await add(desk.client)
        assert (await desk.ended(await add_example(desk))).status == "completed"
        await until_awaited(desk.client, own)
        async with Simulator(port=port) as simulator:
            assert (await desk.ended(own)).status == "completed"
            assert came.is_set()
            assert (await desk.client.desk()).simulated_jobs == "nothing"
            assert (await desk.ended(await add_example(desk))).status == "completed"
            assert simulator.log.count("POST", "/prompt") == 2
    async with open_desk(usual_place(tmp_path, port)) as desk:
        assert desk.ready.simulated_jobs is SimulatedJobs.NOTHING


async def test_simulator_runs_only_jobs_added_while_it_is_chosen(tmp_path: Path, fast_reconnect: None) -> None:
    port = free_port()
    async with open_desk(usual_place(tmp_path, port)) as desk:
        [meant] = await add(desk.client)
    async with open_desk(usual_place(tmp_path, port, simulator=True)) as desk:
        assert (await desk.client.desk()).simulated_jobs == "everything"
        tries = await add(desk.client, count=3)
        assert (await desk.ended(tries[-1])).status == "completed"
        await until_awaited(desk.client, meant)
    async with Simulator(port=port) as simulator, open_desk(usual_place(tmp_path, port)) as desk:
        # an unfinished simulated job stays one
        assert {(await desk.ended(each)).status for each in [*tries, meant]} == {"completed"}
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


async def test_template_of_comfyui_for_image_to_image_can_be_tried(tmp_path: Path) -> None:
    async with open_desk(usual_place(tmp_path, free_port(), simulator=True)) as desk:
        slug = (await desk.client.add_graph(IMAGE_TO_IMAGE, name="mine")).data.slug
        image = await desk.client.upload(desk.desk.input_folder / "examples" / "sample.png")
        job = await desk.client.submit(workflow_slug=slug, input_file_id=image)
        assert (await desk.ended(job.id)).status == "completed"


async def test_rerun_uses_the_current_backend(tmp_path: Path) -> None:
    port = free_port()
    async with open_desk(usual_place(tmp_path, port, simulator=True)) as desk:
        slug = (await desk.client.add_graph(PROMPT_GRAPH, name="mine")).data.slug
        tried = await desk.ended((await desk.client.submit(workflow_slug=slug)).id)
        assert tried.status == "failed"
    async with Simulator(port=port) as simulator, open_desk(usual_place(tmp_path, port)) as desk:
        await desk.ended((await desk.client.retry("job", tried.id)).data.id)
        assert simulator.log.count("POST", "/prompt")


async def test_tries_of_the_example_with_a_prompt_differ(tmp_path: Path) -> None:
    async with open_desk(usual_place(tmp_path, free_port())) as desk:
        wish = {"effect_slug": "text-to-image", "prompts": ["a cat", "a dog"], "tries": 2}
        batch = await desk.client.add_batch(wish)
        made = []
        for each in [job.id async for job in desk.client.jobs(batch_id=batch.id)]:
            assert (await desk.ended(each)).status == "completed"
            [saved] = await desk.client.download_outputs(each, tmp_path / each)
            made.append(saved.read_bytes())
        assert len(set(made)) == 4
        # prompts can be searched
        found = [job.label async for job in desk.client.jobs(search="DOG")]
        assert len(found) == 2


async def test_simulated_result_is_not_reused_for_comfyui(tmp_path: Path) -> None:
    port = free_port()
    async with open_desk(usual_place(tmp_path, port, simulator=True)) as desk:
        slug = (await desk.client.add_graph(invert(), name="mine")).data.slug
        tried = await desk.client.submit(workflow_slug=slug, reuse=True)
        assert (await desk.ended(tried.id)).status == "completed"
        assert (await desk.client.submit(workflow_slug=slug, reuse=True)).reused_from == tried.id
    async with open_desk(usual_place(tmp_path, port)) as desk:
        meant = await desk.client.submit(workflow_slug=slug, reuse=True)
        assert (meant.status, meant.reused_from) == ("queued", None)
