"""What every page says at its head while a ComfyUI does not answer or cannot be used; and what runs on the simulator."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, expect

from comfyrelay.simulator import Fail, Simulator
from tests.integration.desk.test_simulated_jobs import usual_place
from tests.support.chromium import Looking, open_page
from tests.support.desk import make_desk, soon_back
from tests.support.server_processes import free_port

__all__ = ["soon_back"]

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("built_app")]


def said(looking: Looking) -> Locator:
    """Of ComfyUI, at the head of the page."""
    return looking.page.get_by_role("status", name="ComfyUI").locator("p")


@pytest.mark.journey
async def test_it_is_said_wherever_one_is_and_of_what_waits_until_it_comes(
    chromium: Browser, tmp_path: Path, soon_back: None
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    why = f"No server listens at {url}. Is ComfyUI running there?"
    async with (
        make_desk(tmp_path, comfyui_url=[url]).open() as (_worker, ready),
        open_page(chromium, ready.url) as looking,
    ):
        (job_id,) = await looking.submit("waits")
        await looking.open_queue()
        await expect(looking.page.get_by_role("status").filter(has_text=why)).to_be_visible()
        for path in ("/create", "/gallery", f"/jobs/{job_id}"):
            await looking.page.goto(path)
            await expect(said(looking)).to_have_text([why])
        await looking.status_is("Waiting")
        await expect(looking.page.get_by_role("status").filter(has_text=why)).to_have_count(2)
        async with Simulator(port=port):
            await expect(said(looking)).to_have_count(0)
            await looking.status_is("Done")


async def test_it_is_said_that_the_gpu_is_in_a_bad_state(chromium: Browser, tmp_path: Path) -> None:
    async with (
        Simulator() as simulator,
        make_desk(tmp_path, comfyui_url=[simulator.url]).open() as (_worker, ready),
        open_page(chromium, ready.url) as looking,
    ):
        simulator.misbehave(
            Fail(class_type="ImageInvert", message="CUDA error: an illegal memory access was encountered")
        )
        await looking.submit("met it")
        why = f"ComfyUI at {simulator.url} cannot be used: The GPU is in a bad state until ComfyUI is restarted."
        await expect(said(looking)).to_have_text([why])


async def test_the_one_of_two_that_is_missed_is_named(chromium: Browser, tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    async with (
        Simulator() as simulator,
        make_desk(tmp_path, comfyui_url=[simulator.url, nobody]).open() as (_worker, ready),
        open_page(chromium, ready.url) as looking,
    ):
        await expect(said(looking)).to_have_text([f"No server listens at {nobody}. Is ComfyUI running there?"])
        (job_id,) = await looking.submit("runs on the other")
        await looking.open_job(job_id)
        await looking.status_is("Done")


async def test_what_is_tried_out_is_said_until_a_comfyui_comes(
    chromium: Browser, tmp_path: Path, soon_back: None
) -> None:
    port = free_port()
    async with usual_place(tmp_path, port).open() as (_worker, ready), open_page(chromium, ready.url) as looking:
        await looking.choose("Invert an image")
        await expect(looking.plan).to_contain_text("Runs on the built-in simulator")
        async with Simulator(port=port):
            await expect(looking.plan).not_to_contain_text("simulator")
            assert (await looking.call("GET", "/api/desk"))["trying_out"] == "nothing"
