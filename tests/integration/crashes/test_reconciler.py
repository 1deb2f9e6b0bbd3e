"""The reconciler finds and repairs every kind of inconsistency, and reports nothing about a busy system.

No service leaves such states behind, so the tests create them by hand. If the schema forbids one, the test removes the
guard first, as a restored backup or a careless operator might.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from comfyrelay.domain.consistency import FindingKind, Inconsistency
from comfyrelay.domain.queue.states import Provider
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.services.engine import Engine
from comfyrelay.services.operations.repair import REPAIR_BATCH_SIZE, SAFE
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Database
from comfyrelay.store.notify import NotifyChannel
from tests.integration.crashes.cases import on_both
from tests.support.crashes import drain, interrupt, interrupt_delivery
from tests.support.full import full_only
from tests.support.invariants import balance_is_the_sum, every_job_has_ended, find_violations, read_facts
from tests.support.world import PATIENCE_SECONDS, Desk, World, execute


@dataclass(kw_only=True)
class Seeded:
    """The expected findings, and the final state after the repair."""

    ends: Sequence[str]
    balance: int
    desk: Desk
    # None if the finding concerns no single job.
    job_id: str | None = None
    other_findings: frozenset[FindingKind] = field(default_factory=frozenset)


Seed = Callable[[World], Awaitable[Seeded]]


class QuietDesk(Desk):
    """A desk that waits for its submissions: the reconciler ignores those in progress."""

    async def submit(self, **values: Any) -> JobRecord:
        job = await super().submit(**values)
        delivery = self.world.engine.outbox.delivery
        with delivery._submission_deferral.waiting():
            for shard in delivery._shards.values():
                await shard.submissions.idle()
        return job


async def quiet_desk(world: World, **options: Any) -> Desk:
    return QuietDesk(**vars(await world.desk(**options)))


async def queued_job_without_dispatch(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job = await desk.submit()
    await execute(world.engine.databases.central, "DELETE FROM ai_job_dispatches")
    return Seeded(desk=desk, job_id=job.id, ends=["completed"], balance=990)


async def running_job_without_dispatch(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job, _ = await desk.submit_and_lease()
    await execute(world.engine.databases.central, "DELETE FROM dispatch_leases")
    await execute(world.engine.databases.central, "DELETE FROM ai_job_dispatches")
    return Seeded(desk=desk, job_id=job.id, ends=["completed"], balance=990)


async def dispatch_without_job(world: World) -> Seeded:
    """The tokens of the dispatch are still reserved."""
    desk = await quiet_desk(world)
    job, _ = await desk.submit_and_lease()
    await delete_job(await shard_of(desk))
    return Seeded(
        desk=desk, job_id=job.id, ends=[], balance=1000, other_findings=frozenset({FindingKind.ORPHANED_RESERVE})
    )


async def reserve_without_job_and_dispatch(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job = await desk.submit()
    await delete_job(await shard_of(desk))
    await execute(world.engine.databases.central, "DELETE FROM ai_job_dispatches")
    return Seeded(desk=desk, job_id=job.id, ends=[], balance=1000)


async def lost_lease_update(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job = await desk.submit()
    await interrupt_delivery(world, lambda: world.lease(desk.worker))
    await execute(world.engine.databases.central, "DELETE FROM outbox")
    return Seeded(desk=desk, job_id=job.id, ends=["completed"], balance=990)


async def lost_completion_update(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job, leased = await desk.submit_and_lease()
    await interrupt_delivery(world, lambda: world.complete(leased))
    await execute(world.engine.databases.central, "DELETE FROM outbox")
    return Seeded(desk=desk, job_id=job.id, ends=["completed"], balance=990)


async def lost_cancel_update(world: World) -> Seeded:
    """Only the version differs, not the status."""
    desk = await quiet_desk(world)
    job, _ = await desk.submit_and_lease()
    await interrupt_delivery(world, lambda: world.engine.queue.control.cancel(job.tenant_id, job.id))
    await execute(world.engine.databases.central, "DELETE FROM outbox")
    return Seeded(desk=desk, job_id=job.id, ends=["canceled"], balance=1000)


async def lost_first_of_two_updates(world: World) -> Seeded:
    """Without the first update, the second one can never be applied."""
    desk = await quiet_desk(world)
    job = await desk.submit()
    await interrupt_delivery(world, lambda: world.lease(desk.worker))
    await execute(world.engine.databases.central, "DELETE FROM outbox")
    await interrupt_delivery(world, lambda: world.engine.workers.workers.release(desk.worker, reason="test"))
    return Seeded(desk=desk, job_id=job.id, ends=["completed"], balance=990)


async def dispatch_older_than_job(world: World) -> Seeded:
    """The central database looks as if it had been restored from a backup."""
    desk = await quiet_desk(world)
    job, leased = await desk.submit_and_lease()
    await world.complete(leased)
    await execute(
        world.engine.databases.central,
        "UPDATE ai_job_dispatches SET status = 'queued', finished_at = NULL, version = 0, attempts = 0",
    )
    return Seeded(desk=desk, job_id=job.id, ends=["completed"], balance=990)


async def different_terminal_states(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job, leased = await desk.submit_and_lease()
    await world.complete(leased)
    await execute(world.engine.databases.central, "UPDATE ai_job_dispatches SET status = 'canceled'")
    return Seeded(desk=desk, job_id=job.id, ends=["completed"], balance=990)


async def queued_job_without_reserve(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job = await desk.submit()
    await delete_transaction(await shard_of(desk), "JOB_RESERVE", balance=1000)
    return Seeded(desk=desk, job_id=job.id, ends=["completed"], balance=990)


async def unpaid_job_without_reserve(world: World) -> Seeded:
    desk = await quiet_desk(world, tokens=10)
    job = await desk.submit()
    shard = await shard_of(desk)
    await delete_transaction(shard, "JOB_RESERVE", balance=10)
    await delete_transaction(shard, "PAYMENT_CREDIT", balance=0)
    return Seeded(desk=desk, job_id=job.id, ends=["completed"], balance=0)


async def completed_job_without_reserve(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job, leased = await desk.submit_and_lease()
    await world.complete(leased)
    await delete_transaction(await shard_of(desk), "JOB_RESERVE", balance=1000)
    return Seeded(desk=desk, job_id=job.id, ends=["completed"], balance=1000)


async def failed_job_without_reserve(world: World) -> Seeded:
    """A refund would create tokens."""
    desk = await quiet_desk(world)
    job, leased = await desk.submit_and_lease()
    await world.fail(leased)
    await delete_transaction(await shard_of(desk), "JOB_RESERVE", balance=1010)
    return Seeded(desk=desk, job_id=job.id, ends=["failed"], balance=1000)


async def refunded_running_job(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job, _ = await desk.submit_and_lease()
    await add_transaction(desk, job, "JOB_REFUND", 10, balance=1000)
    return Seeded(desk=desk, job_id=job.id, ends=["failed"], balance=1000)


async def consumed_queued_job(world: World) -> Seeded:
    """The job is abandoned, and the consumed tokens are returned by an adjustment."""
    desk = await quiet_desk(world)
    job = await desk.submit()
    await add_transaction(desk, job, "JOB_CONSUME", 0, balance=990)
    return Seeded(desk=desk, job_id=job.id, ends=["failed"], balance=1000)


async def unconsumed_completed_job(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job, leased = await desk.submit_and_lease()
    await world.complete(leased)
    await delete_transaction(await shard_of(desk), "JOB_CONSUME", balance=990)
    return Seeded(desk=desk, job_id=job.id, ends=["completed"], balance=990)


async def unrefunded_canceled_job(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job = await desk.submit()
    await world.engine.queue.control.cancel(job.tenant_id, job.id)
    await delete_transaction(await shard_of(desk), "JOB_REFUND", balance=990)
    return Seeded(desk=desk, job_id=job.id, ends=["canceled"], balance=1000)


async def refunded_completed_job(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job, leased = await desk.submit_and_lease()
    await world.complete(leased)
    await delete_transaction(await shard_of(desk), "JOB_CONSUME", balance=990)
    await add_transaction(desk, job, "JOB_REFUND", 10, balance=1000)
    return Seeded(desk=desk, job_id=job.id, ends=["completed"], balance=990)


async def consumed_failed_job(world: World) -> Seeded:
    desk = await quiet_desk(world)
    job, leased = await desk.submit_and_lease()
    await world.fail(leased)
    await delete_transaction(await shard_of(desk), "JOB_REFUND", balance=990)
    await add_transaction(desk, job, "JOB_CONSUME", 0, balance=990)
    return Seeded(desk=desk, job_id=job.id, ends=["failed"], balance=1000)


async def wrong_balance(world: World) -> Seeded:
    desk = await quiet_desk(world)
    await desk.submit()
    await execute(await shard_of(desk), "UPDATE token_wallets SET balance = 5")
    return Seeded(desk=desk, ends=["completed"], balance=990)


async def negative_sum(world: World) -> Seeded:
    """The schema forbids a negative balance, so only the sum can be negative."""
    desk = await quiet_desk(world, tokens=10)
    await desk.submit()
    await delete_transaction(await shard_of(desk), "PAYMENT_CREDIT", balance=0)
    return Seeded(desk=desk, ends=["completed"], balance=0)


async def outdated_video(world: World) -> Seeded:
    desk = await quiet_desk(world)
    video = await world.engine.accounts.tenancy.add_video(desk.user, original_file_id=await desk.file())
    job, leased = await desk.submit_and_lease(video_id=video)
    await world.complete(leased)
    await execute(await shard_of(desk), "UPDATE videos SET status = 'processing'")
    return Seeded(desk=desk, job_id=job.id, ends=["completed"], balance=990)


async def stuck_update(world: World) -> Seeded:
    desk = await quiet_desk(world)
    _, leased = await desk.submit_and_lease()
    await interrupt_delivery(world, lambda: world.complete(leased))
    await world.advance(61)
    return Seeded(desk=desk, ends=["completed"], balance=990)


async def stuck_submission(world: World) -> Seeded:
    desk = await quiet_desk(world)
    await interrupt(world, TransactionStep.SUBMIT_ENQUEUE, desk.submit)
    await world.advance(61)
    return Seeded(desk=desk, ends=["completed"], balance=990)


async def lease_without_end(world: World) -> Seeded:
    desk = await quiet_desk(world)
    _, leased = await desk.submit_and_lease()
    await world.requeue(leased)
    await execute(world.engine.databases.central, "UPDATE dispatch_leases SET ended_at = NULL")
    return Seeded(desk=desk, ends=["completed"], balance=990)


async def unknown_shard(world: World) -> Seeded:
    desk = await quiet_desk(world)
    await desk.submit()
    await execute(world.engine.databases.central, "UPDATE ai_job_dispatches SET shard = 'elsewhere'")
    return Seeded(desk=desk, ends=["queued"], balance=990)


SEEDS: Mapping[FindingKind, Sequence[Seed]] = {
    FindingKind.MISSING_DISPATCH: [queued_job_without_dispatch, running_job_without_dispatch],
    FindingKind.ORPHANED_DISPATCH: [dispatch_without_job],
    FindingKind.JOB_BEHIND: [
        lost_lease_update,
        lost_completion_update,
        lost_cancel_update,
        lost_first_of_two_updates,
    ],
    FindingKind.DISPATCH_BEHIND: [dispatch_older_than_job, different_terminal_states],
    FindingKind.MISSING_RESERVE: [
        queued_job_without_reserve,
        unpaid_job_without_reserve,
        completed_job_without_reserve,
        failed_job_without_reserve,
    ],
    FindingKind.ORPHANED_RESERVE: [reserve_without_job_and_dispatch],
    FindingKind.SETTLED_EARLY: [refunded_running_job, consumed_queued_job],
    FindingKind.UNSETTLED: [unconsumed_completed_job, unrefunded_canceled_job],
    FindingKind.SETTLED_WRONG: [refunded_completed_job, consumed_failed_job],
    FindingKind.WALLET_DRIFT: [wrong_balance, negative_sum],
    FindingKind.VIDEO_DIFFERS: [outdated_video],
    FindingKind.STUCK_OUTBOX: [stuck_update, stuck_submission],
    FindingKind.DANGLING_LEASE: [lease_without_end],
    FindingKind.UNKNOWN_SHARD: [unknown_shard],
}
# Only the operator knows where an unknown shard is.
NOT_REPAIRABLE = {FindingKind.UNKNOWN_SHARD}
REPAIRABLE = [[(kind, seed) for seed in seeds] for kind, seeds in SEEDS.items() if kind not in NOT_REPAIRABLE]


def test_every_finding_kind_is_seeded() -> None:
    missing = set(FindingKind) - SEEDS.keys()
    assert not missing, f"No test creates {missing}: add a seed to SEEDS."


@pytest.mark.parametrize(("backend", "kind", "seed"), on_both(REPAIRABLE), indirect=["backend"])
async def test_inconsistency_is_found_and_repaired(world: World, kind: FindingKind, seed: Seed) -> None:
    seeded = await seed(world)
    found = (await world.engine.operations.reconciler.run()).findings
    assert {finding.kind for finding in found} == {kind} | seeded.other_findings
    assert {finding.job_id for finding in found} == {seeded.job_id}
    repair = await world.engine.operations.reconciler.run(repair=True)
    repaired = {finding.key for finding in repair.repaired}
    assert {finding.key for finding in repair.findings} == repaired
    # Repairing one finding may repair others.
    assert {finding.key for finding in found if finding.kind is kind} <= repaired <= {finding.key for finding in found}
    assert (await world.engine.operations.reconciler.run()).findings == []
    await drain(world)
    assert (await world.engine.operations.reconciler.run()).findings == []
    facts = await read_facts(world)
    assert find_violations(facts, (balance_is_the_sum, every_job_has_ended)) == []
    assert [job.status for job in facts.jobs] == list(seeded.ends)
    assert await seeded.desk.balance() == seeded.balance


@pytest.mark.parametrize("max_jobs", [1, *full_only(20_000)])
@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind in sorted(SAFE) for seed in SEEDS[kind]])
async def test_unambiguous_inconsistency_is_repaired_automatically(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: FindingKind, seed: Seed, max_jobs: int
) -> None:
    monkeypatch.setattr("comfyrelay.services.operations.repair.MAX_JOBS", max_jobs)
    seeded = await seed(world)
    # older and younger jobs in a consistent state
    worker = await world.worker(seeded.desk.fleet, concurrency=10)
    for _ in range(2):
        await world.submit(seeded.desk.user, seeded.desk.effect)
    for leased in await world.leases(worker, 2):
        await world.complete(leased)
    auto_repair = world.engine.operations.auto_repair
    assert await auto_repair.run_once() == 0, "the update may still be in progress"
    await world.advance(61)
    assert sum([await auto_repair.run_once() for _ in range(3)]) == 1
    assert auto_repair.repaired == {kind: 1}
    [entry] = (await world.engine.operations.inspection.audit_logs(event="repair", limit=10)).items
    assert entry.data is not None
    assert (entry.data["kind"], entry.data["job_id"]) == (kind, seeded.job_id)
    assert (await world.engine.operations.reconciler.run()).findings == []
    assert await auto_repair.run_once() == 0


async def test_suspects_are_checked_in_batches(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    auto_repair, checked = world.engine.operations.auto_repair, list[int]()

    async def suspects(_shard: str) -> list[str]:
        return [f"job-{number:04}" for number in range(2 * REPAIR_BATCH_SIZE + 1)]

    async def repair_jobs(_shard: str, job_ids: Sequence[str], _kinds: object) -> list[Inconsistency]:
        checked.append(len(job_ids))
        return []

    monkeypatch.setattr(auto_repair, "_find_unsettled", suspects)
    monkeypatch.setattr(world.engine.operations.reconciler, "repair_jobs", repair_jobs)
    assert await auto_repair.run_once() == 0
    shards = len(world.engine.databases.shards)
    assert checked == shards * [REPAIR_BATCH_SIZE, REPAIR_BATCH_SIZE, 1]


async def test_concurrent_repairs_repair_once(world: World) -> None:
    seeded = await running_job_without_dispatch(world)
    canceled = await seeded.desk.submit()
    await world.engine.queue.control.cancel(canceled.tenant_id, canceled.id)
    await delete_transaction(await shard_of(seeded.desk), "JOB_REFUND", balance=980)
    await world.advance(61)
    async with Engine(world.engine.settings, clock=lambda: world.clock.now, notify_channel=NotifyChannel()) as other:
        await asyncio.gather(world.engine.operations.auto_repair.run_once(), other.operations.auto_repair.run_once())
    assert (await world.engine.operations.reconciler.run()).findings == []
    assert await seeded.desk.balance() == 990


async def test_repair_stops_the_worker_of_an_ended_job_at_once(world: World) -> None:
    stops = world.engine.queue.stop_requests
    # no tick, so that only the repair can wake the worker
    stops._tick_seconds = 10 * PATIENCE_SECONDS
    desk = await quiet_desk(world)
    job, leased = await desk.submit_and_lease()
    await execute(await shard_of(desk), "UPDATE ai_jobs SET status = 'canceled', completed_at = created_at")
    with stops.watching(leased.dispatch_id) as wakeup:
        await world.engine.operations.reconciler.run(repair=True)
        assert await wakeup.wait(0)
    assert (await world.dispatch(job)).status == "canceled"
    assert await desk.balance() == 1000


@pytest.mark.parametrize("seed", [seed for kind in NOT_REPAIRABLE for seed in SEEDS[kind]])
async def test_dispatch_of_an_unknown_shard_is_reported_and_not_changed(world: World, seed: Seed) -> None:
    seeded = await seed(world)
    before = await read_facts(world)
    for repair in (False, True, False):
        report = await world.engine.operations.reconciler.run(repair=repair)
        assert [finding.kind for finding in report.findings] == [FindingKind.UNKNOWN_SHARD]
        assert report.repaired == []
    assert await read_facts(world) == before
    assert [job.status for job in before.jobs] == list(seeded.ends)


async def test_busy_system_is_consistent(world: World) -> None:
    """Jobs in every state, in both shards, with submissions and reports in progress."""
    desk = await quiet_desk(world, concurrency=10)
    other = await world.user(shard="b")
    completed, failed, canceled = [await desk.submit_and_lease() for _ in range(3)]
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
    await interrupt(world, TransactionStep.SUBMIT_ENQUEUE, lambda: world.submit(other, desk.effect))
    undelivered = await world.submit(other, desk.effect)
    await interrupt_delivery(
        world, lambda: world.engine.queue.control.set_priority(undelivered.tenant_id, undelivered.id, 3)
    )
    await interrupt_delivery(world, lambda: world.leases(desk.worker, 10, providers=list(Provider)))
    before = await read_facts(world)
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
    assert await read_facts(world) == before


async def shard_of(desk: Desk) -> Database:
    return await desk.world.engine.databases.shard_of(desk.user.tenant_id)


async def delete_job(shard: Database) -> None:
    for table in ("job_attempts", "job_events", "ai_jobs"):
        await execute(shard, f"DELETE FROM {table}")


async def delete_transaction(shard: Database, type_: str, *, balance: int) -> None:
    """Remove the trigger that makes transactions append-only, delete the transaction, and adjust the balance."""
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
