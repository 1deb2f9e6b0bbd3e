"""The page of a desk whose ComfyUI does not answer."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.api.processes import free_port
from tests.desk.conftest import make_desk
from tests.web.looking import Looking


@pytest.fixture
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
    await expect(looking.pane.locator(".words")).to_have_text(
        f"Nobody answers at {looking.comfyui}: is ComfyUI running there?"
    )
