"""The API on SQLite with local files; tests marked `both_databases` also run on PostgreSQL with S3.

The store and the rules of the queue run on both databases in tests/integration/queue, ledger, store and workers.
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
    """Storage for files: a folder with SQLite, an S3 server with PostgreSQL."""
    if backend.name == "sqlite":
        return None
    request.getfixturevalue("aws")
    return f"s3://{BUCKET}/api/{next(_numbers)}"


@pytest.fixture
async def api(backend: SqliteBackend | PostgresBackend, storage_url: str | None, tmp_path: Path) -> AsyncIterator[Api]:
    async with open_api(backend, tmp_path, storage_url=storage_url) as api:
        yield api
