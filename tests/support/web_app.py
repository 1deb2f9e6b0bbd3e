"""The built web app in a browser, with its console errors and requests."""

import fcntl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from runpy import run_path
from typing import Literal
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect

from tests.support.chromium import PATIENCE_MS
from tests.support.desk_owner import owner_http
from tests.support.paths import ROOT

__all__ = [
    "DESKTOP",
    "PHONE",
    "POLICY",
    "TABLET",
    "THEMES",
    "PageLog",
    "Screen",
    "Theme",
    "build_app",
    "open_context",
    "record_page",
    "settled",
]

UI = ROOT / "ui"
Theme = Literal["dark", "light"]
THEMES: tuple[Theme, ...] = ("dark", "light")


@dataclass(frozen=True, slots=True)
class Screen:
    name: str
    width: int
    height: int
    is_phone: bool = False


DESKTOP = Screen("desktop", 1440, 900)
TABLET = Screen("tablet", 1024, 768)
PHONE = Screen("phone", 390, 844, is_phone=True)

# The browser console omits repeated policy violations; the event reports all of them.
POLICY = """addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.effectiveDirective} forbids ${event.blockedURI} ${event.sample}`));"""
# After two frames, the last response is rendered.
_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
# Requests that may not end: event streams remain open, and media loads while it plays.
_ENDLESS = ("eventsource", "media")


@dataclass(slots=True)
class PageLog:
    """Console errors and requested URLs of a page."""

    complaints: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    under_way: set[Request] = field(default_factory=set)

    def elsewhere(self, url: str) -> list[str]:
        """Return requests to servers other than `url`."""
        own = urlsplit(url).netloc
        urls = (urlsplit(address) for address in self.addresses)
        return [parts.geturl() for parts in urls if parts.scheme != "blob" and parts.netloc != own]


def build_app() -> None:
    """Build the app if it changed; parallel test processes wait for one build."""
    with _lock():
        run_path(str(UI / "build.py"))["build"]()


@contextmanager
def _lock() -> Iterator[None]:
    with (UI / "build.py").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@asynccontextmanager
async def open_context(
    chromium: Browser, url: str, *, theme: Theme = "dark", screen: Screen = DESKTOP
) -> AsyncIterator[BrowserContext]:
    """Open a browser context in which the owner of the desk at `url` is signed in."""
    context = await chromium.new_context(
        base_url=url,
        color_scheme=theme,
        # animations would change the measured colours
        reduced_motion="reduce",
        viewport={"width": screen.width, "height": screen.height},
        is_mobile=screen.is_phone,
        has_touch=screen.is_phone,
    )
    context.set_default_timeout(PATIENCE_MS)
    await context.add_init_script(POLICY)
    page = await context.new_page()
    async with owner_http(url) as http:
        answer = await http.post("/api/desk/links")
    await page.goto(answer.json()["data"]["url"])
    await expect(page.get_by_role("navigation", name="Areas")).to_be_visible()
    await page.close()
    yield context
    await context.close()


def record_page(page: Page) -> PageLog:
    """Record console errors and requests of a page."""
    log = PageLog()

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error":
            log.complaints.append(f"{message.text} {message.location.get('url', '')}".strip())

    def on_request(request: Request) -> None:
        log.addresses.append(request.url)
        if request.resource_type not in _ENDLESS:
            log.under_way.add(request)

    page.on("console", on_console)
    page.on("pageerror", lambda error: log.complaints.append(str(error)))
    page.on("request", on_request)
    # this must be a function, because Playwright sets attributes on the handler
    page.on("requestfinished", lambda request: log.under_way.discard(request))  # noqa: PLW0108
    page.on("requestfailed", lambda request: log.under_way.discard(request))  # noqa: PLW0108
    return log


async def settled(page: Page, log: PageLog) -> None:
    """Wait until the area is visible and all requests are done."""
    # do not select by role, because an open dialog hides the area
    await expect(page.locator("main :is(h1, h2, h3)").first).to_be_visible()
    quiet = 0
    while quiet < 3:
        await page.evaluate(_FRAMES)
        quiet = 0 if log.under_way else quiet + 1
