"""A server starts without a shard and serves the shard when it becomes reachable."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from tests.support.postgres_gate import open_gate
from tests.support.server_processes import server_process
from tests.support.world import PostgresBackend, open_world


async def test_server_starts_without_a_shard_and_serves_it_later(
    real_postgres_backend: PostgresBackend, tmp_path: Path
) -> None:
    async with open_world(real_postgres_backend, tmp_path) as world:
        ada, bob = await world.user(shard="a"), await world.user(shard="b")
        tokens = [(await world.engine.accounts.sign_in.issue(user, name="test")).secret for user in (ada, bob)]
        own = world.engine.databases

        async def statuses(http: httpx.AsyncClient) -> list[int]:
            requests = [http.get("/api/ai-jobs", headers={"Authorization": f"Bearer {token}"}) for token in tokens]
            return [answer.status_code for answer in await asyncio.gather(*requests)]

        async with open_gate(own.shards["b"].dsn, refuses_with="57P03") as away:
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
                    # another process starts the shard and sends no signal
                    while await statuses(server.http) != [200, 200]:  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
