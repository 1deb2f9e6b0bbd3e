"""A desk that is up for each test, and one real Chromium that looks at all their pages."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser

from tests.desk.conftest import make_desk
from tests.web.looking import Looking, open_page


@pytest_asyncio.fixture(loop_scope="session")
async def desk_url(tmp_path: Path) -> AsyncIterator[str]:
    async with make_desk(tmp_path / "data", finish_seconds=0).open() as (_worker, ready):
        yield ready.url


@pytest_asyncio.fixture(loop_scope="session")
async def looking(desk_url: str, chromium: Browser) -> AsyncIterator[Looking]:
    async with open_page(chromium, desk_url) as looking:
        yield looking
