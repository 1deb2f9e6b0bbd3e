"""The final report of a worker takes effect once, and only with the current lease."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from comfyrelay.domain.ids import output_id
from comfyrelay.domain.queue import customer_texts
from comfyrelay.domain.queue.dispatch import Dispatch
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import DatabaseUnavailable, Fault, LeaseLost
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.heartbeats import Heartbeat
from comfyrelay.services.queue.settle import Report, SettledOutput, Settlement, Verb
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store import outbox
from comfyrelay.store.central import catalogue
from comfyrelay.store.database import Boundary
from comfyrelay.store.outbox import OutboxEntry
from tests.support.world import OUTPUT, START, Desk, World, execute, shard_down, submit_many

pytestmark = pytest.mark.both_databases


@pytest.fixture
async def desk(world: World) -> Desk:
    return await world.desk()


async def beat(world: World, leased: LeasedDispatch, **values: Any) -> None:
    heartbeat = Heartbeat(dispatch_id=leased.dispatch_id, lease_token=leased.lease_token, **values)
    await world.engine.queue.heartbeats.beat(heartbeat)


async def complete(world: World, leased: LeasedDispatch, **values: Any) -> None:
    await world.complete(leased, **values)


async def fail(world: World, leased: LeasedDispatch, **values: Any) -> None:
    await world.fail(leased, **values)


async def requeue(world: World, leased: LeasedDispatch, **values: Any) -> None:
    await world.engine.queue.settle.requeue(leased.dispatch_id, leased.lease_token, reason="shutdown", **values)


ReportCall = Callable[..., Awaitable[None]]
REPORTS: list[ReportCall] = [beat, complete, fail, requeue]


@dataclass(frozen=True)
class Snapshot:
    job: JobRecord
    dispatch: Dispatch
    transactions: dict[str, int]
    attempts: list[Any]
    events: list[str]
    audit: list[str]


async def snapshot(world: World, desk: Desk, job: JobRecord) -> Snapshot:
    return Snapshot(
        job=await world.job(job),
        dispatch=await world.dispatch(job),
        transactions=await world.transactions(job),
        attempts=await world.attempts(job),
        events=await world.events(job),
        audit=await world.audit(desk.worker),
    )


async def entries(world: World, shard: str) -> list[OutboxEntry]:
    async with world.engine.databases.central.read() as tx:
        return await outbox.entries(tx, shard, limit=100)


async def files(world: World, job: JobRecord) -> list[Any]:
    shard = await world.engine.databases.shard_of(job.tenant_id)
    return await execute(shard, "SELECT * FROM files WHERE tenant_id = :tenant", tenant=job.tenant_id)


class TestComplete:
    async def test_complete_ends_lease_and_job_and_consumes_the_reservation(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        assert await desk.balance() == 990
        await world.advance(30)
        assert await world.complete(leased) == "completed"
        assert (await world.job(job)).status == "completed"
        assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_CONSUME": 0}
        await world.wait_for_deliveries()
        assert await world.entries() == []
        dispatch = await world.dispatch(job)
        assert (dispatch.status, dispatch.lease_token, dispatch.worker_id) == ("completed", None, None)
        assert dispatch.finished_at == START + timedelta(seconds=30)
        assert dispatch.duration_seconds == 30

    async def test_output_is_a_file_of_the_tenant(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        output = SettledOutput(size=5, mime_type="video/webm", extension="mp4", sha256="cafe", metadata={"frames": 8})
        await world.complete(leased, output=output)
        (file,) = await files(world, job)
        assert (file.size, file.mime_type, file.content_hash, file.user_id) == (5, "video/webm", "cafe", desk.user.id)
        assert file.path == leased.output_path
        assert file.path == f"tenants/{job.tenant_id}/ai-jobs/{job.id}/upload-{output_id(leased.lease_token)}.mp4"
        assert (await world.job(job)).output_file_id == file.id

    async def test_effect_duration_is_the_duration_of_the_lease(self, world: World, desk: Desk) -> None:
        await desk.submit()
        await world.advance(100)
        leased = await world.lease(desk.worker)
        assert leased is not None
        await world.advance(42.5)
        await world.complete(leased)
        async with world.engine.databases.central.read() as tx:
            effect = await catalogue.effect(tx, id_=desk.effect.id)
        assert effect is not None
        assert effect.last_processing_time_seconds == 42.5

    async def test_failure_does_not_count_for_the_effect_duration(self, world: World, desk: Desk) -> None:
        _, leased = await desk.submit_and_lease()
        await world.advance(1)
        await world.fail(leased)
        async with world.engine.databases.central.read() as tx:
            effect = await catalogue.effect(tx, id_=desk.effect.id)
        assert effect is not None
        assert effect.last_processing_time_seconds is None

    async def test_complete_is_recorded_in_attempt_events_and_audit_log(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        await world.advance(7)
        await world.complete(leased, provider_job_id="prompt-1", seed=2**40)
        (attempt,) = await world.attempts(job)
        assert (attempt.number, attempt.epoch, attempt.outcome) == (1, 1, "completed")
        assert (attempt.started_at, attempt.ended_at) == (START, START + timedelta(seconds=7))
        assert (attempt.worker_id, attempt.provider_job_id, attempt.seed) == (desk.worker, "prompt-1", 2**40)
        assert await world.events(job) == ["job:queued", "job:started", "job:completed"]
        assert await world.audit(desk.worker) == ["register", "lease", "complete"]

    async def test_start_time_excludes_the_prefetch(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        await world.advance(100)
        await world.engine.queue.settle.report(
            Report(
                verb=Verb.COMPLETE,
                dispatch_id=leased.dispatch_id,
                lease_token=leased.lease_token,
                output=SettledOutput(size=5, mime_type="video/mp4", extension="mp4"),
                began_after_seconds=70,
            )
        )
        (attempt,) = await world.attempts(job)
        began_at = START + timedelta(seconds=70)
        assert (attempt.started_at, (await world.job(job)).started_at) == (began_at, began_at)
        assert (await world.dispatch(job)).duration_seconds == 30

    @pytest.mark.parametrize("verb", list(Verb))
    async def test_run_details_are_stored_for_every_outcome(self, world: World, desk: Desk, verb: Verb) -> None:
        job, leased = await desk.submit_and_lease()
        details = {"argv": ["python", "it's.py", "🐈"], "exit_code": 143}
        await world.engine.queue.settle.report(
            Report(
                verb=verb,
                dispatch_id=leased.dispatch_id,
                lease_token=leased.lease_token,
                seed=2**64 - 1,
                about=details,
            )
        )
        (attempt,) = await world.attempts(job)
        assert (attempt.seed, attempt.about) == (2**64 - 1, details)

    async def test_only_the_output_of_the_completed_lease_counts(self, world: World, desk: Desk) -> None:
        job, first = await desk.submit_and_lease()
        await world.requeue(first)
        second = await world.lease(desk.worker)
        assert second is not None
        await world.complete(second)
        assert first.output_path != second.output_path
        assert [file.path for file in await files(world, job)] == [second.output_path]


class TestFail:
    async def test_job_fault_is_final_and_refunded(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        assert await world.fail(leased, fault=Fault.JOB) == "failed"
        assert (await world.job(job)).status == "failed"
        assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_REFUND": 10}
        assert await desk.balance() == 1000

    async def test_worker_fault_is_retried_on_another_worker(self, world: World, desk: Desk) -> None:
        other = await world.worker(desk.fleet)
        job, leased = await desk.submit_and_lease()
        assert await world.fail(leased, fault=Fault.WORKER, error="out of memory") == "queued"
        assert await world.lease(desk.worker) is None
        second = await world.lease(other)
        assert second is not None
        assert second.dispatch.attempts == 2
        assert await world.transactions(job) == {"JOB_RESERVE": -10}

    async def test_worker_may_delay_the_retry(self, world: World, desk: Desk) -> None:
        other = await world.worker(desk.fleet)
        _, leased = await desk.submit_and_lease()
        await world.fail(leased, fault=Fault.WORKER, retry_after_seconds=30)
        await world.advance(29)
        assert await world.lease(other) is None
        await world.advance(1)
        assert await world.lease(other) is not None

    async def test_worker_fault_in_the_last_attempt_fails_and_is_refunded(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        for number in (2, 3):
            assert await world.fail(leased, fault=Fault.WORKER) == "queued"
            found = await world.lease(await world.worker(desk.fleet))
            assert found is not None
            assert found.dispatch.attempts == number
            leased = found
        assert await world.fail(leased, fault=Fault.WORKER) == "failed"
        assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_REFUND": 10}
        assert [attempt.outcome for attempt in await world.attempts(job)] == ["failed"] * 3

    async def test_interruption_costs_no_attempt_and_blocks_no_worker(self, world: World, desk: Desk) -> None:
        _, leased = await desk.submit_and_lease()
        assert await world.fail(leased, fault=Fault.INTERRUPTED, error="spot") == "queued"
        second = await world.lease(desk.worker)
        assert second is not None
        assert (second.dispatch.attempts, second.dispatch.epoch) == (1, 2)

    async def test_user_sees_a_sentence_and_operators_see_the_raw_error(self, world: World, desk: Desk) -> None:
        raw = json.dumps({"exception_message": "Cannot read /srv/comfy/models/secret.safetensors", "node": 4})
        job, leased = await desk.submit_and_lease()
        await world.fail(leased, error=raw)
        found = await world.job(job)
        assert found.error_message == f"{customer_texts.NOT_INSTALLED} {customer_texts.REFUNDED}"
        assert found.error_detail == raw

    async def test_video_has_the_error_of_its_job(self, world: World, desk: Desk) -> None:
        video_id = await world.engine.accounts.tenancy.add_video(desk.user, original_file_id=await desk.file())
        _, leased = await desk.submit_and_lease(video_id=video_id)
        await world.fail(leased, error="RuntimeError: no frames in /tmp/x/in.mp4")
        video = await world.video(desk.user, video_id)
        error = f"{customer_texts.FAILED} {customer_texts.REFUNDED}"
        assert (video.status, video.processing_details) == ("failed", {"error": error})

    async def test_unstorable_characters_do_not_prevent_a_failure_report(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        assert await world.fail(leased, error="bad \x00 byte, \ud800 half a pair, \\u0000 as text") == "failed"
        found = await world.job(job)
        assert found.status == "failed"
        assert "\\u0000 as text" in (found.error_detail or "")


class TestRequeue:
    async def test_requeue_returns_the_attempt_and_records_the_reason(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        assert await world.requeue(leased, "spot_interruption") == "queued"
        dispatch = await world.dispatch(job)
        assert (dispatch.attempts, dispatch.last_error) == (0, "Requeued: spot_interruption")
        assert (await world.job(job)).status == "queued"
        (attempt,) = await world.attempts(job)
        assert (attempt.number, attempt.outcome, attempt.error) == (1, "requeued", "spot_interruption")

    async def test_number_of_requeues_is_unlimited(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        for epoch in range(2, 7):
            await world.requeue(leased)
            found = await world.lease(desk.worker)
            assert found is not None
            assert (found.dispatch.attempts, found.dispatch.epoch) == (1, epoch)
            leased = found
        assert len(await world.attempts(job)) == 6


async def expire(world: World, _: LeasedDispatch) -> None:
    await world.expire()


async def release(world: World, leased: LeasedDispatch) -> None:
    await world.engine.workers.workers.release(leased.dispatch.worker_id or "", reason="revoked")


async def release_and_lease_again(world: World, leased: LeasedDispatch) -> None:
    await release(world, leased)
    assert await world.lease(leased.dispatch.worker_id or "") is not None


class TestStaleReport:
    """Every kind of report is refused with LeaseLost and changes nothing."""

    @staticmethod
    async def check_refused(world: World, desk: Desk, job: JobRecord, leased: LeasedDispatch, **values: Any) -> None:
        before = await snapshot(world, desk, job)
        for report in REPORTS:
            with pytest.raises(LeaseLost):
                await report(world, leased, **values)
            assert await snapshot(world, desk, job) == before, report.__name__

    @pytest.mark.parametrize("end", [expire, requeue, release, release_and_lease_again])
    async def test_report_of_an_ended_lease_changes_nothing(self, world: World, desk: Desk, end: ReportCall) -> None:
        job, leased = await desk.submit_and_lease()
        await end(world, leased)
        await self.check_refused(world, desk, job, leased)

    async def test_wrong_token_changes_nothing(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        wrong = replace(leased, dispatch=leased.dispatch._replace(lease_token="00000000-0000-4000-8000-000000000000"))
        await self.check_refused(world, desk, job, wrong)

    async def test_token_of_another_dispatch_changes_nothing(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        for dispatch_id in (leased.dispatch_id + 1, 2**62):
            other = replace(leased, dispatch=leased.dispatch._replace(id=dispatch_id))
            await self.check_refused(world, desk, job, other)

    async def test_report_of_another_worker_with_the_right_token_changes_nothing(
        self, world: World, desk: Desk
    ) -> None:
        job, leased = await desk.submit_and_lease()
        await self.check_refused(world, desk, job, leased, worker_id="another")
        for report in (beat, complete):
            await report(world, leased, worker_id=desk.worker)


class TestRepeats:
    async def test_repeated_complete_gets_the_same_answer_and_has_one_effect(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        await world.complete(leased)
        before = await snapshot(world, desk, job)
        assert await world.complete(leased) == "completed"
        assert await snapshot(world, desk, job) == before
        assert len(await files(world, job)) == 1

    @pytest.mark.parametrize(("fault", "status"), [(Fault.JOB, "failed"), (Fault.WORKER, "queued")])
    async def test_repeated_fail_gets_the_same_answer_and_has_one_effect(
        self, world: World, desk: Desk, fault: Fault, status: str
    ) -> None:
        job, leased = await desk.submit_and_lease()
        assert await world.fail(leased, fault=fault) == status
        before = await snapshot(world, desk, job)
        assert await world.fail(leased, fault=fault) == status
        assert await snapshot(world, desk, job) == before

    async def test_repeated_fail_gets_the_same_answer_after_the_next_lease(self, world: World, desk: Desk) -> None:
        other = await world.worker(desk.fleet)
        job, leased = await desk.submit_and_lease()
        await world.fail(leased, fault=Fault.WORKER)
        assert await world.lease(other) is not None
        before = await snapshot(world, desk, job)
        assert await world.fail(leased, fault=Fault.WORKER) == "queued"
        assert await snapshot(world, desk, job) == before

    async def test_different_report_after_an_outcome_is_refused(self, world: World, desk: Desk) -> None:
        completed, first = await desk.submit_and_lease()
        await world.complete(first)
        with pytest.raises(LeaseLost):
            await world.complete(first, worker_id="another")
        with pytest.raises(LeaseLost):
            await world.fail(first)
        assert await world.transactions(completed) == {"JOB_RESERVE": -10, "JOB_CONSUME": 0}
        failed, second = await desk.submit_and_lease()
        await world.fail(second)
        with pytest.raises(LeaseLost):
            await world.complete(second)
        assert await world.transactions(failed) == {"JOB_RESERVE": -10, "JOB_REFUND": 10}

    async def test_first_report_of_a_batch_wins_and_its_repeats_are_answered(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()

        def report(verb: Verb, worker: str | None = None) -> Report:
            return Report(
                verb=verb,
                dispatch_id=leased.dispatch_id,
                lease_token=leased.lease_token,
                output=OUTPUT,
                worker_id=worker,
            )

        answers = await world.engine.queue.settle.report_many(
            [
                report(Verb.COMPLETE, "another"),
                report(Verb.COMPLETE),
                report(Verb.COMPLETE, desk.worker),
                report(Verb.COMPLETE, "another"),
                report(Verb.FAIL),
                report(Verb.REQUEUE),
            ]
        )
        settlement = Settlement(dispatch_id=leased.dispatch_id, status="completed")
        assert answers[1:3] == [settlement, replace(settlement, is_repeat=True)]
        assert all(isinstance(answer, LeaseLost) for answer in (answers[0], *answers[3:]))
        assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_CONSUME": 0}
        assert await world.audit(desk.worker) == ["register", "lease", "complete"]


class TestOutboxEntries:
    """Each entry updates the shard once and in order, even if it arrives late or twice."""

    @pytest.fixture
    async def undelivered(
        self, world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> tuple[JobRecord, str, OutboxEntry, OutboxEntry]:
        """Return a job that started and completed while its shard was unreachable, the shard, and both entries."""
        job = await desk.submit()
        shard = await world.engine.databases.shard_name_of(job.tenant_id)

        async def unreachable(*_: object) -> list[OutboxEntry]:
            raise DatabaseUnavailable(name=shard)

        with monkeypatch.context() as patch:
            patch.setattr(world.engine.outbox.applier, "apply", unreachable)
            leased = await world.lease(desk.worker)
            assert leased is not None
            await world.complete(leased)
        started, completed = await entries(world, shard)
        assert (await world.job(job)).status == "queued"
        return job, shard, started, completed

    async def test_out_of_order_entry_waits_for_its_predecessor(
        self, world: World, undelivered: tuple[JobRecord, str, OutboxEntry, OutboxEntry]
    ) -> None:
        job, shard, started, completed = undelivered
        assert await world.engine.outbox.applier.apply(shard, [completed]) == []
        assert (await world.job(job)).status == "queued"
        assert await world.engine.outbox.applier.apply(shard, [started]) == [started]
        assert (await world.job(job)).status == "processing"
        assert await world.engine.outbox.applier.apply(shard, [completed]) == [completed]
        assert (await world.job(job)).status == "completed"

    async def test_entries_are_applied_in_order(
        self, world: World, undelivered: tuple[JobRecord, str, OutboxEntry, OutboxEntry]
    ) -> None:
        job, shard, started, completed = undelivered
        assert len(await world.engine.outbox.applier.apply(shard, [completed, started])) == 2
        assert await world.events(job) == ["job:queued", "job:started", "job:completed"]

    async def test_duplicate_entries_are_applied_once(
        self, world: World, desk: Desk, undelivered: tuple[JobRecord, str, OutboxEntry, OutboxEntry]
    ) -> None:
        job, shard, started, completed = undelivered
        await world.engine.outbox.applier.apply(shard, [started, started, completed, completed])
        before = await snapshot(world, desk, job)
        assert before.events == ["job:queued", "job:started", "job:completed"]
        assert before.transactions == {"JOB_RESERVE": -10, "JOB_CONSUME": 0}
        for entry in (completed, started):
            assert await world.engine.outbox.applier.apply(shard, [entry]) == [entry]
        assert await snapshot(world, desk, job) == before
        assert len(await files(world, job)) == 1

    async def test_concurrently_delivered_entries_are_applied_once(
        self, world: World, undelivered: tuple[JobRecord, str, OutboxEntry, OutboxEntry]
    ) -> None:
        job, shard, started, completed = undelivered
        await asyncio.gather(*(world.engine.outbox.applier.apply(shard, [started, completed]) for _ in range(4)))
        assert await world.events(job) == ["job:queued", "job:started", "job:completed"]
        assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_CONSUME": 0}

    async def test_late_entry_keeps_the_time_of_its_transition(
        self, world: World, undelivered: tuple[JobRecord, str, OutboxEntry, OutboxEntry]
    ) -> None:
        job, *_ = undelivered
        await world.advance(3600)
        await world.relay()
        assert (await world.job(job)).completed_at == START
        assert await world.entries() == []

    async def test_complete_is_accepted_while_the_shard_is_down(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        async with shard_down(world, await world.engine.databases.shard_name_of(job.tenant_id)):
            assert await world.complete(leased) == "completed"
            assert await world.complete(leased) == "completed"
            await world.wait_for_deliveries()
        assert (await world.dispatch(job)).status == "completed"
        assert (await world.job(job)).status == "processing"
        await world.relay()
        assert (await world.job(job)).status == "completed"
        assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_CONSUME": 0}
        assert await world.entries() == []


async def test_concurrent_completes_share_their_transactions(world: World) -> None:
    desk = await world.desk(concurrency=32)
    jobs = await submit_many(world, desk.user, desk.effect, 32)
    leased = await world.leases(desk.worker, 32)
    assert len(leased) == 32
    settled = []

    async def count(step: str, boundary: Boundary) -> None:
        if step == TransactionStep.SETTLE and boundary is Boundary.AFTER_COMMIT:
            settled.append(step)

    world.on_boundary(count)
    assert await asyncio.gather(*(world.complete(lease) for lease in leased)) == ["completed"] * 32
    assert len(settled) <= 2
    for job in jobs:
        assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_CONSUME": 0}


async def test_invalid_report_does_not_fail_the_others_of_its_batch(world: World) -> None:
    desk = await world.desk(concurrency=2)
    await submit_many(world, desk.user, desk.effect, 2)
    valid, ended = await world.leases(desk.worker, 2)
    await world.requeue(ended)
    answers = await asyncio.gather(world.complete(valid), world.complete(ended), return_exceptions=True)
    assert answers[0] == "completed"
    assert isinstance(answers[1], LeaseLost)
