"""Jobs run from submission to output with a real server, a real worker and ComfyUI simulators."""

import asyncio
import io
import signal
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from comfyrelay.simulator import DropSocket, Simulator, Slow, Stuck
from comfyrelay.worker.files.inputs import asset_folder
from tests.support.api_calls import png
from tests.support.graphs import MP4, invert_file, words
from tests.support.whole_system import System
from tests.support.world import PATIENCE_SECONDS

LOGO = {"key": "logo", "type": "image", "placeholder": "{{LOGO}}"}


async def _until_in(folder: Path, content: bytes) -> None:
    """Wait until the folder has exactly one file, with this content."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while [path.read_bytes() for path in folder.iterdir()] != [content]:  # noqa: ASYNC110  (files send no signal)
            await asyncio.sleep(0.02)


def _copies(system: System, worker_id: str) -> Path:
    """Return the effect assets that the worker uploaded to ComfyUI."""
    return system.simulator.folder / "input" / "comfyrelay" / asset_folder(system.folder / "worker" / worker_id)


def colour_of(picture: bytes) -> Any:
    with Image.open(io.BytesIO(picture)) as image:
        return image.convert("RGB").getpixel((0, 0))


@pytest.mark.journey
async def test_image_job_returns_an_image(any_system: System) -> None:
    effect = await any_system.effect()
    await any_system.started()
    job = await any_system.submit(effect, png("#102030"))
    assert colour_of(await any_system.completed(job)) == (0xEF, 0xDF, 0xCF)
    assert (await any_system.job(job))["attempts"] == 1


async def test_video_job_returns_a_video(system: System) -> None:
    effect = await system.video_effect()
    await system.started()
    output = await system.completed(await system.submit(effect, MP4))
    assert output[4:8] == b"ftyp"


async def test_worker_without_background_jobs_leases_with_each_completion(system: System) -> None:
    effect = await system.effect()
    jobs = [await system.submit(effect, png("#102030")) for _ in range(3)]
    await system.started(PREFETCH="0", UPLOAD_BEHIND="0")
    for job in jobs:
        await system.completed(job)
    paths = [entry["path"] for entry in system.server.logged("request", status=200)]
    calls = [path for path in paths if path in ("/api/worker/poll", "/api/worker/complete")]
    assert calls[:3] == ["/api/worker/poll", "/api/worker/complete", "/api/worker/complete"]


async def test_text_output_is_served_as_inert_text(system: System) -> None:
    hostile = "<script>alert(1)</script> grüße"
    text: dict[str, Any] = {"output_node_id": "1", "output_extension": "txt", "output_mime_type": "text/plain"}
    effect = await system.effect("words", words(hostile), properties=[], **text)
    await system.started()
    job = await system.submit(effect)
    assert (await system.completed(job)).decode() == hostile
    [output] = (await system.job(job))["outputs"]
    assert (output["mime_type"], output["filename"][-4:]) == ("text/plain", ".txt")
    answer = await system.http.get(output["url"])
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_websocket_images_survive_a_kill_and_a_lost_connection(
    system: System,
) -> None:
    graph = invert_file("{{INPUT}}") | {"3": {"class_type": "SaveImageWebsocket", "inputs": {"images": ["2", 0]}}}
    effect = await system.effect("sends", graph)
    running = system.simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000))
    worker = await system.started()
    job = await system.submit(effect, png("#102030"))
    await system.until_running()
    await worker.wait_for_log("worker.job_started")
    await worker.kill()
    running.end()
    dropped = system.simulator.misbehave(DropSocket(class_type="ImageInvert", times=1))
    await worker.start()
    assert colour_of(await system.completed(job)) == (0xEF, 0xDF, 0xCF)
    assert dropped.happened == 1
    assert (await system.job(job))["attempts"] == 2


async def test_waiting_jobs_run_in_order(system: System) -> None:
    effect = await system.plain_effect()
    jobs = [await system.plain(effect) for _ in range(5)]
    await system.started()
    pictures = await asyncio.gather(*(system.completed(job) for job in jobs))
    assert len({colour_of(picture) for picture in pictures}) == 5


async def test_prefetched_job_moves_to_an_idle_worker(system: System) -> None:
    effect = await system.plain_effect()
    stuck = system.simulator.misbehave(Stuck(class_type="ImageInvert"))
    await system.started(prefetch=1)
    running = await system.plain(effect)
    await system.until_running()
    ahead = await system.plain(effect)
    async with asyncio.timeout(PATIENCE_SECONDS):
        # no event tells the user about a prefetch
        while not (await system.job(ahead))["is_prefetched"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    async with Simulator() as another:
        await system.started("gpu-2", simulators=[another])
        await system.completed(ahead)
        assert another.log.prompts_queued == 1
        assert (await system.job(ahead))["attempts"] == 1
        assert (await system.job(running))["status"] == "processing"
        stuck.end()
        await system.completed(running)


@pytest.mark.parametrize("by", ["default", "override"])
async def test_effect_asset_is_downloaded_and_uploaded_once(system: System, by: str) -> None:
    """This holds across jobs and worker restarts."""
    path = await system.asset(png("#445566"))
    logo = {**LOGO, "default_value": path} if by == "default" else LOGO
    overrides = {} if by == "default" else {"logo": path}
    effect = await system.effect("logo", invert_file("{{LOGO}}"), properties=[logo], overrides=overrides)
    worker = await system.started()
    for _ in range(2):
        assert colour_of(await system.completed(await system.submit(effect))) == (0xBB, 0xAA, 0x99)
    await worker.kill()
    await worker.start()
    await system.completed(await system.submit(effect))
    # the effect keeps its own copy of the uploaded file
    assert system.files.asked(f"GET /files/{path}") == 0
    assert system.files.asked("GET /files/catalogue/") == 1
    assert system.simulator.log.uploads_written == 1


async def test_comfyui_keeps_the_effect_assets_that_the_worker_caches(system: System) -> None:
    colours = ("#445566", "#665544")
    paths = [await system.asset(png(color)) for color in colours]
    effects = [
        await system.effect(f"logo-{number}", invert_file("{{LOGO}}"), properties=[{**LOGO, "default_value": path}])
        for number, path in enumerate(paths)
    ]
    copies = _copies(system, "gpu-1")
    # the cache has space for one of the assets
    worker = await system.started(asset_cache_bytes=len(png(colours[0])))
    for effect, colour in zip((*effects, effects[0]), (*colours, colours[0]), strict=True):
        await system.completed(await system.submit(effect))
        # the last job is completed for its user before the worker has cleaned up
        await _until_in(copies, png(colour))
    assert system.simulator.log.uploads_written == 3
    await worker.kill()
    for cached in system.folder.rglob("worker/*/assets/*"):
        cached.unlink()
    await worker.start()
    await worker.wait_for_log("worker.registered", count=2)
    assert list(copies.iterdir()) == []


async def test_two_workers_on_one_comfyui_folder_keep_each_others_assets(system: System) -> None:
    path = await system.asset(png("#445566"))
    effect = await system.effect("logo", invert_file("{{LOGO}}"), properties=[{**LOGO, "default_value": path}])
    await system.started()
    await system.completed(await system.submit(effect))
    async with Simulator(folder=system.simulator.folder) as second:
        another = await system.started("gpu-2", simulators=[second])
        assert [path.read_bytes() for path in _copies(system, "gpu-1").iterdir()] == [png("#445566")]
        # stop the worker before its ComfyUI
        another.send(signal.SIGTERM)
        assert await another.ended() == 0
    await system.completed(await system.submit(effect))
    assert system.simulator.log.uploads_written == 1


async def test_user_files_are_not_cached(system: System) -> None:
    """The same picture is downloaded twice, and no disk keeps it after its job."""
    effect = await system.effect()
    await system.started()
    picture = png("#010203")
    file_id = await system.upload(picture, name="cat.png", mime_type="image/png")
    for number in (1, 2):
        await system.completed(await system.submit(effect, input_file_id=file_id))
        assert system.files.asked("GET /files/tenants/") == 2 * number, "the input and the test's look at the output"
        assert system.left_on_comfyui(system.simulator) == []
    assert not [path for path in system.folder.rglob("worker/**/*.png") if path.read_bytes() == picture]


@pytest.mark.journey
async def test_cloud_job_runs_on_comfy_cloud(system: System) -> None:
    effect = await system.effect(provider="cloud")
    async with Simulator(cloud=True, api_key="the-key") as cloud:
        await system.started(
            simulators=[], comfy_providers="cloud", comfy_cloud_api_key="the-key", comfy_cloud_base_url=cloud.url
        )
        job = await system.submit(effect, png("#102030"))
        assert colour_of(await system.completed(job)) == (0xEF, 0xDF, 0xCF)
        assert cloud.log.leaked_credentials == []
    assert system.simulator.log.prompts_queued == 0


async def test_effect_asset_is_uploaded_to_comfy_cloud_once(system: System) -> None:
    """This holds across jobs and worker restarts."""
    logo = {**LOGO, "default_value": await system.asset(png("#445566"))}
    effect = await system.effect("logo", invert_file("{{LOGO}}"), properties=[logo], provider="cloud")
    async with Simulator(cloud=True, api_key="the-key") as cloud:
        worker = await system.started(
            simulators=[], comfy_providers="cloud", comfy_cloud_api_key="the-key", comfy_cloud_base_url=cloud.url
        )
        for _ in range(2):
            await system.completed(await system.submit(effect))
        await worker.kill()
        await worker.start()
        assert colour_of(await system.completed(await system.submit(effect))) == (0xBB, 0xAA, 0x99)
        assert cloud.log.count("POST", "/api/v2/assets") == 1
        assert cloud.log.leaked_credentials == []


async def test_worker_can_serve_both_providers(system: System) -> None:
    here = await system.effect("here")
    there = await system.effect("there", provider="cloud")
    async with Simulator(cloud=True, api_key="the-key") as cloud:
        await system.started(
            comfy_providers="self_hosted,cloud", comfy_cloud_api_key="the-key", comfy_cloud_base_url=cloud.url
        )
        jobs = [await system.image(here), await system.image(there)]
        for job in jobs:
            await system.completed(job)
        assert (system.simulator.log.prompts_queued, cloud.log.prompts_queued) == (1, 1)


@pytest.mark.journey
@pytest.mark.parametrize("simulators", [2])
async def test_two_gpus_of_a_worker_run_in_parallel(system: System, simulators: int) -> None:
    effect = await system.plain_effect()
    stuck = [simulator.misbehave(Stuck(class_type="ImageInvert")) for simulator in system.simulators]
    await system.started()
    jobs = [await system.plain(effect) for _ in range(2)]
    for simulator in system.simulators:
        await system.until_running(simulator)
    for handle in stuck:
        handle.end()
    for job in jobs:
        await system.completed(job)


async def test_next_input_is_fetched_while_a_job_runs(system: System) -> None:
    effect = await system.effect()
    stuck = system.simulator.misbehave(Stuck(class_type="ImageInvert"))
    await system.started()
    jobs = [await system.image(effect) for _ in range(2)]
    await system.until_running()
    await system.files.until_asked("GET /files/tenants/", 2)
    assert system.simulator.log.prompts_queued == 1
    stuck.end()
    for job in jobs:
        await system.completed(job)


async def test_worker_claims_only_jobs_of_its_workflows(system: System) -> None:
    wanted, other = await system.effect("wanted"), await system.effect("other")
    first, second = await system.image(other), await system.image(wanted)
    await system.started(workflow_slugs="wanted")
    await system.completed(second)
    assert (await system.job(first))["status"] == "queued"
    await system.started("gpu-2")
    await system.completed(first)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"fleet_secret": "wrong"}, "FLEET_SECRET"),
        ({"fleet_slug": "none"}, "FLEET_SLUG"),
        ({"comfy_providers": "cloud"}, "COMFY_CLOUD_API_KEY"),
    ],
)
async def test_wrong_setting_stops_the_worker_with_advice(system: System, wrong: dict[str, Any], message: str) -> None:
    await system.plain_effect()
    worker = system.worker(**wrong)
    await worker.start()
    assert await worker.ended() == 2
    assert message in worker.text()
    assert "Traceback" not in worker.text()
