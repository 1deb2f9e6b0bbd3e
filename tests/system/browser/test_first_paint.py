"""The first paint shows the shell before any script runs; the area's data is requested once and early."""

import asyncio
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Request, Route, expect

from tests.support.chromium import PageDriver, until
from tests.support.web_app import THEMES, Theme, open_context, record_page, settled
from tests.support.world import PATIENCE_SECONDS

# scripts, styles and the font
MAX_FILES = 25

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("theme", THEMES)
async def test_shell_is_painted_before_scripts_and_styles_arrive(
    chromium: Browser, shared_desk: str, theme: Theme
) -> None:
    released = asyncio.Event()

    async def hold(route: Route) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await released.wait()
        await route.continue_()

    async with open_context(chromium, shared_desk, theme=theme) as context:
        page = await context.new_page()
        page_log = record_page(page)
        await page.route("**/assets/**", hold)
        await page.goto("/queue", wait_until="commit")
        await until(page, 'performance.getEntriesByName("first-contentful-paint").length > 0')
        assert await page.locator(".first-paint svg").is_visible()
        released.set()
        await expect(page.get_by_role("navigation", name="Areas")).to_be_visible()
        assert await page.locator(".first-paint").count() == 0
        assert page_log.complaints == []


@pytest.mark.parametrize("path", ["/queue", "/gallery", "/create"])
async def test_area_data_is_requested_once_before_its_scripts_load(
    chromium: Browser, shared_desk: str, path: str
) -> None:
    released = asyncio.Event()
    paths: list[str] = []

    async def hold(route: Route) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await released.wait()
        await route.continue_()

    def note(request: Request) -> None:
        if "/api/" in request.url:
            paths.append(request.url)

    async with open_context(chromium, shared_desk) as context:
        page = await context.new_page()
        page_log = record_page(page)
        await page.route("**/assets/main-*.js", hold)
        # no event stream: its first event makes the page fetch its data again
        await page.route("**/api/events", lambda route: route.abort())
        page.on("request", note)
        first = {"/queue": "/api/queue?", "/gallery": "/api/gallery?", "/create": "/api/effects?"}[path]
        async with page.expect_request(lambda request: first in request.url):
            await page.goto(path, wait_until="commit")
        early = set(paths)
        assert len(paths) == len(early)
        released.set()
        await expect(page.get_by_role("navigation", name="Areas")).to_be_visible()
        await settled(page, page_log)
        # every prefetched response was used
        assert {path: paths.count(path) for path in early} == dict.fromkeys(early, 1)


@pytest.mark.parametrize(
    ("path", "data", "shown"),
    [
        ("/queue", {"/api/queue"}, "[data-entry]"),
        # the grid shows the first page before the layout of the whole gallery is loaded
        ("/gallery", {"/api/gallery"}, "[data-gallery] img"),
        ("/create", {"/api/workflows", "/api/effects"}, "[data-field]"),
    ],
)
async def test_page_waits_only_for_the_session_and_its_own_data(
    shared: PageDriver, path: str, data: set[str], shown: str
) -> None:
    needed = {"/api/me", "/api/entry", "/api/desk", *data}
    released = asyncio.Event()

    async def hold(route: Route) -> None:
        if urlsplit(route.request.url).path not in needed:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await released.wait()
        await route.continue_()

    for job_id in await shared.submit("boat"):
        await shared.ended(job_id)
    page = shared.page
    await page.route("**/api/**", hold)
    await page.goto(path)
    await expect(page.locator(shown).first).to_be_visible()
    released.set()
    await page.unroute_all(behavior="wait")


@pytest.mark.parametrize("path", ["/queue", "/gallery", "/create"])
async def test_page_loads_few_scripts_and_styles(chromium: Browser, shared_desk: str, path: str) -> None:
    async with open_context(chromium, shared_desk) as context:
        page = await context.new_page()
        page_log = record_page(page)
        await page.goto(path)
        await settled(page, page_log)
    files = [each for each in page_log.addresses if "/assets/" in each]
    # for the desk and the browser, each request costs about the same as 10 KB of script
    assert len(files) <= MAX_FILES, "\n".join(files)


async def test_hidden_tab_also_loads(chromium: Browser, shared_desk: str) -> None:
    async with open_context(chromium, shared_desk) as context:
        page = await context.new_page()
        await page.add_init_script("window.requestAnimationFrame = () => 0")
        await page.goto("/queue")
        await expect(page.get_by_role("navigation", name="Areas")).to_be_visible()
