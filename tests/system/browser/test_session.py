"""The app is opened by a link on this machine, and by the password from another machine."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from comfyrelay.desk.password import set_password
from tests.integration.desk.test_password import OTHER_ADDRESS, PASSWORD, open_to_others
from tests.support.desk import make_desk

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("built_app")]

AREA = re.compile("/(create|queue)")


async def is_open(page: Page) -> None:
    await page.wait_for_url(AREA)
    await expect(page.get_by_role("navigation", name="Areas")).to_be_visible()


@pytest.mark.journey
async def test_app_without_a_session_is_opened_by_a_link(tmp_path: Path, chromium: Browser) -> None:
    settings = make_desk(tmp_path / "desk", shutdown_seconds=0)
    context = await chromium.new_context()
    page = await context.new_page()
    async with settings.open() as (_worker, ready):
        for path in ("", "/queue", "/gallery"):
            await page.goto(f"{ready.url}{path}")
            await expect(page.locator("code")).to_have_text("comfyrelay open")
        # `--open` also opens a page of another origin that redirects here
        (tmp_path / "open.html").write_text(f'<meta http-equiv="refresh" content="0; url={ready.link}">')
        await page.goto((tmp_path / "open.html").as_uri())
        await is_open(page)
        # open the link that is still in the terminal a second time
        await page.goto(ready.link)
        await is_open(page)
    async with settings.open():
        await page.goto(f"{ready.url}/gallery")
        await expect(page.get_by_role("heading", name="Gallery", exact=True)).to_be_visible()
    await context.close()


async def test_password_opens_the_app_from_another_machine(tmp_path: Path, chromium: Browser) -> None:
    set_password(tmp_path, PASSWORD)
    settings = open_to_others(tmp_path)
    context = await chromium.new_context(base_url=f"http://{OTHER_ADDRESS}:{settings.settings.port}")
    page = await context.new_page()
    async with settings.open():
        await page.goto("/queue")
        field = page.get_by_label("Password")
        await field.fill("a guess")
        await field.press("Enter")
        await expect(page.get_by_text("The password is wrong.")).to_be_visible()
        await field.fill(PASSWORD)
        await field.press("Enter")
        await is_open(page)
    await context.close()
