"""The browser tests share desks, servers and one Chromium."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.support.chromium import PageDriver, open_page
from tests.support.desk import make_desk
from tests.support.whole_system import System
from tests.support.world import PostgresBackend, memory_folder
from tests.system.browser.server import open_server


@pytest_asyncio.fixture(loop_scope="session")
async def desk_url(tmp_path: Path) -> AsyncIterator[str]:
    async with make_desk(tmp_path / "data", shutdown_seconds=0).open() as (_worker, ready):
        yield ready.url


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared_desk(tmp_path_factory: pytest.TempPathFactory, built_app: None) -> AsyncIterator[str]:
    """Yield the address of a desk that all tests of a file share; each test cleans up after itself."""
    async with make_desk(tmp_path_factory.mktemp("shared"), shutdown_seconds=0).open() as (_worker, ready):
        yield ready.url


@pytest_asyncio.fixture(loop_scope="session")
async def shared(shared_desk: str, chromium: Browser) -> AsyncIterator[PageDriver]:
    async with open_page(chromium, shared_desk) as driver:
        yield driver
        await driver.tidy()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared_server(
    real_postgres_backend: PostgresBackend, s3_server: str, built_app: None
) -> AsyncIterator[System]:
    """Share a server over PostgreSQL and S3 among the tests of a file; `start_workers` adds two workers."""
    with memory_folder() as folder:
        async with open_server(folder, real_postgres_backend, s3_server) as system:
            yield system
