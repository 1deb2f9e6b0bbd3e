"""Databases that refuse connections, by permission or during startup, count as unreachable."""

import asyncio
from pathlib import Path

import asyncpg
import pytest
from structlog.testing import capture_logs

from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.services.databases import Databases
from comfyrelay.store import migrate
from comfyrelay.store.database import Database
from tests.support.full import full_only
from tests.support.postgres_gate import open_gate
from tests.support.world import PostgresBackend, open_world

# The statements that start and end the refusal.
REFUSALS = {
    "role cannot log in": ("ALTER ROLE {role} NOLOGIN", "ALTER ROLE {role} LOGIN"),
    "role may not connect": (
        "REVOKE CONNECT ON DATABASE {database} FROM PUBLIC",
        "GRANT CONNECT ON DATABASE {database} TO PUBLIC",
    ),
    "database allows no connections": (
        "ALTER DATABASE {database} ALLOW_CONNECTIONS false",
        "ALTER DATABASE {database} ALLOW_CONNECTIONS true",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_shard_that_refuses_connections_affects_only_its_tenants(
    real_postgres_backend: PostgresBackend, tmp_path: Path, refusal: str
) -> None:
    async with open_world(real_postgres_backend, tmp_path) as world:
        effect = await world.effect()
        ada, bob = await world.user(shard="a"), await world.user(shard="b")
        shards = world.engine.databases.shards
        before, name = shards["a"], shards["a"].url.database
        await before.close()
        begin, end = (statement.format(role="refused", database=f'"{name}"') for statement in REFUSALS[refusal])
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


@pytest.mark.parametrize("state", ["28P01", *full_only("28000", "42501", "55000")])
async def test_refused_connection_means_database_unavailable(
    real_postgres_backend: PostgresBackend, state: str
) -> None:
    async with (
        real_postgres_backend.databases([]) as (url, _, _clock),
        open_gate(url, refuses_with=state) as gate,
        Database("central", gate.url) as database,
    ):
        with pytest.raises(DatabaseUnavailable):
            await Databases(database, {}).states()


async def test_start_waits_for_a_database_that_recovers(real_postgres_backend: PostgresBackend) -> None:
    async with (
        real_postgres_backend.databases([]) as (url, _, _clock),
        open_gate(url, refuses_with="57P03") as starting,
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


async def test_connection_attempt_stops_at_its_time_limit(real_postgres_backend: PostgresBackend) -> None:
    async with (
        real_postgres_backend.databases([]) as (url, _, _clock),
        open_gate(url, refuses_with="57P03") as starting,
        Database("central", starting.url) as database,
    ):
        with pytest.raises(DatabaseUnavailable):
            await Databases(database, {}).open(0)
        assert starting.refused.qsize() == 1


async def test_shard_unreachable_at_start_is_migrated_before_its_first_use(
    real_postgres_backend: PostgresBackend, postgres_url: str
) -> None:
    server = await asyncpg.connect(postgres_url.format("postgres"))
    await server.execute("CREATE DATABASE empty_shard")
    try:
        async with (
            real_postgres_backend.databases(["a"]) as (central, shards, _clock),
            open_gate(postgres_url.format("empty_shard"), refuses_with="57P03") as away,
        ):
            databases = Databases(
                Database("central", central), {"a": Database("a", shards["a"]), "b": Database("b", away.url)}
            )
            await databases.open(0)
            await databases.require_current()
            assert databases.down() == ["b"]
            away.refuses_with = None
            # the shard is reachable but has no tables yet
            with pytest.raises(DatabaseUnavailable, match="has not been reached since this server started"):
                databases.shard("b")
            await databases.open_pending()
            assert await migrate.current(databases.shard("b")) == migrate.head(migrate.Schema.TENANT)
            assert databases.down() == []
            await databases.close()
    finally:
        await server.execute("DROP DATABASE empty_shard WITH (FORCE)")
        await server.close()
