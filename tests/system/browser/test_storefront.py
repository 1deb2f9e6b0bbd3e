"""A visitor finds an effect on the pages of a studio, signs up and opens the effect."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.support.api import PASSWORD
from tests.support.web_app import PHONE, record_page
from tests.support.whole_system import System
from tests.support.world import GRAPH, PROMPT, PostgresBackend
from tests.system.browser.server import open_server, open_visitor
from tests.system.browser.test_every_page import axe, is_accessible

__all__ = ["axe"]

pytestmark = pytest.mark.asyncio(loop_scope="session")

BLUE = "#2f4fbd"


async def offer_effects(system: System) -> None:
    await system.admin("POST", "/workflows", {"slug": "paint", "graph": GRAPH, "properties": [PROMPT]})
    common = {"workflow_slug": "paint", "credits_cost": 3}
    for slug, more in {
        "rainy-street": {"name": "Rainy street", "category": "Weather", "description": "Lets it rain.", "position": 2},
        "sunset": {"name": "Sunset", "category": "Weather", "position": 1},
        "portrait": {"name": "Portrait", "position": 3},
    }.items():
        await system.admin("POST", "/effects", {"slug": slug, **common, **more})


async def test_visitor_finds_an_effect_signs_up_and_opens_it(
    chromium: Browser, tmp_path: Path, real_postgres_backend: PostgresBackend, s3_server: str, axe: str
) -> None:
    logo = tmp_path / "logo.svg"
    logo.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="32" height="32"><circle cx="16" cy="16" r="16"/></svg>',
        encoding="utf-8",
    )
    legal = {"TERMS_URL": "https://pixel-barn.test/terms", "IMPRINT_URL": "https://pixel-barn.test/imprint"}
    settings = {"STUDIO_NAME": "Pixel Barn", "STUDIO_LOGO": str(logo), "STUDIO_COLOR": BLUE, **legal}
    async with open_server(tmp_path, real_postgres_backend, s3_server, settings={**settings, **legal}) as system:
        await offer_effects(system)
        async with open_visitor(chromium, system, screen=PHONE) as context:
            page = await context.new_page()
            page_log = record_page(page)
            await page.goto("/")
            await page.wait_for_url(re.compile("/catalogue$"))
            await expect(page).to_have_title("Pixel Barn")
            weather = page.get_by_role("list", name="Weather").get_by_role("link")
            await expect(weather).to_have_text([re.compile("Sunset"), re.compile("Rainy street.*Lets it rain", re.S)])
            assert await page.locator("header img").evaluate("(image) => image.naturalWidth") > 0
            await is_accessible(page, page_log, axe)
            await page.get_by_placeholder("Search effects").fill("rain")
            await expect(page.get_by_role("listitem")).to_have_count(1)
            await page.get_by_role("link", name=re.compile("Rainy street")).click()

            await expect(page.get_by_role("link", name="Terms").first).to_have_attribute("href", legal["TERMS_URL"])
            await page.get_by_label("Email").fill("visitor@example.com")
            await page.get_by_label("Password", exact=True).fill(PASSWORD)
            button = page.get_by_role("button", name="Sign up")
            assert await button.evaluate("(each) => getComputedStyle(each).backgroundColor") == "rgb(47, 79, 189)"
            await button.click()
            await page.wait_for_url(re.compile("/studio/effects/rainy-street$"))
            await expect(page.get_by_text("Lets it rain.")).to_be_visible()
            await page.goto("/studio")
            await expect(page.get_by_role("list", name="Weather")).to_be_visible()
            await is_accessible(page, page_log, axe)


async def test_server_without_effects_shows_visitors_the_sign_in_page(chromium: Browser, shared_server: System) -> None:
    async with open_visitor(chromium, shared_server) as context:
        page = await context.new_page()
        empty = {"data": {"items": [], "next_cursor": None}, "message": ""}
        await page.route("**/api/catalogue*", lambda route: route.fulfill(json=empty))
        await page.goto("/")
        await page.wait_for_url(re.compile("/sign-in$"))
