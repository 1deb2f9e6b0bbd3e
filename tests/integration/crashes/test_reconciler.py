"""The reconciler finds and repairs every possible disagreement, and reports nothing about a system that is only busy.

No service leaves such states behind, so the tests create them by hand. If the schema forbids one, the test removes the
guard first, as a restored backup or a careless operator might.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from comfyrelay.domain.consistency import FindingKind, Inconsistency
from comfyrelay.domain.queue.states import Provider
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.services.engine import Engine
from comfyrelay.services.operations.repair import REPAIR_BATCH_SIZE, SAFE
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Boundary, Database
from comfyrelay.store.notify import LocalNotifyChannel
from tests.integration.crashes.cases import on_both
from tests.support.crashes import crash_at, drain
from tests.support.invariants import balance_is_the_sum, broken, every_job_has_ended, look
from tests.support.world import PATIENCE_SECONDS, Crash, Desk, World, execute


@dataclass(kw_only=True)
class Seeded:
    """Other findings caused by the seeded state, and the expected final state."""

    ends: Sequence[str]
    balance: int
    desk: Desk
    # By job, or None if it concerns no single job.
    about: str | None = None
    also: frozenset[FindingKind] = field(default_factory=frozenset)


Seed = Callable[[World], Awaitable[Seeded]]


class QuietDesk(Desk):
    """A desk without submissions in progress: nothing is reported about those."""

    async def submit(self, **values: Any) -> JobRecord:
        job = await super().submit(**values)
        delivery = self.world.engine.outbox.delivery
        with delivery._submission_deferral.waiting():
            for shard in delivery._shards.values():
                await shard.submissions.idle()
        return job


async def quiet_desk(world: World, **options: Any) -> Desk:
    return QuietDesk(**vars(await world.desk(**options)))


async def dispatch_of_a_queued_job_is_gone(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job = await desk.submit()
    await execute(world.engine.databases.central, "DELETE FROM ai_job_dispatches")
    return Seeded(desk=desk, about=job.id, ends=["completed"], balance=990)


async def dispatch_of_a_running_job_is_gone(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job, _ = await desk.leased()
    await execute(world.engine.databases.central, "DELETE FROM dispatch_leases")
    await execute(world.engine.databases.central, "DELETE FROM ai_job_dispatches")
    return Seeded(desk=desk, about=job.id, ends=["completed"], balance=990)


async def job_of_a_dispatch_is_gone(world: World) -> Seeded:
    """Its reservation stays with its dispatch."""
    desk = await quiet_desk(world)
    job, _ = await desk.leased()
    await remove_job(await shard_of(desk))
    return Seeded(desk=desk, about=job.id, ends=[], balance=1000, also=frozenset({FindingKind.ORPHANED_RESERVE}))


async def job_and_dispatch_are_gone(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job = await desk.submit()
    await remove_job(await shard_of(desk))
    await execute(world.engine.databases.central, "DELETE FROM ai_job_dispatches")
    return Seeded(desk=desk, about=job.id, ends=[], balance=1000)


async def update_of_a_lease_is_lost(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job = await desk.submit()
    await undelivered(world, lambda: world.lease(desk.worker))
    await execute(world.engine.databases.central, "DELETE FROM outbox")
    return Seeded(desk=desk, about=job.id, ends=["completed"], balance=990)


async def update_of_a_completion_is_lost(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job, leased = await desk.leased()
    await undelivered(world, lambda: world.complete(leased))
    await execute(world.engine.databases.central, "DELETE FROM outbox")
    return Seeded(desk=desk, about=job.id, ends=["completed"], balance=990)


async def update_of_a_cancel_request_is_lost(world: World) -> Seeded:
    """The status does not show it; only the version does."""
    desk = await quiet_desk(world)
    job, _ = await desk.leased()
    await undelivered(world, lambda: world.engine.queue.control.cancel(job.tenant_id, job.id))
    await execute(world.engine.databases.central, "DELETE FROM outbox")
    return Seeded(desk=desk, about=job.id, ends=["canceled"], balance=1000)


async def first_of_two_updates_is_lost(world: World) -> Seeded:
    """The second can never be applied, however often it is delivered."""
    desk = await quiet_desk(world)
    job = await desk.submit()
    await undelivered(world, lambda: world.lease(desk.worker))
    await execute(world.engine.databases.central, "DELETE FROM outbox")
    await undelivered(world, lambda: world.engine.workers.workers.release(desk.worker, reason="test"))
    return Seeded(desk=desk, about=job.id, ends=["completed"], balance=990)


async def dispatch_is_older_than_its_job(world: World) -> Seeded:
    """As if the central database had been restored from a backup."""
    desk = await quiet_desk(world)
    job, leased = await desk.leased()
    await world.complete(leased)
    await execute(
        world.engine.databases.central,
        "UPDATE ai_job_dispatches SET status = 'queued', finished_at = NULL, version = 0, attempts = 0",
    )
    return Seeded(desk=desk, about=job.id, ends=["completed"], balance=990)


async def dispatch_ended_otherwise_than_its_job(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job, leased = await desk.leased()
    await world.complete(leased)
    await execute(world.engine.databases.central, "UPDATE ai_job_dispatches SET status = 'canceled'")
    return Seeded(desk=desk, about=job.id, ends=["completed"], balance=990)


async def reserve_of_a_queued_job_is_gone(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job = await desk.submit()
    await forget_transaction(await shard_of(desk), "JOB_RESERVE", balance=1000)
    return Seeded(desk=desk, about=job.id, ends=["completed"], balance=990)


async def reserve_of_a_job_that_nobody_can_pay_is_gone(world: World) -> Seeded:
    desk = await quiet_desk(world, tokens=10)
    job = await desk.submit()
    shard = await shard_of(desk)
    await forget_transaction(shard, "JOB_RESERVE", balance=10)
    await forget_transaction(shard, "PAYMENT_CREDIT", balance=0)
    return Seeded(desk=desk, about=job.id, ends=["completed"], balance=0)


async def reserve_of_a_completed_job_is_gone(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job, leased = await desk.leased()
    await world.complete(leased)
    await forget_transaction(await shard_of(desk), "JOB_RESERVE", balance=1000)
    return Seeded(desk=desk, about=job.id, ends=["completed"], balance=1000)


async def reserve_of_a_failed_job_is_gone(world: World) -> Seeded:
    """A refund would give tokens away."""
    desk = await quiet_desk(world)
    job, leased = await desk.leased()
    await world.fail(leased)
    await forget_transaction(await shard_of(desk), "JOB_RESERVE", balance=1010)
    return Seeded(desk=desk, about=job.id, ends=["failed"], balance=1000)


async def running_job_is_refunded(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job, _ = await desk.leased()
    await add_transaction(desk, job, "JOB_REFUND", 10, balance=1000)
    return Seeded(desk=desk, about=job.id, ends=["failed"], balance=1000)


async def queued_job_is_consumed(world: World) -> Seeded:
    """It is abandoned, and the consumed tokens are returned by an adjustment."""
    desk = await quiet_desk(world)
    job = await desk.submit()
    await add_transaction(desk, job, "JOB_CONSUME", 0, balance=990)
    return Seeded(desk=desk, about=job.id, ends=["failed"], balance=1000)


async def completed_job_is_not_consumed(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job, leased = await desk.leased()
    await world.complete(leased)
    await forget_transaction(await shard_of(desk), "JOB_CONSUME", balance=990)
    return Seeded(desk=desk, about=job.id, ends=["completed"], balance=990)


async def canceled_job_is_not_refunded(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job = await desk.submit()
    await world.engine.queue.control.cancel(job.tenant_id, job.id)
    await forget_transaction(await shard_of(desk), "JOB_REFUND", balance=990)
    return Seeded(desk=desk, about=job.id, ends=["canceled"], balance=1000)


async def completed_job_is_refunded(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job, leased = await desk.leased()
    await world.complete(leased)
    await forget_transaction(await shard_of(desk), "JOB_CONSUME", balance=990)
    await add_transaction(desk, job, "JOB_REFUND", 10, balance=1000)
    return Seeded(desk=desk, about=job.id, ends=["completed"], balance=990)


async def failed_job_is_consumed(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job, leased = await desk.leased()
    await world.fail(leased)
    await forget_transaction(await shard_of(desk), "JOB_REFUND", balance=990)
    await add_transaction(desk, job, "JOB_CONSUME", 0, balance=990)
    return Seeded(desk=desk, about=job.id, ends=["failed"], balance=1000)


async def balance_is_not_the_sum(world: World) -> Seeded:
    desk = await quiet_desk(world)
    await desk.submit()
    await execute(await shard_of(desk), "UPDATE token_wallets SET balance = 5")
    return Seeded(desk=desk, ends=["completed"], balance=990)


async def sum_is_below_zero(world: World) -> Seeded:
    """The schema forbids a negative balance, so only the sum can be negative."""
    desk = await quiet_desk(world, tokens=10)
    await desk.submit()
    await forget_transaction(await shard_of(desk), "PAYMENT_CREDIT", balance=0)
    return Seeded(desk=desk, ends=["completed"], balance=0)


async def video_shows_another_state(world: World) -> Seeded:
    desk = await quiet_desk(world)
    video = await world.engine.accounts.tenancy.add_video(desk.user, original_file_id=await desk.file())
    job, leased = await desk.leased(video_id=video)
    await world.complete(leased)
    await execute(await shard_of(desk), "UPDATE videos SET status = 'processing'")
    return Seeded(desk=desk, about=job.id, ends=["completed"], balance=990)


async def update_is_stuck(world: World) -> Seeded:
    desk = await quiet_desk(world)
    _, leased = await desk.leased()
    await undelivered(world, lambda: world.complete(leased))
    await world.advance(61)
    return Seeded(desk=desk, ends=["completed"], balance=990)


async def submission_is_stuck(world: World) -> Seeded:
    desk = await quiet_desk(world)
    await interrupted(world, TransactionStep.SUBMIT_ENQUEUE, desk.submit)
    await world.advance(61)
    return Seeded(desk=desk, ends=["completed"], balance=990)


async def ended_lease_has_no_end(world: World) -> Seeded:
    desk = await quiet_desk(world)
    _, leased = await desk.leased()
    await world.requeue(leased)
    await execute(world.engine.databases.central, "UPDATE dispatch_leases SET ended_at = NULL")
    return Seeded(desk=desk, ends=["completed"], balance=990)


async def shard_is_not_configured(world: World) -> Seeded:
    desk = await quiet_desk(world)
    await desk.submit()
    await execute(world.engine.databases.central, "UPDATE ai_job_dispatches SET shard = 'elsewhere'")
    return Seeded(desk=desk, ends=["queued"], balance=990)


SEEDS: Mapping[FindingKind, Sequence[Seed]] = {
    FindingKind.MISSING_DISPATCH: [dispatch_of_a_queued_job_is_gone, dispatch_of_a_running_job_is_gone],
    FindingKind.ORPHANED_DISPATCH: [job_of_a_dispatch_is_gone],
    FindingKind.JOB_BEHIND: [
        update_of_a_lease_is_lost,
        update_of_a_completion_is_lost,
        update_of_a_cancel_request_is_lost,
        first_of_two_updates_is_lost,
    ],
    FindingKind.DISPATCH_BEHIND: [dispatch_is_older_than_its_job, dispatch_ended_otherwise_than_its_job],
    FindingKind.MISSING_RESERVE: [
        reserve_of_a_queued_job_is_gone,
        reserve_of_a_job_that_nobody_can_pay_is_gone,
        reserve_of_a_completed_job_is_gone,
        reserve_of_a_failed_job_is_gone,
    ],
    FindingKind.ORPHANED_RESERVE: [job_and_dispatch_are_gone],
    FindingKind.SETTLED_EARLY: [running_job_is_refunded, queued_job_is_consumed],
    FindingKind.UNSETTLED: [completed_job_is_not_consumed, canceled_job_is_not_refunded],
    FindingKind.SETTLED_WRONG: [completed_job_is_refunded, failed_job_is_consumed],
    FindingKind.WALLET_DRIFT: [balance_is_not_the_sum, sum_is_below_zero],
    FindingKind.VIDEO_DIFFERS: [video_shows_another_state],
    FindingKind.STUCK_OUTBOX: [update_is_stuck, submission_is_stuck],
    FindingKind.DANGLING_LEASE: [ended_lease_has_no_end],
    FindingKind.UNKNOWN_SHARD: [shard_is_not_configured],
}
# Only the operator knows where that shard is.
NOT_MENDED = {FindingKind.UNKNOWN_SHARD}
MENDED = [[(kind, seed) for seed in seeds] for kind, seeds in SEEDS.items() if kind not in NOT_MENDED]


@pytest.mark.parametrize("kind", FindingKind)
def test_every_kind_of_disagreement_is_seeded(kind: FindingKind) -> None:
    assert SEEDS.get(kind), f"Nothing seeds {kind}: add a seed to SEEDS."


@pytest.mark.parametrize(("backend", "kind", "seed"), on_both(MENDED), indirect=["backend"])
async def test_disagreement_is_found_and_repaired(world: World, kind: FindingKind, seed: Seed) -> None:
    seeded = await seed(world)
    found = (await world.engine.operations.reconciler.run()).findings
    assert {each.kind for each in found} == {kind} | seeded.also
    assert {each.job_id for each in found} == {seeded.about}
    mending = await world.engine.operations.reconciler.run(repair=True)
    assert {finding.key for finding in mending.findings} == {each.key for each in found}
    assert {each.key for each in mending.repaired} == {each.key for each in found}
    assert (await world.engine.operations.reconciler.run()).findings == []
    await drain(world)
    assert (await world.engine.operations.reconciler.run()).findings == []
    facts = await look(world)
    assert broken(facts, (balance_is_the_sum, every_job_has_ended)) == []
    assert [job.status for job in facts.jobs] == list(seeded.ends)
    assert await seeded.desk.balance() == seeded.balance


@pytest.mark.parametrize("at_once", [1, 20_000])
@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind in sorted(SAFE) for seed in SEEDS[kind]])
async def test_unambiguous_disagreement_is_repaired_and_reported(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: FindingKind, seed: Seed, at_once: int
) -> None:
    monkeypatch.setattr("comfyrelay.services.operations.repair.MAX_JOBS", at_once)
    seeded = await seed(world)
    # older and younger jobs in a consistent state
    workers = await world.worker(seeded.desk.fleet, concurrency=10)
    for _ in range(2):
        await world.submit(seeded.desk.user, seeded.desk.effect)
    for leased in await world.leases(workers, 2):
        await world.complete(leased)
    mending = world.engine.operations.auto_repair
    assert await mending.run_once() == 0, "it may be on its way"
    await world.advance(61)
    assert sum([await mending.run_once() for _ in range(3)]) == 1
    assert mending.repaired == {kind: 1}
    [entry] = (await world.engine.operations.inspection.audit_logs(event="repair", limit=10)).items
    assert entry.data is not None
    assert (entry.data["kind"], entry.data["job_id"]) == (kind, seeded.about)
    assert (await world.engine.operations.reconciler.run()).findings == []
    assert await mending.run_once() == 0


async def test_very_many_that_came_apart_are_looked_at_a_few_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    mending, looked_at = world.engine.operations.auto_repair, list[int]()

    async def suspects(_shard: str) -> list[str]:
        return [f"job-{number:04}" for number in range(2 * REPAIR_BATCH_SIZE + 1)]

    async def mend(_shard: str, job_ids: Sequence[str], _kinds: object) -> list[Inconsistency]:
        looked_at.append(len(job_ids))
        return []

    monkeypatch.setattr(mending, "_unsettled", suspects)
    monkeypatch.setattr(world.engine.operations.reconciler, "repair_jobs", mend)
    assert await mending.run_once() == 0
    shards = len(world.engine.databases.shards)
    assert looked_at == shards * [REPAIR_BATCH_SIZE, REPAIR_BATCH_SIZE, 1]


async def test_processes_that_mend_at_the_same_time_mend_once(world: World) -> None:
    queued = await dispatch_of_a_running_job_is_gone(world)
    canceled = await queued.desk.submit()
    await world.engine.queue.control.cancel(canceled.tenant_id, canceled.id)
    await forget_transaction(await shard_of(queued.desk), "JOB_REFUND", balance=980)
    await world.advance(61)
    async with Engine(
        world.engine.settings, clock=lambda: world.clock.now, notify_channel=LocalNotifyChannel()
    ) as other:
        await asyncio.gather(world.engine.operations.auto_repair.run_once(), other.operations.auto_repair.run_once())
    assert (await world.engine.operations.reconciler.run()).findings == []
    assert await queued.desk.balance() == 990


async def test_worker_whose_lease_ends_like_its_job_is_stopped_at_once(world: World) -> None:
    """No tick wakes it here."""
    stops = world.engine.queue.stop_requests
    stops._tick_seconds = 10 * PATIENCE_SECONDS
    desk = await quiet_desk(world)
    job, leased = await desk.leased()
    await execute(await shard_of(desk), "UPDATE ai_jobs SET status = 'canceled', completed_at = created_at")
    with stops.watching(leased.dispatch_id) as wakeup:
        await world.engine.operations.reconciler.run(repair=True)
        assert await wakeup.wait(0)
    assert (await world.dispatch(job)).status == "canceled"
    assert await desk.balance() == 1000


@pytest.mark.parametrize("seed", [seed for kind in NOT_MENDED for seed in SEEDS[kind]])
async def test_shard_that_is_not_configured_is_reported_and_left_alone(world: World, seed: Seed) -> None:
    seeded = await seed(world)
    before = await look(world)
    for repair in (False, True, False):
        report = await world.engine.operations.reconciler.run(repair=repair)
        assert [finding.kind for finding in report.findings] == [FindingKind.UNKNOWN_SHARD]
        assert report.repaired == []
    assert await look(world) == before
    assert [job.status for job in before.jobs] == list(seeded.ends)


async def test_busy_system_is_clean_and_left_alone(world: World) -> None:
    """Jobs in every state, in both shards, with submissions and reports in progress."""
    desk = await quiet_desk(world, concurrency=10)
    other = await world.user(shard="b")
    completed, failed, canceled = [await desk.leased() for _ in range(3)]
    await world.complete(completed[1])
    await world.fail(failed[1])
    await world.engine.queue.control.cancel(canceled[0].tenant_id, canceled[0].id)
    await world.requeue(canceled[1])
    await world.engine.jobs.submit.retry(failed[0].tenant_id, failed[0].id)
    paused = await world.submit(other, desk.effect)
    await world.engine.queue.control.pause(paused.tenant_id, paused.id)
    running = await world.leases(desk.worker, 1)
    assert len(running) == 1
    await world.submit(other, desk.effect)
    await interrupted(world, TransactionStep.SUBMIT_ENQUEUE, lambda: world.submit(other, desk.effect))
    told_late = await world.submit(other, desk.effect)
    await undelivered(world, lambda: world.engine.queue.control.set_priority(told_late.tenant_id, told_late.id, 3))
    await undelivered(world, lambda: world.leases(desk.worker, 10, providers=list(Provider)))
    before = await look(world)
    assert {job.status for job in before.jobs} >= {
        "queued",
        "processing",
        "completed",
        "failed",
        "canceled",
        "paused",
    }
    assert before.entries
    assert before.submitted
    report = await world.engine.operations.reconciler.run()
    assert report.findings == []
    assert report.is_clean
    assert report.jobs == len(before.jobs)
    assert await look(world) == before


async def undelivered(world: World, act: Callable[[], Awaitable[object]]) -> None:
    """A report that an earlier process stored and did not deliver."""
    await interrupted(world, TransactionStep.DELIVER_APPLY, act)


async def interrupted(world: World, step: TransactionStep, act: Callable[[], Awaitable[object]]) -> None:
    crash_at(world, step, Boundary.BEFORE_COMMIT)
    with suppress(Crash):
        await act()
    await world.settled()
    await world.restart()


async def shard_of(desk: Desk) -> Database:
    return await desk.world.engine.databases.shard_of(desk.user.tenant_id)


async def remove_job(shard: Database) -> None:
    for table in ("job_attempts", "job_events", "ai_jobs"):
        await execute(shard, f"DELETE FROM {table}")


async def forget_transaction(shard: Database, type_: str, *, balance: int) -> None:
    """A trigger makes transactions append-only, so it is removed first; the balance is adjusted."""
    if shard.dialect == "postgresql":
        await execute(shard, "ALTER TABLE token_transactions DISABLE TRIGGER USER")
    else:
        await execute(shard, "DROP TRIGGER IF EXISTS token_transactions_append_only_delete")
    await execute(shard, "DELETE FROM token_transactions WHERE type = :type", type=type_)
    await execute(shard, "UPDATE token_wallets SET balance = :balance", balance=balance)


async def add_transaction(desk: Desk, job: JobRecord, type_: str, amount: int, *, balance: int) -> None:
    shard = await shard_of(desk)
    await execute(
        shard,
        "INSERT INTO token_transactions (tenant_id, job_id, type, amount, created_at)"
        " VALUES (:tenant_id, :job_id, :type, :amount, relay_now(0))",
        tenant_id=job.tenant_id,
        job_id=job.id,
        type=type_,
        amount=amount,
    )
    await execute(shard, "UPDATE token_wallets SET balance = :balance", balance=balance)
