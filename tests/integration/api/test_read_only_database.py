"""A database that takes no changes: everybody is told so, nobody's secret is logged, and it passes by itself."""

import asyncio
import json
import os
import resource
import tempfile
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import event
from structlog.testing import capture_logs

from comfyrelay.errors import NotReady
from comfyrelay.services.engine import Engine
from comfyrelay.services.operations.readiness import Readiness
from comfyrelay.settings import Settings
from comfyrelay.store.database import Database
from tests.support.api import PASSWORD, SECRETS, Api, problem_of
from tests.support.server_processes import server_process
from tests.support.small_disk import SmallDisk
from tests.support.world import execute

pytestmark = pytest.mark.both_databases

SECRET = "whsec_"


async def set_read_only(database: Database, *, is_read_only: bool) -> None:
    """For whoever connects from now on, on PostgreSQL; for connections that write, on SQLite."""
    if database.dialect == "postgresql":
        connection = await asyncpg.connect(database.dsn, server_settings={"default_transaction_read_only": "off"})
        value = "on" if is_read_only else "off"
        await connection.execute(
            f'ALTER DATABASE "{database.url.database}" SET default_transaction_read_only = {value}'
        )
        await connection.close()
    else:
        change = event.listen if is_read_only else event.remove
        change(database._writer.sync_engine, "connect", _only_read)
    if is_read_only:
        await database._open[database._writer].close()


def _only_read(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA query_only = ON")


async def readiness(api: Api) -> dict[str, str]:
    """What is wrong, as it is this moment."""
    try:
        return (await Readiness(api.engine.databases, api.engine.objects).check()).problems
    except NotReady as error:
        return error.errors


async def test_a_database_that_became_read_only_is_503_and_recovers_by_itself(api: Api) -> None:
    await api.stop_loops()
    caller = await api.user()
    shard = api.engine.databases.shards["main"]
    hook = {"url": "https://example.com/hook"}
    await set_read_only(shard, is_read_only=True)
    problem = problem_of(await caller.call("PUT", "/api/webhook", hook), 503)
    assert problem["type"].endswith("not_writable")
    assert problem["detail"] == "The shard 'main' is read-only."
    assert "read-only" in (await readiness(api))["main"]
    assert (await caller.get("/api/webhook"))["url"] is None
    await set_read_only(shard, is_read_only=False)
    assert (await caller.call("PUT", "/api/webhook", hook)).is_success
    assert await readiness(api) == {}


async def test_a_server_that_is_not_asked_to_change_anything_knows_that_it_could_not(api: Api) -> None:
    await api.stop_loops()
    await set_read_only(api.engine.databases.central, is_read_only=True)
    assert "read-only" in (await readiness(api))["central"]
    await set_read_only(api.engine.databases.central, is_read_only=False)


async def test_a_full_disk_is_503_until_there_is_room_and_no_secret_is_logged(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    async with Engine(settings, signing_secrets=SECRETS.signing) as engine:
        await engine.databases.upgrade()
        user = await engine.accounts.sign_in.register(email="ada@example.com", password=PASSWORD)
        secret = (await engine.accounts.sign_in.issue(user, name="test")).secret
    async with server_process({"DATA_DIR": str(tmp_path)}) as server:

        async def rotate() -> Any:
            return await server.http.put(
                "/api/webhook", json={"rotate_secret": True}, headers={"Authorization": f"Bearer {secret}"}
            )

        assert (await rotate()).is_success
        _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        # what is written goes to the end of a file, which may not become longer now
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (64 * 1024, hard))
        answers = [await rotate() for _ in range(40)]
        problem = problem_of(answers[-1], 503)
        assert "its disk is full" in problem["detail"]
        assert {each.status_code for each in answers} <= {200, 503}
        assert "disk is full" in problem_of(await server.http.get("/readyz"), 503)["errors"]["main"]
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert (await rotate()).is_success
        assert SECRET not in server.log()


@asynccontextmanager
async def small_databases(postgres_url: str) -> AsyncIterator[tuple[SmallDisk, str, str]]:
    """A disk that can be full, a central database elsewhere, and a shard on that disk."""
    connection = await asyncpg.connect(postgres_url.format("postgres"))
    with tempfile.TemporaryDirectory(prefix="comfyrelay-tests-") as folder:
        # to root the server belongs to another user
        Path(folder).chmod(0o755)
        place = Path(folder) / "disk"
        place.mkdir()
        disk = SmallDisk(place, size_bytes=64 * 1024**2)
        if not disk.mount():
            await connection.close()
            pytest.skip("nothing can be mounted here, so no disk can be filled")
        owner = Path(await connection.fetchval("SHOW data_directory")).stat()
        os.chown(place, owner.st_uid, owner.st_gid)
        try:
            await connection.execute(f"CREATE TABLESPACE small_disk LOCATION '{place}'")
            await connection.execute("CREATE DATABASE small_central")
            await connection.execute("CREATE DATABASE small_shard TABLESPACE small_disk")
            yield disk, postgres_url.format("small_central"), postgres_url.format("small_shard")
        finally:
            disk.make_room()
            try:
                await connection.execute("DROP DATABASE IF EXISTS small_central WITH (FORCE)")
                await connection.execute("DROP DATABASE IF EXISTS small_shard WITH (FORCE)")
                await connection.execute("DROP TABLESPACE IF EXISTS small_disk")
                await connection.close()
            finally:
                disk.unmount()


async def test_a_full_disk_of_postgresql_is_503_until_there_is_room(tmp_path: Path, postgres_url: str) -> None:
    async with small_databases(postgres_url) as (disk, central, shard):
        settings = Settings(data_dir=tmp_path, database_url=central, shards={"main": shard})
        async with Engine(settings, signing_secrets=SECRETS.signing) as engine:
            await engine.databases.upgrade()
            user = await engine.accounts.sign_in.register(email="ada@example.com", password=PASSWORD)
            secret = (await engine.accounts.sign_in.issue(user, name="test")).secret
        environment = {
            "DATA_DIR": str(tmp_path),
            "DATABASE_URL": central,
            "SHARDS": json.dumps({"main": shard}),
            "REQUESTS_PER_MINUTE": "100000",
        }
        async with server_process(environment) as server:
            server.http.headers["Authorization"] = f"Bearer {secret}"

            async def upload() -> Any:
                asked = {"mime_type": "image/png", "size": 100, "original_filename": "cat.png"}
                return await server.http.post("/api/videos/uploads", json=asked)

            assert (await upload()).is_success
            disk.fill()
            # there is room on pages that are there already
            answers = [await upload()]
            while answers[-1].is_success and len(answers) < 1000:
                answers.append(await upload())
            problem = problem_of(answers[-1], 503)
            assert problem["type"].endswith("not_writable")
            assert problem["detail"] == "The shard 'main' is not writable: its disk is full."
            assert "disk is full" in problem_of(await server.http.get("/readyz"), 503)["errors"]["main"]
            assert (await server.http.get("/api/webhook")).is_success
            disk.make_room()
            assert (await upload()).is_success
            async with asyncio.timeout(60):
                # readiness is looked at once in a while
                while not (await server.http.get("/readyz")).is_success:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)


async def test_no_value_of_a_row_is_logged_with_an_error_that_nobody_expected(api: Api) -> None:
    await api.stop_loops()
    caller = await api.user()
    await execute(api.engine.databases.shards["main"], "ALTER TABLE webhooks RENAME COLUMN updated_at TO gone")
    with capture_logs() as lines:
        problem_of(await caller.call("PUT", "/api/webhook", {"url": "https://example.com/hook"}), 500)
    [failed] = [line for line in lines if line["event"] == "request.failed"]
    logged = "".join(traceback.format_exception(failed["exc_info"]))
    assert "updated_at" in logged
    assert SECRET not in logged


@pytest.mark.parametrize(
    "statement",
    ["INSERT INTO alembic_version VALUES ('whsec_1'), ('whsec_1')", "SELECT CAST('whsec_1' AS integer) / 0"],
)
async def test_no_value_is_in_what_a_database_says_of_it(api: Api, statement: str) -> None:
    if api.engine.databases.central.dialect == "sqlite":
        statement = "INSERT INTO alembic_version VALUES ('whsec_1'), ('whsec_1')"
    with pytest.raises(Exception) as failed:  # noqa: PT011  (each driver has its own)
        await execute(api.engine.databases.central, statement.replace(":", "\\:"))
    assert not any(SECRET in line.partition("[SQL:")[0] for line in traceback.format_exception(failed.value))
