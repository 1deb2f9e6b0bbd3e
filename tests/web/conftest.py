"""A desk that is up, and a real Chromium that looks at its page."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser

from comfyrelay.desk.desk import Desk
from comfyrelay.settings import Settings
from tests.web.looking import Looking, open_chromium, open_page


@pytest.fixture
async def desk_url(tmp_path: Path) -> AsyncIterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with Desk(settings=Settings(data_dir=tmp_path / "data", port=port)).open() as (_worker, ready):
        yield ready.url


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    async with open_chromium() as browser:
        yield browser


@pytest.fixture
async def looking(desk_url: str, chromium: Browser) -> AsyncIterator[Looking]:
    async with open_page(chromium, desk_url) as looking:
        yield looking
