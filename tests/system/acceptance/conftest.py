"""All acceptance tests share one desk, which is cleaned after each test, and a browser."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.support.chromium import PageDriver, open_page
from tests.system.acceptance.script_desk import ScriptDesk, open_script_desk


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def open_desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ScriptDesk]:
    async with open_script_desk(tmp_path_factory.mktemp("script_desk"), shutdown_seconds=0) as script_desk:
        yield script_desk


@pytest_asyncio.fixture(loop_scope="session")
async def desk(open_desk: ScriptDesk) -> AsyncIterator[ScriptDesk]:
    yield open_desk
    await open_desk.reset()


@pytest_asyncio.fixture(loop_scope="session")
async def page(desk: ScriptDesk, chromium: Browser, built_app: None) -> AsyncIterator[PageDriver]:
    """Open the page of the desk."""
    async with open_page(chromium, desk.ready.url) as driver:
        yield driver
