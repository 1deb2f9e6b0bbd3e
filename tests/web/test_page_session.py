"""How the page is opened, and what a browser sees that has no session."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.desk.conftest import make_desk
from tests.desk.owner import owner_http
from tests.web.looking import open_page


@pytest.mark.asyncio(loop_scope="session")
async def test_a_browser_without_a_session_says_what_to_do_and_a_link_opens_the_page(
    tmp_path: Path, chromium: Browser
) -> None:
    made = make_desk(tmp_path / "desk", finish_seconds=0)
    context = await chromium.new_context()
    page = await context.new_page()
    async with made.open() as (_worker, ready):
        await page.goto(ready.url)
        await expect(page.locator("code")).to_have_text("comfyrelay open")
        # as `--open` hands it over: a page from elsewhere that leads here
        (tmp_path / "open.html").write_text(f'<meta http-equiv="refresh" content="0; url={ready.link}">')
        await page.goto((tmp_path / "open.html").as_uri())
        await page.wait_for_url(f"{ready.url}/")
        await expect(page.locator("#machine-text")).to_contain_text("Ready")
        # again, as one does from what the terminal still shows
        await page.goto(ready.link)
        await page.wait_for_url(f"{ready.url}/")
        await expect(page.locator("#machine-text")).to_contain_text("Ready")
    async with made.open():
        await page.goto(ready.url)
        await expect(page.locator("#machine-text")).to_contain_text("Ready")
    await context.close()


@pytest.mark.asyncio(loop_scope="session")
async def test_a_page_whose_session_ends_says_so(desk_url: str, chromium: Browser) -> None:
    async with open_page(chromium, desk_url) as looking, owner_http(desk_url) as http:
        await expect(looking.page.locator("#machine-text")).to_contain_text("Ready")
        [session] = (await http.get("/api/tokens")).json()["data"]["items"]
        (await http.delete(f"/api/tokens/{session['id']}")).raise_for_status()
        await expect(looking.page.get_by_text("comfyrelay open", exact=True)).to_be_visible()
