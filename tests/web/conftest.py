"""A desk that is up, and a real Chromium that looks at its page."""

import os
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, ConsoleMessage, async_playwright

from comfyrelay.desk.desk import Desk
from comfyrelay.settings import Settings
from tests.web.looking import Looking

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture
async def desk_url(tmp_path: Path) -> AsyncIterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with Desk(settings=Settings(data_dir=tmp_path / "data", port=port)).open() as (_worker, ready):
        yield ready.url


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(
            f"None of {', '.join(NAMES)} is installed: `apt-get install chromium`, then the page is tested, too."
        )
    # Chromium's sandbox does not work for root
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=arguments)
        yield browser
        await browser.close()


@pytest.fixture
async def looking(desk_url: str, chromium: Browser) -> AsyncIterator[Looking]:
    """The page, just opened. Whatever it complains of in the console fails the test."""
    page = await chromium.new_page(viewport={"width": 1280, "height": 800}, base_url=desk_url)
    page.set_default_timeout(20_000)
    complaints: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        # the browser itself reports answers such as 404 and 422, which a test may be about
        if message.type == "error" and "Failed to load resource" not in message.text:
            complaints.append(message.text)

    page.on("console", heard)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    async with Looking.at(page, desk_url) as looking:
        await page.goto("/")
        yield looking
    assert complaints == []
