"""The web app as people have it: built, opened by a link, in a real browser that hears what it complains of."""

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
    "THEMES",
    "Heard",
    "Screen",
    "Theme",
    "build_app",
    "hearing",
    "open_context",
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
PHONE = Screen("phone", 390, 844, is_phone=True)

# What the policy forbids is reported in the console, except where a report would be too often: the event never is.
POLICY = """addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.effectiveDirective} forbids ${event.blockedURI} ${event.sample}`));"""
# Two frames, so that what the last answer has changed is on the screen.
_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
# Streams never end, and media is loaded while it plays.
_ENDLESS = ("eventsource", "media")


@dataclass(slots=True)
class Heard:
    """Of one page: what it complained of, and every address that it asked for."""

    complaints: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    under_way: set[Request] = field(default_factory=set)

    def elsewhere(self, url: str) -> list[str]:
        """What was asked of anybody but the server at `url`."""
        own = urlsplit(url).netloc
        asked = (urlsplit(each) for each in self.addresses)
        return [each.geturl() for each in asked if each.scheme != "blob" and each.netloc != own]


def build_app() -> None:
    """Build it, unless nothing has changed; processes that test side by side wait for the one that does."""
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
    """A browser of its own, in which the owner of the desk at `url` is signed in."""
    context = await chromium.new_context(
        base_url=url,
        color_scheme=theme,
        # what fades in has not its colours yet
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


def hearing(page: Page) -> Heard:
    """Listen to all that a page says and asks for from now on."""
    heard = Heard()

    def said(message: ConsoleMessage) -> None:
        if message.type == "error":
            heard.complaints.append(f"{message.text} {message.location.get('url', '')}".strip())

    def asked(request: Request) -> None:
        heard.addresses.append(request.url)
        if request.resource_type not in _ENDLESS:
            heard.under_way.add(request)

    page.on("console", said)
    page.on("pageerror", lambda error: heard.complaints.append(str(error)))
    page.on("request", asked)
    # not the method itself: Playwright marks what it is given
    page.on("requestfinished", lambda request: heard.under_way.discard(request))  # noqa: PLW0108
    page.on("requestfailed", lambda request: heard.under_way.discard(request))  # noqa: PLW0108
    return heard


async def settled(page: Page, heard: Heard) -> None:
    """Wait until the area is there, and has all that it asked for."""
    # not by its role, which it has not while a dialog is open
    await expect(page.locator("main :is(h1, h2, h3)").first).to_be_visible()
    quiet = 0
    while quiet < 3:
        await page.evaluate(_FRAMES)
        quiet = 0 if heard.under_way else quiet + 1
