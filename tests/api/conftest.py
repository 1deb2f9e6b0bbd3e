"""An API for every test, on SQLite with local files and on PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.harness import Api, open_api
from tests.harness import PostgresBackend, SqliteBackend


@pytest.fixture
async def api(backend: SqliteBackend | PostgresBackend, tmp_path: Path) -> AsyncIterator[Api]:
    async with open_api(backend, tmp_path) as api:
        yield api
