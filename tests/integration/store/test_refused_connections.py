"""Databases that refuse connections, by permission or because they are starting up: like ones that are away."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from structlog.testing import capture_logs

from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.services.databases import Databases
from comfyrelay.store import migrate
from comfyrelay.store.database import Database
from tests.support.server_processes import server_process
from tests.support.world import PostgresBackend, open_world

# How it begins, and how it ends.
REFUSALS = {
    "may not log in": ("ALTER ROLE {role} NOLOGIN", "ALTER ROLE {role} LOGIN"),
    "may not connect": (
        "REVOKE CONNECT ON DATABASE {database} FROM PUBLIC",
        "GRANT CONNECT ON DATABASE {database} TO PUBLIC",
    ),
    "takes nobody": (
        "ALTER DATABASE {database} ALLOW_CONNECTIONS false",
        "ALTER DATABASE {database} ALLOW_CONNECTIONS true",
    ),
}


@dataclass
class Gate:
    """Stands before a PostgreSQL server and answers for it while it does not let anybody in."""

    url: str
    server: asyncpg.Connection
    # the SQLSTATE that everybody is refused with, if so
    refuses_with: str | None
    refused: asyncio.Queue[str] = field(default_factory=asyncio.Queue)


@asynccontextmanager
async def gate(url: str, *, refuses_with: str | None) -> AsyncIterator[Gate]:
    server = await asyncpg.connect(url)
    folder, port = await server.fetchval("SHOW unix_socket_directories"), await server.fetchval("SHOW port")
    name = await server.fetchval("SELECT current_database()")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # whether it speaks TLS: no
        await reader.readexactly(8)
        writer.write(b"N")
        if opened.refuses_with is not None:
            await reader.readexactly(int.from_bytes(await reader.readexactly(4)) - 4)
            fields = b"".join((b"SFATAL\0VFATAL\0C", opened.refuses_with.encode(), b"\0Mnot now\0\0"))
            writer.write(b"E" + (len(fields) + 4).to_bytes(4) + fields)
            opened.refused.put_nowait(opened.refuses_with)
        else:
            inside = await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.{port}")
            await asyncio.gather(_pass_on(reader, inside[1]), _pass_on(inside[0], writer))
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = listener.sockets[0].getsockname()
    opened = Gate(f"postgresql://postgres@{address[0]}:{address[1]}/{name}", server, refuses_with)
    try:
        yield opened
    finally:
        listener.close()
        await server.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_shard_that_refuses_connections_hurts_its_own_tenants_only(
    real_postgres_backend: PostgresBackend, tmp_path: Path, refusal: str
) -> None:
    async with open_world(real_postgres_backend, tmp_path) as world:
        effect = await world.effect()
        ada, bob = await world.user(shard="a"), await world.user(shard="b")
        shards = world.engine.databases.shards
        before, name = shards["a"], shards["a"].url.database
        await before.close()
        begin, end = (each.format(role="refused", database=f'"{name}"') for each in REFUSALS[refusal])
        admin = await asyncpg.connect(shards["b"].dsn)
        await admin.execute("DROP ROLE IF EXISTS refused; CREATE ROLE refused LOGIN")
        await admin.execute("GRANT pg_read_all_data, pg_write_all_data TO refused")
        shards["a"] = Database("a", before.url.set(username="refused").render_as_string(hide_password=False))
        await admin.execute(begin)
        try:
            with pytest.raises(DatabaseUnavailable, match="The shard 'a' refuses the connections of this server"):
                await world.submit(ada, effect)
            await world.submit(bob, effect)
        finally:
            await admin.execute(end)
        assert (await world.submit(ada, effect)).status == "queued"
        await shards["a"].close()
        shards["a"] = before
        await admin.execute("DROP ROLE refused")
        await admin.close()


@pytest.mark.parametrize("state", ["28P01", "28000", "42501", "55000"])
async def test_every_way_to_be_refused_counts_as_away(real_postgres_backend: PostgresBackend, state: str) -> None:
    async with (
        real_postgres_backend.databases([]) as (url, _, _clock),
        gate(url, refuses_with=state) as before,
        Database("central", before.url) as database,
    ):
        with pytest.raises(DatabaseUnavailable):
            await Databases(database, {}).revisions()


async def test_a_start_waits_for_a_database_that_recovers(real_postgres_backend: PostgresBackend) -> None:
    async with (
        real_postgres_backend.databases([]) as (url, _, _clock),
        gate(url, refuses_with="57P03") as starting,
        Database("central", starting.url) as database,
    ):
        databases = Databases(database, {})
        with capture_logs() as lines:
            waiting = asyncio.create_task(databases.open(600))
            await starting.refused.get()
            starting.refuses_with = None
            await waiting
        assert [line["event"] for line in lines] == ["database.waiting", "database.up"]
        assert lines[0]["why"] == "The central database is unreachable."


async def test_it_waits_no_longer_than_it_may(real_postgres_backend: PostgresBackend) -> None:
    async with (
        real_postgres_backend.databases([]) as (url, _, _clock),
        gate(url, refuses_with="57P03") as starting,
        Database("central", starting.url) as database,
    ):
        with pytest.raises(DatabaseUnavailable):
            await Databases(database, {}).open(0)
        assert starting.refused.qsize() == 1


async def test_a_shard_that_is_away_at_the_start_is_brought_up_before_anybody_uses_it(
    real_postgres_backend: PostgresBackend, postgres_url: str
) -> None:
    server = await asyncpg.connect(postgres_url.format("postgres"))
    await server.execute("CREATE DATABASE empty_shard")
    try:
        async with (
            real_postgres_backend.databases(["a"]) as (central, shards, _clock),
            gate(postgres_url.format("empty_shard"), refuses_with="57P03") as away,
        ):
            databases = Databases(
                Database("central", central), {"a": Database("a", shards["a"]), "b": Database("b", away.url)}
            )
            await databases.open(0)
            await databases.require_current()
            assert databases.down() == ["b"]
            away.refuses_with = None
            # it is there, and has no tables yet
            with pytest.raises(DatabaseUnavailable, match="has not been reached since this server started"):
                databases.shard("b")
            await databases.open_awaited()
            assert await migrate.current(databases.shard("b")) == migrate.head(migrate.Schema.TENANT)
            assert databases.down() == []
            await databases.close()
    finally:
        await server.execute("DROP DATABASE empty_shard WITH (FORCE)")
        await server.close()


async def test_a_server_starts_without_a_tenant_shard_and_serves_it_once_it_comes(
    real_postgres_backend: PostgresBackend, tmp_path: Path
) -> None:
    async with open_world(real_postgres_backend, tmp_path) as world:
        ada, bob = await world.user(shard="a"), await world.user(shard="b")
        tokens = [(await world.engine.accounts.sign_in.issue(each, name="test")).secret for each in (ada, bob)]
        own = world.engine.databases

        async def statuses(http: httpx.AsyncClient) -> list[int]:
            asked = [http.get("/api/ai-jobs", headers={"Authorization": f"Bearer {token}"}) for token in tokens]
            return [answer.status_code for answer in await asyncio.gather(*asked)]

        async with gate(own.shards["b"].dsn, refuses_with="57P03") as away:
            settings: dict[str, Any] = {
                "DATA_DIR": str(tmp_path / "server"),
                "DATABASE_URL": own.central.dsn,
                "SHARDS": json.dumps({"a": own.shards["a"].dsn, "b": away.url}),
            }
            async with server_process(settings) as server:
                assert await statuses(server.http) == [200, 503]
                ready = await server.http.get("/readyz")
                assert (ready.status_code, [*ready.json()["data"]["problems"]]) == (200, ["b"])
                away.refuses_with = None
                async with asyncio.timeout(60):
                    # another process brings it up, and reports that to nobody
                    while await statuses(server.http) != [200, 200]:  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
