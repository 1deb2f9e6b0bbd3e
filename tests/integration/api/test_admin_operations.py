"""Failures and their handling by administrators: webhooks, stuck steps, check results, settings."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.configuration import ENV_PREFIX
from comfyrelay.domain.webhooks import RETRY_DELAYS_SECONDS
from comfyrelay.services.operations import reconcile_runs as reconcile_service
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.services.webhooks import overview
from comfyrelay.services.webhooks.overview import MAX_COUNTED
from comfyrelay.store.central import reconcile_runs
from comfyrelay.store.central.queue import dispatches
from tests.support.api import SECRETS, Api, open_api, problem_of
from tests.support.operator import OperatorScenario, open_operator_scenario
from tests.support.webhook_receiver import Receiver, open_receiver
from tests.support.world import PostgresBackend, SqliteBackend, World, execute, shard_down


@pytest.fixture
async def desk(backend: SqliteBackend | PostgresBackend, tmp_path: Path) -> AsyncIterator[OperatorScenario]:
    async with open_api(backend, tmp_path, webhook_allow_private=True) as api:
        await api.stop_loops()
        yield await open_operator_scenario(api)


class TestDeliveries:
    @pytest.fixture
    async def receiver(self, desk: OperatorScenario) -> AsyncIterator[Receiver]:
        # receivers have their own clocks and refuse old requests
        await desk.api.clock.set(datetime.now(UTC))
        await desk.worker(max_concurrency=5)
        async with open_receiver() as receiver:
            yield receiver

    async def finish_job(self, desk: OperatorScenario, receiver: Receiver) -> str:
        job = await desk.submit(webhook_url=receiver.url)
        await desk.complete(await desk.lease())
        return job.id

    async def list_deliveries(self, desk: OperatorScenario, **query: Any) -> list[tuple[str, str]]:
        return [
            (delivery["job_id"], delivery["status"])
            for delivery in (await desk.get("/webhooks/deliveries", **query))["items"]
        ]

    async def give_up_delivery(self, desk: OperatorScenario, receiver: Receiver) -> str:
        receiver.statuses = [500] * (1 + len(RETRY_DELAYS_SECONDS))
        job_id = await self.finish_job(desk, receiver)
        for seconds in (0.0, *RETRY_DELAYS_SECONDS):
            await desk.api.clock.set(desk.api.clock.now + timedelta(seconds=seconds))
            await desk.api.engine.webhooks.deliveries.run_once()
        return job_id

    @pytest.mark.both_databases
    async def test_deliveries_are_filtered_by_state(self, desk: OperatorScenario, receiver: Receiver) -> None:
        dead = await self.give_up_delivery(desk, receiver)
        receiver.statuses = [503]
        failing = await self.finish_job(desk, receiver)
        await desk.api.engine.webhooks.deliveries.run_once()
        pending = await self.finish_job(desk, receiver)
        newest_first = [(pending, "pending"), (failing, "failing"), (dead, "dead")]
        assert await self.list_deliveries(desk) == newest_first
        for delivery in newest_first:
            assert await self.list_deliveries(desk, status=delivery[1]) == [delivery]
        assert await self.list_deliveries(desk, status="delivered") == []
        [shown] = (await desk.get("/webhooks/deliveries", status="failing"))["items"]
        assert (shown["attempts"], shown["last_status_code"], shown["tenant_id"]) == (1, 503, desk.user.tenant_id)
        assert (shown["tenant_email"], shown["next_attempt_at"] is None) == ("ada@example.com", False)
        again = await desk.send("POST", f"/webhooks/deliveries/{shown['id']}/redeliver")
        # a pending delivery keeps its attempts
        assert (again["tenant_email"], again["attempts"]) == ("ada@example.com", 1)
        assert await desk.api.engine.webhooks.deliveries.run_once() == 2

    @pytest.mark.both_databases
    async def test_deliveries_are_paginated_and_filtered_by_tenant(
        self, desk: OperatorScenario, receiver: Receiver
    ) -> None:
        created = [await self.finish_job(desk, receiver) for _ in range(3)]
        first = await desk.get("/webhooks/deliveries", limit=2)
        assert [item["job_id"] for item in first["items"]] == created[:0:-1]
        second = await desk.get("/webhooks/deliveries", limit=2, cursor=first["next_cursor"])
        assert [item["job_id"] for item in second["items"]] == created[:1]
        assert second["next_cursor"] is None
        assert len(await self.list_deliveries(desk, tenant=desk.user.tenant_id)) == 3
        assert desk.admin.user is not None
        assert await self.list_deliveries(desk, tenant=desk.admin.user.tenant_id) == []

    async def test_dead_delivery_is_resent_with_its_id(self, desk: OperatorScenario, receiver: Receiver) -> None:
        job_id = await self.give_up_delivery(desk, receiver)
        [before] = (await desk.get("/webhooks/deliveries", status="dead"))["items"]
        count = len(receiver.received)
        again = await desk.send("POST", f"/webhooks/deliveries/{before['id']}/redeliver")
        assert (again["status"], again["attempts"]) == ("pending", 0)
        assert await desk.api.engine.webhooks.deliveries.run_once() == 1
        assert [headers["webhook-id"] for headers, _ in receiver.received[count:]] == [before["id"]]
        assert await self.list_deliveries(desk, status="delivered") == [(job_id, "delivered")]

    @pytest.mark.both_databases
    async def test_deliveries_are_counted(
        self, desk: OperatorScenario, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert await desk.get("/webhooks/counts") == {"dead": 0, "pending": 0, "max_counted": MAX_COUNTED}
        await self.give_up_delivery(desk, receiver)
        receiver.statuses = [500]
        await self.finish_job(desk, receiver)
        await desk.api.engine.webhooks.deliveries.run_once()
        await self.finish_job(desk, receiver)
        assert await desk.get("/webhooks/counts") == {"dead": 1, "pending": 2, "max_counted": MAX_COUNTED}
        monkeypatch.setattr(overview, "MAX_COUNTED", 1)
        assert await desk.get("/webhooks/counts") == {"dead": 1, "pending": 1, "max_counted": 1}

    async def test_redelivery_uses_the_current_url(self, desk: OperatorScenario, receiver: Receiver) -> None:
        put = desk.api.engine.webhooks.endpoints.set_webhook
        await put(desk.user.tenant_id, url="http://127.0.0.1:9/")
        await desk.submit()
        await desk.complete(await desk.lease())
        await desk.api.engine.webhooks.deliveries.run_once()
        [before] = (await desk.get("/webhooks/deliveries"))["items"]
        await put(desk.user.tenant_id, url=receiver.url)
        again = await desk.send("POST", f"/webhooks/deliveries/{before['id']}/redeliver")
        assert again["url"] == receiver.url
        await desk.api.engine.webhooks.deliveries.run_once()
        assert [headers["webhook-id"] for headers, _ in receiver.received] == [before["id"]]

    async def test_unknown_delivery_is_404(self, desk: OperatorScenario) -> None:
        problem_of(await desk.call("POST", "/webhooks/deliveries/none/redeliver"), 404)
        problem_of(await desk.call("GET", "/webhooks/deliveries", params={"tenant": "none"}), 404)
        problem_of(await desk.call("GET", "/webhooks/deliveries", params={"status": "asleep"}), 422)


async def lose_dispatch(desk: OperatorScenario, job_id: str) -> None:
    await execute(desk.api.engine.databases.central, f"DELETE FROM ai_job_dispatches WHERE tenant_job_id = '{job_id}'")


@pytest.mark.both_databases
class TestStuckSteps:
    async def test_outbox_entries_older_than_a_minute_are_shown(self, desk: OperatorScenario) -> None:
        assert await desk.get("/outbox/dead") == {"items": []}
        await desk.worker()
        job = await desk.submit()
        world: Any = World(engine=desk.api.engine, clock=desk.api.clock, backend="")
        leased = await desk.lease()
        await desk.api.engine.outbox.delivery.idle()
        async with shard_down(world, "main"):
            await desk.api.engine.queue.settle.fail(leased.dispatch_id, leased.lease_token, error="it broke")
            await desk.api.engine.outbox.delivery.idle()
        assert await desk.get("/outbox/dead") == {"items": []}
        await desk.advance(61)
        found = (await desk.get("/outbox/dead"))["items"]
        assert {(entry["direction"], entry["shard"], *entry["job_ids"]) for entry in found} == {
            ("to_shard", "main", job.id)
        }

    async def test_undelivered_submissions_are_shown(self, desk: OperatorScenario) -> None:
        job = await desk.submit()
        await desk.api.engine.outbox.delivery.idle()
        database = desk.api.engine.databases.shards["main"]
        values = f"INSERT INTO outbox (job_ids, created_at) SELECT '[\"{job.id}\"]', created_at FROM ai_jobs"
        await execute(database, values)
        await desk.advance(61)
        [found] = (await desk.get("/outbox/dead"))["items"]
        assert (found["direction"], found["job_ids"]) == ("to_queue", [job.id])


class TestFindings:
    async def test_reconcile_reports_without_repair(self, desk: OperatorScenario) -> None:
        assert await desk.get("/reconcile/findings") == {"last": None, "running": None}
        job = await desk.submit()
        await desk.api.engine.outbox.delivery.idle()
        await desk.advance(100)
        await lose_dispatch(desk, job.id)
        started = await desk.send("POST", "/reconcile")
        assert started["ended_at"] is None
        await desk.api.engine.operations.reconcile_runs.idle()
        found = await desk.get("/reconcile/findings")
        assert (found["running"], found["last"]["id"], found["last"]["jobs"]) == (None, started["id"], 1)
        [finding] = found["last"]["findings"]
        assert (finding["kind"], finding["job_id"], found["last"]["count"]) == ("missing_dispatch", job.id, 1)
        async with desk.api.engine.databases.central.read() as tx:
            assert await dispatches.known_jobs(tx, [(job.tenant_id, job.id)]) == set()

    @pytest.mark.both_databases
    async def test_at_most_one_reconcile_runs_over_all_processes(self, desk: OperatorScenario) -> None:
        central = desk.api.engine.databases.central
        await central.run(TransactionStep.REPAIR, reconcile_runs.begin)
        assert (await desk.get("/reconcile/findings"))["running"]["ended_at"] is None
        problem_of(await desk.call("POST", "/reconcile"), 409)
        # the process of the first run no longer exists
        await desk.advance(reconcile_service.MAX_RUN_SECONDS + 1)
        await desk.send("POST", "/reconcile")
        await desk.api.engine.operations.reconcile_runs.idle()
        assert (await desk.get("/reconcile/findings"))["last"]["problem"] is None

    async def test_failed_reconcile_run_is_reported(
        self, desk: OperatorScenario, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(desk.api.engine.operations.reconciler, "_check_leases", None)
        await desk.send("POST", "/reconcile")
        await desk.api.engine.operations.reconcile_runs.idle()
        assert "failed" in (await desk.get("/reconcile/findings"))["last"]["problem"]

    async def test_interrupted_reconcile_run_is_reported(self, desk: OperatorScenario) -> None:
        await desk.send("POST", "/reconcile")
        await desk.api.engine.operations.reconcile_runs.close()
        assert "stopped" in (await desk.get("/reconcile/findings"))["last"]["problem"]

    @pytest.mark.both_databases
    async def test_old_reconcile_runs_are_deleted(
        self, desk: OperatorScenario, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reconcile_service, "MAX_RUNS", 2)
        for _ in range(4):
            await desk.send("POST", "/reconcile")
            await desk.api.engine.operations.reconcile_runs.idle()
        assert len(await execute(desk.api.engine.databases.central, "SELECT id FROM reconcile_runs")) == 2


class TestSettings:
    async def test_settings_are_shown_with_their_source(
        self, desk: OperatorScenario, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(f"{ENV_PREFIX}WEBHOOK_ALLOW_PRIVATE", "true")
        shown = {setting["name"]: setting for setting in (await desk.get("/settings"))["items"]}
        assert shown.keys() == set(type(desk.api.engine.settings).model_fields)
        chosen = shown["webhook_allow_private"]
        assert (chosen["value"], chosen["source"], chosen["variable"]) == (
            True,
            "environment",
            "COMFYRELAY_WEBHOOK_ALLOW_PRIVATE",
        )
        assert (shown["public_url"]["source"], shown["public_url"]["value"]) == ("file", "http://relay.test")
        assert (shown["port"]["source"], shown["port"]["value"]) == ("default", 8420)
        assert all(setting["description"] for setting in shown.values())

    async def test_no_secret_is_shown(self, api: Api) -> None:
        desk = await open_operator_scenario(api)
        text = (await desk.call("GET", "/settings")).text
        secrets = [setting["name"] for setting in (await desk.get("/settings"))["items"] if setting["is_secret"]]
        assert {"database_url", "shards", "fleet_secrets", "signing_secrets", "payment_webhook_secret"} <= {*secrets}
        settings = desk.api.engine.settings
        for hidden in (settings.database_url, *settings.shards.values(), *SECRETS.signing):
            assert hidden is not None
            assert hidden not in text
