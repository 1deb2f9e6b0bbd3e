"""The page header reports an unreachable or unusable ComfyUI, and the use of the simulator."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, expect

from comfyrelay.simulator import Fail, Simulator
from tests.integration.desk.test_simulated_jobs import desk_without_url
from tests.support.chromium import PageDriver, open_page
from tests.support.desk import fast_reconnect, make_desk
from tests.support.server_processes import free_port

__all__ = ["fast_reconnect"]

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("built_app")]


def comfyui_notice(driver: PageDriver) -> Locator:
    return driver.page.get_by_role("status", name="ComfyUI").locator("p > span")


@pytest.mark.journey
async def test_unreachable_comfyui_is_shown_on_every_page_until_it_answers(
    chromium: Browser, tmp_path: Path, fast_reconnect: None
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    why = f"No server listens at {url}. Is ComfyUI running there?"
    async with (
        make_desk(tmp_path, comfyui_url=[url]).open() as (_worker, ready),
        open_page(chromium, ready.url) as driver,
    ):
        (job_id,) = await driver.submit("waits")
        await driver.open_queue()
        await expect(driver.page.get_by_role("status").filter(has_text=why)).to_be_visible()
        for path in ("/create", "/gallery", f"/jobs/{job_id}"):
            await driver.page.goto(path)
            await expect(comfyui_notice(driver)).to_have_text([why])
        await driver.page.get_by_role("status", name="ComfyUI").get_by_role("button", name="Settings").click()
        await expect(
            driver.page.get_by_role("dialog", name="Settings").get_by_label("Names of outputs")
        ).to_be_visible()
        await driver.page.keyboard.press("Escape")
        await driver.status_is("Waiting")
        await expect(driver.page.get_by_role("status").filter(has_text=why)).to_have_count(2)
        async with Simulator(port=port):
            await expect(comfyui_notice(driver)).to_have_count(0)
            await driver.status_is("Done")


async def test_gpu_in_a_bad_state_is_shown(chromium: Browser, tmp_path: Path) -> None:
    async with (
        Simulator() as simulator,
        make_desk(tmp_path, comfyui_url=[simulator.url]).open() as (_worker, ready),
        open_page(chromium, ready.url) as driver,
    ):
        simulator.misbehave(
            Fail(class_type="ImageInvert", message="CUDA error: an illegal memory access was encountered")
        )
        await driver.submit("met it")
        why = f"ComfyUI at {simulator.url} cannot be used: The GPU is in a bad state until ComfyUI is restarted."
        await expect(comfyui_notice(driver)).to_have_text([why])


async def test_one_unreachable_comfyui_of_two_is_named(chromium: Browser, tmp_path: Path) -> None:
    missing_url = f"http://127.0.0.1:{free_port()}"
    async with (
        Simulator() as simulator,
        make_desk(tmp_path, comfyui_url=[simulator.url, missing_url]).open() as (_worker, ready),
        open_page(chromium, ready.url) as driver,
    ):
        await expect(comfyui_notice(driver)).to_have_text(
            [f"No server listens at {missing_url}. Is ComfyUI running there?"]
        )
        (job_id,) = await driver.submit("runs on the other")
        await driver.open_job(job_id)
        await driver.status_is("Done")


async def test_simulator_is_announced_until_a_comfyui_answers(
    chromium: Browser, tmp_path: Path, fast_reconnect: None
) -> None:
    port = free_port()
    async with desk_without_url(tmp_path, port).open() as (_worker, ready), open_page(chromium, ready.url) as driver:
        await driver.choose("Invert an image")
        await expect(driver.plan).to_contain_text("Runs on the built-in simulator")
        async with Simulator(port=port):
            await expect(driver.plan).not_to_contain_text("built-in simulator")
            assert (await driver.call("GET", "/api/desk"))["simulated_jobs"] == "nothing"
