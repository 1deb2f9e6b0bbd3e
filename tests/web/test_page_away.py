"""The page of a desk whose ComfyUI does not answer, or cannot be used."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from comfyrelay.sim import Fail, Sim
from tests.api.processes import free_port
from tests.desk.conftest import make_desk
from tests.web.looking import Looking, open_page

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def desk_url(tmp_path: Path) -> AsyncIterator[str]:
    nobody = f"http://127.0.0.1:{free_port()}"
    async with make_desk(tmp_path / "desk", comfyui_url=[nobody]).open() as (_worker, ready):
        yield ready.url


async def test_the_page_says_so_at_its_head_and_of_what_waits(looking: Looking) -> None:
    await expect(looking.page.locator("#machine")).to_have_text(
        f"Nobody answers at {looking.comfyui}: is ComfyUI running there?"
    )
    await expect(looking.page.locator("#machine")).to_have_attribute("data-kind", "bad")
    await looking.submit("waits")
    await looking.rows.locator(".name").click()
    await looking.status_is("pending")
    await expect(looking.pane.locator(".words")).to_contain_text(
        f"Nobody answers at {looking.comfyui}: is ComfyUI running there?"
    )


async def test_the_page_says_that_the_gpu_is_in_a_bad_state(chromium: Browser, tmp_path: Path) -> None:
    async with (
        Sim() as sim,
        make_desk(tmp_path, comfyui_url=[sim.url]).open() as (_worker, ready),
        open_page(chromium, ready.url) as looking,
    ):
        sim.misbehave(Fail(class_type="ImageInvert", message="CUDA error: an illegal memory access was encountered"))
        await looking.submit("met it")
        why = f"ComfyUI at {sim.url} cannot be used: The GPU is in a bad state until ComfyUI is restarted."
        await expect(looking.page.locator("#machine")).to_have_text(why)
        await expect(looking.page.locator("#machine")).to_have_attribute("data-kind", "bad")


async def test_the_page_names_the_one_of_two_that_is_missed(chromium: Browser, tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    async with (
        Sim() as sim,
        make_desk(tmp_path, comfyui_url=[sim.url, f"http://{nobody}"]).open() as (_worker, ready),
        open_page(chromium, ready.url) as looking,
    ):
        await expect(looking.page.locator("#machine")).to_have_text(
            f"Ready · ComfyUI at {sim.url.removeprefix('http://')}, {nobody}"
            f" · Nobody answers at http://{nobody}: is ComfyUI running there?"
        )
        await expect(looking.page.locator("#machine")).to_have_attribute("data-kind", "warn")
