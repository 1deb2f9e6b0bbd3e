"""An API for every test: on SQLite with local files, and on PostgreSQL with S3.

The services are tested on both databases beneath this. Here each group of tests, a class or a module, comes to
PostgreSQL once, those that are about queries or files of their own with all their tests; the rest when there is time.
"""

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from tests.api.harness import Api, open_api
from tests.harness import PostgresBackend, SqliteBackend
from tests.storage.harness import BUCKET

_numbers = count()
WHOLE = {"test_admin_dispatches", "test_outputs", "test_retention", "test_unwritable", "test_user_videos"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen = set()
    for item in items:
        if item.path.parent == Path(__file__).parent and "[postgresql" in item.name and item.path.stem not in WHOLE:
            if item.parent in seen:
                item.add_marker(pytest.mark.long)
            seen.add(item.parent)


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
