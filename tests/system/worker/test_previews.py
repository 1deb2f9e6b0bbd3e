"""The preview and slot of a running job are shown, with a real server, worker and socket."""

import asyncio
import io
from typing import Any

import httpx
from PIL import Image

from comfyrelay.simulator import Slow
from tests.support.whole_system import System
from tests.support.world import PATIENCE_SECONDS

SEED = {"key": "seed", "type": "number", "placeholder": "{{SEED}}", "default_value": 7, "user_configurable": True}


def sampled() -> dict[str, Any]:
    values = {"steps": 20, "cfg": 1, "sampler_name": "euler", "scheduler": "normal", "denoise": 1, "seed": "{{SEED}}"}
    sources = {"model": ["1", 0], "positive": ["2", 0], "negative": ["2", 0], "latent_image": ["3", 0]}
    node: Any = lambda kind, **inputs: {"class_type": kind, "inputs": inputs}  # noqa: E731
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name="simulator.safetensors"),
        "2": node("CLIPTextEncode", text="a cat", clip=["1", 1]),
        "3": node("EmptyLatentImage", width=64, height=64, batch_size=1),
        "4": {**node("KSampler", **sources, **values), "_meta": {"title": "Paint the cat"}},
        "5": node("VAEDecode", samples=["4", 0], vae=["1", 2]),
        "6": node("SaveImage", images=["5", 0], filename_prefix="x"),
    }


async def look(system: System, job_id: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {system.user_token}"}
    return await system.http.get(f"/api/ai-jobs/{job_id}/preview", headers=headers)


async def slot(system: System) -> Any:
    answer = await system.http.get("/api/slots", headers={"Authorization": f"Bearer {system.admin_token}"})
    [found] = answer.json()["data"]["items"]
    return found


async def test_job_viewer_sees_its_preview_and_slot(any_system: System) -> None:
    system = any_system
    effect = await system.effect("cat", sampled(), properties=[SEED], output_node_id="6")
    await system.started()
    # By then, the sampler has ended and sent its last preview; the next comes only after a request.
    stuck = system.simulator.misbehave(Slow(class_type="VAEDecode", seconds=PATIENCE_SECONDS, steps=1000))
    job_id = await system.submit(effect)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (seen := await look(system, job_id)).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        with Image.open(io.BytesIO(seen.content)) as image:
            assert (image.format, image.size) == ("JPEG", (256, 256))
        # worker metrics come with the next heartbeat
        while (found := await slot(system))["gpu"] is None or not (found["job"] or {}).get("step"):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert (found["worker_id"], found["gpu"], found["state"], found["unavailable_reason"]) == (
        "gpu-1",
        "simulator",
        "busy",
        None,
    )
    assert 0 < found["memory_used"] < found["memory_total"]
    assert (found["job"]["id"], found["job"]["node"], found["job"]["steps"]) == (job_id, "5", 1000)
    assert found["job"]["started_at"] is not None
    stuck.end()
    await system.user("POST", f"/ai-jobs/{job_id}/cancel")
    await system.until(job_id, "canceled")
    assert (await look(system, job_id)).status_code == 204
    assert (await slot(system))["job"] is None


async def test_previews_can_be_disabled(system: System) -> None:
    effect = await system.effect("cat", sampled(), properties=[SEED], output_node_id="6")
    await system.started(preview_method="none", tidy_comfyui="false")
    await system.completed(await system.submit(effect))
    async with httpx.AsyncClient(base_url=system.simulator.url) as http:
        [run] = (await http.get("/history")).json().values()
        assert run["prompt"][3]["preview_method"] == "none"
        # ComfyUI keeps this file, so the test removes it
        for path in (system.simulator.folder / "output").rglob("*.png"):
            path.unlink()
