"""From an empty server to a finished job in a browser, with one command in a terminal."""

import re

import pytest
from playwright.async_api import Browser, Page, expect

from tests.support.api import PASSWORD
from tests.support.web_app import DESKTOP, PHONE, PageLog, Screen, record_page, settled
from tests.support.world import PostgresBackend, memory_folder
from tests.system.browser.server import open_server, open_visitor, started_by, url_of
from tests.system.browser.server_setup import PRINTED, set_up
from tests.system.browser.test_every_page import _WIDER, axe, is_accessible, violations

__all__ = ["axe"]

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("built_app")]


async def shown_on(page: Page, screen: Screen) -> None:
    await page.set_viewport_size({"width": screen.width, "height": screen.height})


async def check_accessibility(page: Page, page_log: PageLog, axe: str) -> None:
    """Check the current step on desktop in both themes, and on a phone."""
    await page.emulate_media(color_scheme="dark")
    await settled(page, page_log)
    await is_accessible(page, page_log, axe)
    await shown_on(page, PHONE)
    await settled(page, page_log)
    assert await violations(page, axe) == ""
    assert await page.evaluate(_WIDER) == []
    await shown_on(page, DESKTOP)


@pytest.mark.journey
async def test_setup_of_an_empty_server_leads_to_a_finished_job(
    chromium: Browser, real_postgres_backend: PostgresBackend, s3_server: str, axe: str
) -> None:
    with memory_folder() as folder:
        async with (
            open_server(folder, real_postgres_backend, s3_server, simulators=1, is_empty=True) as system,
            open_visitor(chromium, system) as context,
        ):
            page = await context.new_page()
            page_log = record_page(page)
            await page.goto("/")
            await page.wait_for_url(re.compile("/setup$"))
            # the first visitor does not become administrator without the code
            await page.get_by_label("Setup code").fill("AAAAA-AAAAA-AAAAA-AAAAA")
            await page.get_by_label("Email").fill("eve@example.com")
            await page.get_by_label("Password", exact=True).fill(PASSWORD)
            await page.get_by_role("button", name="Create administrator").click()
            await expect(page.get_by_role("alert")).to_contain_text("not the code")
            page_log.complaints.clear()

            printed = PRINTED.search(system.server.text())
            assert printed is not None, system.server.text()
            await page.get_by_label("Setup code").fill(printed[2])
            await set_up(
                page,
                lambda command: started_by(command, system).start(),
                lambda _step: check_accessibility(page, page_log, axe),
            )
            await check_accessibility(page, page_log, axe)
            await page.get_by_role("link", name="Open console").click()
            await page.wait_for_url(re.compile("/console$"))
            # every other request goes to the storage
            assert page_log.complaints == []
            others = page_log.elsewhere(url_of(system))
            assert others
            assert all(other.startswith(system.files.url) for other in others)
