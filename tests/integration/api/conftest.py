"""The API on SQLite with local files; tests marked `both_databases` also run on PostgreSQL with S3.

The tests of the store and of the queue's rules, in queue, ledger, store and workers, run on both databases.
"""

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from tests.support.api import Api, open_api
from tests.support.backends import backend, pytest_generate_tests
from tests.support.storage import BUCKET
from tests.support.world import PostgresBackend, SqliteBackend

__all__ = ["backend", "pytest_generate_tests"]

_numbers = count()


@pytest.fixture
def storage_url(backend: SqliteBackend | PostgresBackend, request: pytest.FixtureRequest) -> str | None:
    """Return the URL of an S3 storage with PostgreSQL, or `None` for a local folder with SQLite."""
    if backend.name == "sqlite":
        return None
    request.getfixturevalue("aws")
    return f"s3://{BUCKET}/api/{next(_numbers)}"


@pytest.fixture
async def api(backend: SqliteBackend | PostgresBackend, storage_url: str | None, tmp_path: Path) -> AsyncIterator[Api]:
    async with open_api(backend, tmp_path, storage_url=storage_url) as api:
        yield api
