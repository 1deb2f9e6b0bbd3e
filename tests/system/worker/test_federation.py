"""A worker of one server can send jobs to another ComfyRelay server through the Comfy API."""

import asyncio
import io
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from comfyrelay.simulator.misbehaviour import Fail, Slow
from tests.support.api import SECRETS
from tests.support.api_calls import png
from tests.support.comfy_site import ComfySite, open_comfy_site
from tests.support.kill_points import VARIABLE, KillPoint
from tests.support.whole_system import System
from tests.support.world import PATIENCE_SECONDS, SqliteBackend

PRICE = 2
MAX_SECONDS = 20
POST = "comfyui.comfy_api.run:ApiRun._post"


@pytest.fixture
async def other(sqlite_backend: SqliteBackend, tmp_path: Path) -> AsyncIterator[ComfySite]:
    """Run the other server, which runs the jobs and charges for their seconds."""
    secrets = replace(SECRETS, signing=["the-signing-secret-of-the-other-server"])
    prices: dict[str, Any] = {"own_workflow_tokens_per_second": PRICE, "own_workflow_max_seconds": MAX_SECONDS}
    async with open_comfy_site(sqlite_backend, tmp_path, secrets=secrets, **prices) as site:
        yield site


def sends_to(site: ComfySite) -> dict[str, Any]:
    """Return the settings of a worker that sends its jobs to a server."""
    return {
        "simulators": [],
        "comfy_providers": "cloud",
        "comfy_cloud_api_key": site.token,
        "comfy_cloud_base_url": site.url,
    }


async def jobs_of(site: ComfySite) -> list[dict[str, Any]]:
    answer = await site.user.call("GET", "/api/v2/jobs")
    found: list[dict[str, Any]] = answer.json()["jobs"]
    return found


async def until_status(site: ComfySite, *statuses: str) -> dict[str, Any]:
    """Wait until the only job of the other server has one of these states."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = await jobs_of(site)
            if len(found) == 1 and found[0]["status"] in statuses:
                return found[0]
            await asyncio.sleep(0.05)


async def charged_jobs(site: ComfySite) -> set[str]:
    """Return the jobs in the ledger of the other server, whose clock stands still so that seconds cost nothing."""
    wallet = await site.user.get("/api/wallet")
    assert wallet["balance"] == 100
    return {found["job_id"] for found in wallet["transactions"] if found["job_id"] is not None}


def is_inverted(picture: bytes) -> bool:
    return Image.open(io.BytesIO(picture)).getpixel((0, 0)) == (0xEF, 0xDF, 0xCF)


async def test_output_of_the_other_server_is_the_output(system: System, other: ComfySite) -> None:
    other.simulator.misbehave(Slow(class_type="ImageInvert", seconds=2.0, steps=20, times=1))
    effect = await system.effect(provider="cloud")
    await system.started(**sends_to(other))
    job = await system.submit(effect, png("#102030"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while ((await system.job(job))["progress"] or {}).get("step") is None:  # noqa: ASYNC110  (the page polls, too)
            await asyncio.sleep(0.05)
    here = await system.completed(job)
    assert is_inverted(here)
    [there] = await jobs_of(other)
    [output] = (await other.user.call("GET", f"/api/v2/jobs/{there['id']}")).json()["outputs"]
    async with httpx.AsyncClient() as http:
        assert (await http.get(output["url"])).content == here
    assert await charged_jobs(other) == {there["id"]}


async def test_cancel_reaches_the_other_server(system: System, other: ComfySite) -> None:
    other.simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000))
    effect = await system.effect(provider="cloud")
    await system.started(**sends_to(other))
    job = await system.submit(effect, png("#102030"))
    await until_status(other, "running")
    await system.user("POST", f"/ai-jobs/{job}/cancel")
    await system.until(job, "canceled")
    await until_status(other, "canceled")


async def test_failure_text_of_the_other_server_is_shown(system: System, other: ComfySite) -> None:
    other.simulator.misbehave(Fail(class_type="ImageInvert", exception_type="ValueError", message="bad value"))
    effect = await system.effect(provider="cloud")
    await system.started(**sends_to(other))
    job = await system.submit(effect, png("#102030"))
    await system.until(job, "failed")
    assert '"error_message": "ImageInvert (2): bad value"' in (await system.lease_of(job))["last_error"]


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is a thing of POSIX")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_job_of_a_killed_worker_is_charged_once(system: System, other: ComfySite, when: Any) -> None:
    effect = await system.effect(provider="cloud")
    worker = system.worker(**sends_to(other))
    worker.environment.update(KillPoint(function=POST, when=when).environment)
    await worker.start()
    job = await system.submit(effect, png("#102030"))
    await worker.ended()
    if when == "after":
        # The job ends while no worker is waiting for it.
        await until_status(other, "succeeded")
    del worker.environment[VARIABLE]
    await worker.start()
    assert is_inverted(await system.completed(job))
    [there] = await jobs_of(other)
    assert await charged_jobs(other) == {there["id"]}
    assert other.simulator.log.prompts_queued == 1


async def test_running_job_is_continued_after_a_kill(system: System, other: ComfySite) -> None:
    running = other.simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=60000, times=1))
    effect = await system.effect(provider="cloud")
    worker = await system.started(**sends_to(other))
    job = await system.submit(effect, png("#102030"))
    await until_status(other, "running")
    await system.until_phase(job, "running")
    await worker.kill()
    await worker.start()
    await system.user("POST", f"/ai-jobs/{job}/cancel")
    await system.until(job, "canceled")
    await until_status(other, "canceled")
    assert running.happened == 1


async def test_job_that_comes_back_is_refused(system: System) -> None:
    """The worker is configured to send the jobs of a server to the same server."""
    effect = await system.effect(provider="cloud")
    await system.started(
        simulators=[],
        comfy_providers="cloud",
        comfy_cloud_api_key=system.user_token,
        comfy_cloud_base_url=system.api.url,
    )
    job = await system.submit(effect, png("#102030"))
    await system.until(job, "failed")
    assert "This job comes from this server" in (await system.lease_of(job))["last_error"]
