"""A read-only database: callers get a clear error, no secret is logged, and the service recovers without a restart."""

import traceback
from typing import Any

import asyncpg
import pytest
from sqlalchemy import event
from structlog.testing import capture_logs

from comfyrelay.domain.queue.customer_texts import OUT_OF_SERVICE
from comfyrelay.errors import NotReady
from comfyrelay.services.operations.readiness import Readiness
from comfyrelay.store.database import Database
from tests.support.api import Api, problem_of
from tests.support.world import execute

pytestmark = pytest.mark.both_databases

SECRET = "whsec_"


async def set_read_only(database: Database, *, is_read_only: bool) -> None:
    """Switch read-only mode: on PostgreSQL for new connections, on SQLite for connections that write."""
    if database.dialect == "postgresql":
        connection = await asyncpg.connect(database.dsn, server_settings={"default_transaction_read_only": "off"})
        value = "on" if is_read_only else "off"
        await connection.execute(
            f'ALTER DATABASE "{database.url.database}" SET default_transaction_read_only = {value}'
        )
        await connection.close()
    else:
        change = event.listen if is_read_only else event.remove
        change(database._writer.sync_engine, "connect", _refuse_writes)
    if is_read_only:
        await database._pools[database._writer].close()


def _refuse_writes(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA query_only = ON")


async def readiness(api: Api) -> dict[str, str]:
    """Return the current readiness problems."""
    try:
        return (await Readiness(api.engine.databases, api.engine.objects).check()).problems
    except NotReady as error:
        return error.errors


async def test_read_only_database_is_503_until_it_recovers(api: Api) -> None:
    await api.stop_loops()
    caller = await api.user()
    shard = api.engine.databases.shards["main"]
    hook = {"url": "https://example.com/hook"}
    await set_read_only(shard, is_read_only=True)
    problem = problem_of(await caller.call("PUT", "/api/webhook", hook), 503)
    assert problem["type"].endswith("not_writable")
    assert problem["detail"] == OUT_OF_SERVICE
    assert "read-only" in (await readiness(api))["main"]
    assert (await caller.get("/api/webhook"))["url"] is None
    await set_read_only(shard, is_read_only=False)
    assert (await caller.call("PUT", "/api/webhook", hook)).is_success
    assert await readiness(api) == {}


async def test_readiness_detects_a_read_only_database_without_writes(api: Api) -> None:
    await api.stop_loops()
    await set_read_only(api.engine.databases.central, is_read_only=True)
    assert "read-only" in (await readiness(api))["central"]
    await set_read_only(api.engine.databases.central, is_read_only=False)


async def test_unexpected_database_error_logs_no_row_values(api: Api) -> None:
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
async def test_database_errors_contain_no_values(api: Api, statement: str) -> None:
    if api.engine.databases.central.dialect == "sqlite":
        statement = "INSERT INTO alembic_version VALUES ('whsec_1'), ('whsec_1')"
    with pytest.raises(Exception) as failed:  # noqa: PT011  (each driver has its own)
        await execute(api.engine.databases.central, statement.replace(":", "\\:"))
    assert not any(SECRET in line.partition("[SQL:")[0] for line in traceback.format_exception(failed.value))
