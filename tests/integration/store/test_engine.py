"""Guarantees of the whole engine."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from comfyrelay.domain.queue.wait_reasons import Reason
from comfyrelay.domain.records.workers import NewAuditEntry
from comfyrelay.errors import ConfigurationError, Fault
from comfyrelay.services.databases import Databases
from comfyrelay.services.hooks import Hooks
from comfyrelay.services.queue.settle import Report, Verb
from comfyrelay.settings import Settings
from comfyrelay.store import database
from comfyrelay.store.central import audit
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import history
from comfyrelay.store.tenant.history import Position
from comfyrelay.store.types import time_text
from tests.support.world import OUTPUT, World, submit_batch


def test_shard_named_central_is_refused(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, shards={"central": f"sqlite:///{tmp_path}/x.db"})
    with pytest.raises(ConfigurationError, match="'central'"):
        Databases.from_settings(settings)


async def test_clock_is_read_as_often_for_a_large_batch_as_for_a_small_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = await world.desk()
    reads: list[datetime] = []

    def note_read(time: datetime) -> str:
        reads.append(time)
        return time_text(time)

    # PostgreSQL has its own clock
    monkeypatch.setattr(database, "time_text", note_read)
    counts = []
    for items in (2, 90):
        reads.clear()
        await submit_batch(world, desk.user, desk.effect, items)
        counts.append(len(reads))
    assert counts[1] <= counts[0] + 20, counts
    assert counts[0] or world.backend != "sqlite"


@pytest.mark.parametrize("delay_seconds", [0, 0.001, 90.25, 86400 * 365])
async def test_delay_is_added_to_the_time_of_the_database(world: World, delay_seconds: float) -> None:
    desk = await world.desk()
    await world.clock.set(world.clock.now + timedelta(microseconds=999_000))
    job = await desk.submit(delay_seconds=delay_seconds)
    assert job.available_at == world.clock.now + timedelta(seconds=delay_seconds)


async def test_polling_worker_counts_as_online(world: World) -> None:
    desk = await world.desk()
    await world.advance(1000)
    job = await desk.submit()
    assert (await world.engine.queue.wait_reasons.of_job(job.tenant_id, job.id)).reason is Reason.NO_WORKER
    leased = await world.lease(desk.worker)
    assert leased is not None
    await world.requeue(leased)
    await world.engine.workers.workers.record_seen(world.engine.queue.leasing.take_pollers())
    assert (await world.engine.queue.wait_reasons.of_job(job.tenant_id, job.id)).reason is Reason.STARTING


async def test_report_is_answered_before_the_tenant_database_is_updated(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.submit_and_lease()
    report = Report(verb=Verb.COMPLETE, dispatch_id=leased.dispatch_id, lease_token=leased.lease_token, output=OUTPUT)
    answer = await world.engine.queue.settle.report(report, wait_for_tenant=False)
    assert answer.status == (await world.dispatch(job)).status == "completed"
    await world.wait_for_deliveries()
    assert (await world.job(job)).status == "completed"


async def test_tenant_events_contain_no_server_path(world: World) -> None:
    await world.restart(Hooks(users_are_owners=True))
    desk = await world.desk()
    job, leased = await desk.submit_and_lease()
    await world.fail(leased, "killed while writing /home/comfy/output/secret.png", fault=Fault.INTERRUPTED)
    async with (await world.engine.databases.shard_of(job.tenant_id)).read() as tx:
        data = [str(event.data) for event in await history.events_after(tx, [Position(job.tenant_id, job.id, 0)])]
    assert any("killed while writing" in text for text in data)
    assert not any("/home" in text for text in data)


async def test_deferred_writes_of_a_failed_transaction_are_dropped(world: World) -> None:
    central = world.engine.databases.central

    async def fail(tx: Tx) -> None:
        await audit.record(tx, [NewAuditEntry(worker_id="ghost", event="register")])
        raise RuntimeError("after the write")

    with pytest.raises(RuntimeError, match="after the write"):
        await central.run("test", fail)
    # the second reader reuses the connection of the failed transaction
    for _ in range(2):
        async with central.read() as tx:
            assert (await audit.page(tx, worker_id="ghost"))[0] == []
