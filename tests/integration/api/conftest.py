"""An API for every test: on SQLite with local files, and on PostgreSQL with S3."""

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from tests.support.api import Api, open_api
from tests.support.storage import BUCKET
from tests.support.world import PostgresBackend, SqliteBackend

_numbers = count()


@pytest.fixture
def storage_url(backend: SqliteBackend | PostgresBackend, request: pytest.FixtureRequest) -> str | None:
    """Where files go: a folder beside SQLite, a real S3 server beside PostgreSQL."""
    if backend.name == "sqlite":
        return None
    request.getfixturevalue("aws")
    return f"s3://{BUCKET}/api/{next(_numbers)}"


@pytest.fixture
async def api(backend: SqliteBackend | PostgresBackend, storage_url: str | None, tmp_path: Path) -> AsyncIterator[Api]:
    async with open_api(backend, tmp_path, storage_url=storage_url) as api:
        yield api
