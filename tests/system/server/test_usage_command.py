"""`comfyrelay usage` prints the usage."""

import json
import os
from pathlib import Path

from comfyrelay.services.engine import Engine
from comfyrelay.services.jobs.submission.requests import JobRequest
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.settings import Settings
from tests.support import commands
from tests.support.world import OUTPUT, SqliteBackend

PRICED = {"instance_types": [{"name": "g5.xlarge", "price_per_hour": 3.6}]}


async def test_command_prints_the_usage(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    async with sqlite_backend.databases(["main"]) as (central, shards, _):
        env = {
            **os.environ,
            "COMFYRELAY_DATA_DIR": str(tmp_path),
            "COMFYRELAY_DATABASE_URL": central,
            "COMFYRELAY_SHARDS": json.dumps(shards),
            "COLUMNS": "80",
        }
        async with Engine(Settings(data_dir=tmp_path, database_url=central, shards=shards)) as engine:
            await engine.catalogue.workflows.create(slug="clip", graph={"1": {"class_type": "A", "inputs": {}}})
            effect = await engine.catalogue.effects.create(slug="clip", workflow_slug="clip", credits_cost=3)
            await engine.workers.fleets.create(slug="home", workflow_slugs=["clip"], machines=PRICED)
            registered = await engine.workers.workers.register(
                worker_id="gpu-1", fleet_slug="home", instance_type="g5.xlarge"
            )
            assert registered.workflows == ["clip"]
            user = await engine.accounts.tenancy.create_user(email="ada@example.com")
            await engine.accounts.ledger.credit(user.tenant_id, 3, reference="test")
            await engine.jobs.submit.submit(
                JobRequest(tenant_id=user.tenant_id, user_id=user.id, idempotency_key="one", effect_id=effect.id)
            )
            [leased] = await engine.queue.leasing.lease(LeaseRequest(worker_id="gpu-1", providers=["self_hosted"]))
            await engine.queue.settle.complete(leased.dispatch_id, leased.lease_token, output=OUTPUT)
            await engine.outbox.delivery.idle()
            assert await engine.autoscaling.usage.run_once() == 1
        printed = await commands.run("fleet", "costs", "--json", env=env)
        [row] = json.loads(printed.out)
        assert (row["name"], row["jobs"]) == ("home", 1)
        table = await commands.run("fleet", "costs", "--by", "workflow", "--days", "1", env=env)
        assert table.out.splitlines()[0].split() == ["workflow", "jobs", "busy", "lost", "cost"]
        assert "clip" in table.out
        whole = await commands.run("fleet", "costs", env=env)
        assert "production/home" in whole.out
        assert "machines cost: whole lifetime" in whole.out
        assert "…" not in whole.out
        paid = await commands.run("fleet", "revenue", "--json", env={**env, "COMFYRELAY_TOKEN_VALUE": "0.5"})
        [row] = json.loads(paid.out)
        assert (row["name"], row["jobs"], row["tokens"], row["revenue"]) == ("clip", 1, 3, 1.5)
        by_day = await commands.run("fleet", "revenue", "--by", "day", env=env)
        assert by_day.out.splitlines()[0].split() == ["day", "jobs", "tokens", "revenue", "GPU", "time", "cost"]
