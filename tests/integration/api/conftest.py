"""The API on SQLite with local files; tests marked `both_databases` also run on PostgreSQL with S3.

The services below the API run on both databases in tests/integration/queue, ledger, store and workers.
"""

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from tests.support import full
from tests.support.api import Api, open_api
from tests.support.storage import BUCKET
from tests.support.world import PostgresBackend, SqliteBackend

_numbers = count()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        on_both = full.is_enabled or metafunc.definition.get_closest_marker("both_databases") is not None
        metafunc.parametrize("backend", ["sqlite", "postgresql"] if on_both else ["sqlite"], indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> SqliteBackend | PostgresBackend:
    found: SqliteBackend | PostgresBackend = request.getfixturevalue(
        "sqlite_backend" if request.param == "sqlite" else "postgres_backend"
    )
    return found


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
