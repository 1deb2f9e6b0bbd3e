"""Leasing decides which worker gets which job, when, and how often."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from comfyrelay.domain.queue.blocks import Block
from comfyrelay.domain.queue.states import PauseMode, Provider, Stage
from comfyrelay.domain.queue.updates import JobUpdate
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import ComfyRelayError, Forbidden, StorageUnavailable
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.heartbeats import Heartbeat
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.queue import blocks
from comfyrelay.store.outbox import OutboxEntry
from tests.support.world import (
    START,
    Desk,
    PostgresBackend,
    SqliteBackend,
    World,
    execute,
    graph_of,
    open_world,
    shard_down,
    submit_many,
)

pytestmark = pytest.mark.both_databases


@pytest.fixture
async def desk(world: World) -> Desk:
    return await world.desk()


def request(worker: str, **values: object) -> LeaseRequest:
    return replace(LeaseRequest(worker_id=worker, providers=[Provider.SELF_HOSTED]), **values)  # type: ignore[arg-type]


def job_ids(leased: list[LeasedDispatch] | ComfyRelayError | None) -> list[str]:
    assert isinstance(leased, list)
    return [lease.dispatch.tenant_job_id for lease in leased]


async def job_id(world: World, worker: str, **values: object) -> str | None:
    leased = await world.lease(worker, **values)
    return leased.dispatch.tenant_job_id if leased else None


async def stop_request(world: World, leased: LeasedDispatch) -> str | None:
    beat = Heartbeat(dispatch_id=leased.dispatch_id, lease_token=leased.lease_token)
    return (await world.engine.queue.heartbeats.beat(beat)).stop


class TestPinnedJobs:
    """Jobs that only a chosen worker may run."""

    @pytest.fixture
    async def other(self, world: World, desk: Desk) -> str:
        return await world.worker(desk.fleet)

    async def test_pinned_job_is_leased_only_to_its_worker(self, world: World, desk: Desk, other: str) -> None:
        job = await desk.submit(only_worker=other)
        assert await job_id(world, desk.worker) is None
        assert await job_id(world, other) == job.id

    async def test_pinned_job_keeps_its_position_in_the_queue(self, world: World, desk: Desk, other: str) -> None:
        first, chosen, urgent = await desk.submit(), await desk.submit(only_worker=other), await desk.submit(priority=5)
        assert await job_id(world, other) == urgent.id
        assert await job_id(world, desk.worker) == first.id
        assert (await world.dispatch(chosen)).status == "queued"

    async def test_pinned_jobs_do_not_block_other_jobs(self, world: World, desk: Desk, other: str) -> None:
        await world.engine.accounts.tenancy.set_limits(desk.user.tenant_id, {"max_active_jobs": 100})
        for _ in range(40):
            await desk.submit(only_worker=other, priority=9)
        job = await desk.submit()
        assert await job_id(world, desk.worker) == job.id

    async def test_polls_in_one_call_get_their_pinned_jobs(self, world: World, desk: Desk, other: str) -> None:
        pinned = [await desk.submit(only_worker=worker) for worker in (other, desk.worker)]
        unpinned = await desk.submit()
        third = await world.worker(desk.fleet)
        requests = [request(worker) for worker in (desk.worker, other, third)]
        answers = await world.engine.queue.leasing.lease_many(requests)
        assert [job_ids(answer) for answer in answers] == [[pinned[1].id], [pinned[0].id], [unpinned.id]]

    async def test_requeued_job_stays_pinned_to_its_worker(self, world: World, desk: Desk, other: str) -> None:
        job = await desk.submit(only_worker=other)
        leased = await world.lease(other)
        assert leased is not None
        await world.requeue(leased)
        assert await job_id(world, desk.worker) is None
        assert await job_id(world, other) == job.id

    async def test_recovered_job_stays_pinned_to_its_worker(self, world: World, desk: Desk, other: str) -> None:
        job = await desk.submit(only_worker=other)
        await execute(world.engine.databases.central, "DELETE FROM ai_job_dispatches")
        shard = await world.engine.databases.shard_of(job.tenant_id)
        await world.engine.outbox.recovery.ensure_dispatch(shard.name, job)
        assert await job_id(world, desk.worker) is None
        assert await job_id(world, other) == job.id


class TestEntitlement:
    async def test_worker_gets_a_job_of_its_workflow(self, world: World, desk: Desk) -> None:
        job = await desk.submit()
        assert await job_id(world, desk.worker) == job.id

    async def test_worker_gets_no_job_of_an_unassigned_workflow(self, world: World, desk: Desk) -> None:
        other = await world.worker(await world.fleet(await world.workflow()))
        await desk.submit()
        assert await world.lease(other) is None

    async def test_worker_gets_no_job_of_another_provider(self, world: World, desk: Desk) -> None:
        await desk.submit()
        assert await world.lease(desk.worker, providers=[Provider.CLOUD]) is None
        assert await world.lease(desk.worker, providers=[]) is None
        assert await world.lease(desk.worker, providers=[Provider.CLOUD, Provider.SELF_HOSTED]) is not None

    async def test_worker_gets_no_job_of_another_stage(self, world: World, desk: Desk) -> None:
        fleet = await world.fleet(desk.workflow, stage=Stage.STAGING)
        staging = await world.worker(fleet, stage=Stage.STAGING)
        job = await desk.submit(stage=Stage.STAGING)
        assert await world.lease(desk.worker) is None
        assert await job_id(world, staging) == job.id

    async def test_worker_without_workflows_gets_nothing(self, world: World, desk: Desk) -> None:
        await desk.submit()
        await world.engine.workers.fleets.map_workflows(stage=Stage.PRODUCTION, slug=desk.fleet, workflow_slugs=[])
        assert await world.lease(desk.worker) is None

    async def test_job_of_a_disabled_workflow_is_not_leased(self, world: World, desk: Desk) -> None:
        await desk.submit()
        await world.engine.catalogue.workflows.set_active(desk.workflow.slug, is_active=False)
        assert await world.lease(desk.worker) is None
        await world.engine.catalogue.workflows.set_active(desk.workflow.slug, is_active=True)
        assert await world.lease(desk.worker) is not None

    async def test_workflow_enabled_after_registration_reaches_the_worker(self, world: World, desk: Desk) -> None:
        late = await world.workflow()
        effect = await world.effect(late)
        job = await world.submit(desk.user, effect)
        await world.engine.catalogue.workflows.set_active(late.slug, is_active=False)
        worker = await world.worker(await world.fleet(desk.workflow, late))
        assert await world.lease(worker) is None
        await world.engine.catalogue.workflows.set_active(late.slug, is_active=True)
        assert await job_id(world, worker) == job.id

    async def test_changed_fleet_workflows_apply_at_once(self, world: World, desk: Desk) -> None:
        workflow = await world.workflow()
        job = await world.submit(desk.user, await world.effect(workflow))
        assert await world.lease(desk.worker) is None
        await world.engine.workers.fleets.map_workflows(
            stage=Stage.PRODUCTION, slug=desk.fleet, workflow_slugs=[workflow.slug]
        )
        assert await job_id(world, desk.worker) == job.id

    async def test_unknown_or_unapproved_worker_is_refused(self, world: World, desk: Desk) -> None:
        with pytest.raises(Forbidden):
            await world.lease("unknown")
        await desk.submit()
        await world.engine.workers.workers.set_approved(desk.worker, is_approved=False)
        with pytest.raises(Forbidden):
            await world.lease(desk.worker)

    async def test_refused_worker_does_not_block_other_workers(self, world: World, desk: Desk) -> None:
        job = await desk.submit()
        refused, served = await world.engine.queue.leasing.lease_many([request("unknown"), request(desk.worker)])
        assert isinstance(refused, Forbidden)
        assert job_ids(served) == [job.id]

    async def test_draining_worker_gets_no_job(self, world: World, desk: Desk) -> None:
        await desk.submit()
        await world.engine.workers.workers.set_draining(desk.worker, is_draining=True)
        assert await world.lease(desk.worker) is None
        await world.engine.workers.workers.set_draining(desk.worker, is_draining=False)
        assert await world.lease(desk.worker) is not None

    async def test_paused_job_is_not_leased(self, world: World, desk: Desk) -> None:
        job = await desk.submit()
        await world.engine.queue.control.pause(job.tenant_id, job.id, mode=PauseMode.NOW)
        assert await world.lease(desk.worker) is None

    async def test_delayed_job_is_not_leased_early(self, world: World, desk: Desk) -> None:
        await desk.submit(delay_seconds=60)
        await world.advance(59.999)
        assert await world.lease(desk.worker) is None
        await world.advance(0.001)
        assert await world.lease(desk.worker) is not None


class TestOrder:
    async def test_jobs_are_leased_by_priority_then_age(self, world: World) -> None:
        desk = await world.desk(concurrency=4)
        jobs = []
        for priority in (0, 5, 0, 5):
            jobs.append(await desk.submit(priority=priority))
            await world.advance(1)
        leased = await world.leases(desk.worker, 4)
        assert job_ids(leased) == [jobs[1].id, jobs[3].id, jobs[0].id, jobs[2].id]

    async def test_jobs_of_the_same_instant_are_leased_in_submission_order(self, world: World) -> None:
        desk = await world.desk(concurrency=3)
        jobs = [await desk.submit() for _ in range(3)]
        assert job_ids(await world.leases(desk.worker, 3)) == [job.id for job in jobs]

    async def test_order_is_shared_by_all_workflows(self, world: World) -> None:
        first, second = await world.workflow(), await world.workflow()
        worker = await world.worker(await world.fleet(first, second), concurrency=3)
        user = await world.user()
        one, two = await world.effect(first), await world.effect(second)
        jobs = []
        for effect in (two, one, two):
            jobs.append(await world.submit(user, effect))
            await world.advance(1)
        assert job_ids(await world.leases(worker, 3)) == [job.id for job in jobs]

    async def test_requeued_job_keeps_its_position(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        await world.advance(1)
        await desk.submit()
        await world.requeue(leased)
        assert await job_id(world, desk.worker) == job.id


class TestLease:
    async def test_each_lease_counts_an_attempt_and_has_a_new_epoch_and_token(self, world: World, desk: Desk) -> None:
        _, first = await desk.submit_and_lease()
        await world.expire()
        second = await world.lease(desk.worker)
        assert second is not None
        assert (first.dispatch.attempts, second.dispatch.attempts) == (1, 2)
        assert (first.dispatch.epoch, second.dispatch.epoch) == (1, 2)
        assert first.lease_token != second.lease_token
        assert first.output_path != second.output_path

    async def test_lease_expires_by_the_clock_of_the_database(self, world: World, desk: Desk) -> None:
        await world.advance(3)
        _, leased = await desk.submit_and_lease()
        assert leased.dispatch.leased_at == START + timedelta(seconds=3)
        assert leased.dispatch.lease_expires_at == START + timedelta(seconds=903)

    async def test_lease_contains_the_graph_and_the_upload_path(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease(input_payload={"prompt": "a dog"})
        assert leased.graph["2"]["inputs"]["text"] == "a dog"
        prefix = f"tenants/{job.tenant_id}/ai-jobs/{job.id}/upload-"
        assert leased.output_path.startswith(prefix)
        assert leased.output_path.endswith(".mp4")

    async def test_leased_job_is_processing_and_not_leased_again(self, world: World, desk: Desk) -> None:
        job, _ = await desk.submit_and_lease()
        other = await world.worker(desk.fleet)
        assert await world.lease(other) is None
        assert (await world.job(job)).status == "processing"
        assert (await world.dispatch(job)).worker_id == desk.worker


class TestRequestId:
    async def test_repeated_request_gets_the_same_lease(self, world: World) -> None:
        desk = await world.desk(concurrency=2)
        await desk.submit()
        await desk.submit()
        first = await world.lease(desk.worker, request_id="r")
        again = await world.lease(desk.worker, request_id="r")
        assert first is not None
        assert again is not None
        assert again.lease_token == first.lease_token
        assert again.dispatch.attempts == 1

    async def test_request_with_an_ended_lease_gets_nothing(self, world: World, desk: Desk) -> None:
        await desk.submit()
        first = await world.lease(desk.worker, request_id="r")
        assert first is not None
        await world.requeue(first)
        assert await world.lease(desk.worker, request_id="r") is None
        assert await world.lease(desk.worker, request_id="r2") is not None

    async def test_request_without_a_lease_may_get_one_later(self, world: World, desk: Desk) -> None:
        assert await world.lease(desk.worker, request_id="r") is None
        await desk.submit()
        assert await world.lease(desk.worker, request_id="r") is not None

    async def test_request_ids_are_separate_for_each_worker(self, world: World, desk: Desk) -> None:
        other = await world.worker(desk.fleet)
        jobs = [await desk.submit(), await desk.submit()]
        found = [await job_id(world, worker, request_id="r") for worker in (desk.worker, other)]
        assert found == [job.id for job in jobs]

    async def test_concurrent_polls_with_one_request_id_share_one_lease(self, world: World) -> None:
        desk = await world.desk(concurrency=4)
        await submit_many(world, desk.user, desk.effect, 4)
        polls = [world.engine.queue.polls.poll(request(desk.worker, request_id="r"), wait_seconds=10) for _ in range(2)]
        found = await asyncio.gather(*polls)
        assert len({lease.lease_token for leases in found for lease in leases}) == 1
        assert len(found[0]) == len(found[1]) == 1
        rows = await execute(world.engine.databases.central, "SELECT status FROM ai_job_dispatches")
        assert [row.status for row in rows].count("leased") == 1

    async def test_concurrent_requests_with_one_request_id_get_one_lease(self, world: World) -> None:
        desk = await world.desk(concurrency=4)
        await submit_many(world, desk.user, desk.effect, 4)
        polls = [world.engine.queue.leasing.lease(request(desk.worker, request_id="r")) for _ in range(8)]
        found = await asyncio.gather(*polls)
        assert len({lease.lease_token for leases in found for lease in leases}) == 1

    async def test_repeated_requests_in_one_call_get_the_active_lease(self, world: World) -> None:
        desk = await world.desk(concurrency=4)
        await submit_many(world, desk.user, desk.effect, 4)
        first = await world.lease(desk.worker, request_id="r")
        assert first is not None
        answers = await world.engine.queue.leasing.lease_many([request(desk.worker, request_id="r")] * 2)
        assert [job_ids(answer) for answer in answers] == [[first.dispatch.tenant_job_id]] * 2


class TestCapacity:
    async def test_worker_at_capacity_gets_no_job(self, world: World, desk: Desk) -> None:
        _, leased = await desk.submit_and_lease()
        await desk.submit()
        assert await world.lease(desk.worker) is None
        await world.complete(leased)
        assert await world.lease(desk.worker) is not None

    async def test_worker_gets_at_most_as_many_jobs_as_free_slots(self, world: World) -> None:
        desk = await world.desk(concurrency=3)
        await submit_many(world, desk.user, desk.effect, 5)
        assert len(await world.leases(desk.worker, 2)) == 2
        assert len(await world.leases(desk.worker, 5)) == 1
        assert await world.leases(desk.worker, 5) == []

    async def test_request_may_lower_but_not_raise_the_registered_concurrency(self, world: World) -> None:
        desk = await world.desk(concurrency=2)
        await submit_many(world, desk.user, desk.effect, 5)
        assert len(await world.leases(desk.worker, 5, max_concurrency=1)) == 1
        assert len(await world.leases(desk.worker, 5, max_concurrency=3)) == 2

    async def test_two_requests_of_one_worker_share_its_slots(self, world: World, desk: Desk) -> None:
        await submit_many(world, desk.user, desk.effect, 2)
        answers = await world.engine.queue.leasing.lease_many([request(desk.worker), request(desk.worker)])
        assert [len(job_ids(answer)) for answer in answers] == [1, 0]

    async def test_workers_in_one_call_get_different_jobs(self, world: World, desk: Desk) -> None:
        workers = [await world.worker(desk.fleet) for _ in range(5)]
        jobs = await submit_many(world, desk.user, desk.effect, 5)
        answers = await world.engine.queue.leasing.lease_many([request(worker) for worker in workers])
        assert [job_ids(answer) for answer in answers] == [[job.id] for job in jobs]

    async def test_workers_of_different_fleets_in_one_call_get_jobs(self, world: World, desk: Desk) -> None:
        other = await world.workflow()
        workers = [desk.worker, await world.worker(await world.fleet(desk.workflow, other))]
        jobs = await submit_many(world, desk.user, desk.effect, 5)
        answers = await world.engine.queue.leasing.lease_many([request(worker) for worker in workers])
        assert [job_ids(answer) for answer in answers] == [[jobs[0].id], [jobs[1].id]]


class TestPrefetch:
    async def test_busy_worker_prefetches_one_job(self, world: World, desk: Desk) -> None:
        _, running = await desk.submit_and_lease()
        await desk.submit()
        prefetched = await world.lease(desk.worker, prefetch=1)
        assert prefetched is not None
        assert (running.dispatch.is_prefetch, prefetched.dispatch.is_prefetch) == (False, True)
        await desk.submit()
        assert await world.lease(desk.worker, prefetch=1) is None

    async def test_idle_worker_is_served_before_a_prefetch(self, world: World, desk: Desk) -> None:
        idle = await world.worker(desk.fleet)
        await desk.submit_and_lease()
        job = await desk.submit()
        busy, served = await world.engine.queue.leasing.lease_many([request(desk.worker, prefetch=1), request(idle)])
        assert busy == []
        assert job_ids(served) == [job.id]

    async def test_recall_releases_the_prefetched_job_only(self, world: World, desk: Desk) -> None:
        _, running = await desk.submit_and_lease()
        await desk.submit()
        prefetched = await world.lease(desk.worker, prefetch=1)
        assert prefetched is not None
        assert await world.engine.workers.workers.recall_prefetched(desk.worker) == 1
        assert await stop_request(world, prefetched) == "release"
        assert await stop_request(world, running) is None

    async def test_prefetch_is_recalled_for_an_idle_worker(self, world: World, desk: Desk) -> None:
        prefetched = await self.prefetch_for(world, desk, seconds=6)
        idle = await world.worker(desk.fleet)
        assert await self.count_recalled(world, idle) == 1
        assert await stop_request(world, prefetched) == "release"
        # the recall is requested only once
        assert await self.count_recalled(world, idle) == 0
        assert await world.requeue(prefetched, "released") == "queued"
        leased = await world.lease(idle)
        assert leased is not None
        assert (leased.dispatch_id, leased.dispatch.attempts) == (prefetched.dispatch_id, 1)

    async def test_prefetch_is_recalled_from_a_draining_worker(self, world: World, desk: Desk) -> None:
        prefetched = await self.prefetch_for(world, desk, seconds=1)
        await world.engine.workers.workers.set_draining(desk.worker, is_draining=True)
        assert await stop_request(world, prefetched) == "release"

    async def test_recent_prefetch_is_not_recalled(self, world: World, desk: Desk) -> None:
        await self.prefetch_for(world, desk, seconds=1)
        assert await self.count_recalled(world, await world.worker(desk.fleet)) == 0

    async def test_prefetch_is_not_recalled_for_a_worker_that_cannot_run_it(self, world: World, desk: Desk) -> None:
        prefetched = await self.prefetch_for(world, desk, seconds=6)
        blocked, draining, busy = [await world.worker(desk.fleet) for _ in range(3)]
        elsewhere = await world.worker(await world.fleet(await world.workflow()))
        pair, until = (blocked, prefetched.dispatch.workflow_hash), world.clock.now + timedelta(hours=1)
        block = Block(failure_count=3, blocked_until=until)
        await world.engine.databases.central.run(TransactionStep.WORKER, lambda tx: blocks.write(tx, pair, block))
        await world.engine.workers.workers.set_draining(draining, is_draining=True)
        await desk.submit()
        assert await world.lease(busy) is not None
        assert await self.count_recalled(world, blocked, draining, busy, elsewhere, desk.worker) == 0
        assert await self.count_recalled(world, await world.worker(desk.fleet), providers=["cloud"]) == 0

    async def prefetch_for(self, world: World, desk: Desk, *, seconds: float) -> LeasedDispatch:
        """Let a busy worker prefetch a job, and advance the clock."""
        await desk.submit_and_lease()
        await desk.submit()
        prefetched = await world.lease(desk.worker, prefetch=1)
        assert prefetched is not None
        await world.advance(seconds)
        return prefetched

    async def count_recalled(self, world: World, *idle: str, providers: Sequence[str] = ("self_hosted",)) -> int:
        prefetches = await world.engine.queue.demand.prefetched()
        requests = [LeaseRequest(worker_id=worker, providers=providers) for worker in idle]
        return await world.engine.queue.demand.recall(prefetches, requests)

    async def test_started_prefetch_is_not_recalled(self, world: World, desk: Desk) -> None:
        await desk.submit_and_lease()
        await desk.submit()
        prefetched = await world.lease(desk.worker, prefetch=1)
        assert prefetched is not None
        await world.engine.queue.heartbeats.beat(
            Heartbeat(dispatch_id=prefetched.dispatch_id, lease_token=prefetched.lease_token, progress={"step": 1})
        )
        assert await world.engine.workers.workers.recall_prefetched(desk.worker) == 0
        await world.advance(6)
        assert await self.count_recalled(world, await world.worker(desk.fleet)) == 0
        assert await stop_request(world, prefetched) is None


class WarmDesk:
    """A worker with a warm and a cold workflow."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def set_up(self) -> "WarmDesk":
        cold, warm = (
            await self.world.workflow(graph=graph_of("cold")),
            await self.world.workflow(graph=graph_of("warm")),
        )
        self.worker = await self.world.worker(await self.world.fleet(cold, warm), concurrency=100)
        self.user = await self.world.user(tokens=10_000)
        self.cold, self.warm = await self.world.effect(cold), await self.world.effect(warm)
        return self

    async def submit_cold(self, count: int, *, priority: int = 0) -> list[str]:
        jobs = await submit_many(self.world, self.user, self.cold, count, priority=priority)
        return [job.id for job in jobs]

    async def submit_warm(self, *, priority: int = 0) -> str:
        await self.world.advance(1)
        job = await self.world.submit(self.user, self.warm, priority=priority)
        self.hash = job.workflow_hash
        return job.id

    async def next(self) -> str | None:
        return await job_id(self.world, self.worker, warm_workflow_hashes=frozenset({self.hash}))


@pytest.fixture
async def warm(world: World) -> WarmDesk:
    return await WarmDesk(world).set_up()


class TestWarmPreference:
    async def test_warm_workflow_is_leased_first(self, warm: WarmDesk) -> None:
        cold = await warm.submit_cold(3)
        job = await warm.submit_warm()
        assert [await warm.next(), await warm.next()] == [job, cold[0]]

    async def test_request_without_warm_hashes_gets_the_oldest_job(self, warm: WarmDesk) -> None:
        cold = await warm.submit_cold(1)
        await warm.submit_warm()
        assert await job_id(warm.world, warm.worker) == cold[0]

    async def test_warm_preference_looks_exactly_32_rows_ahead(self, warm: WarmDesk) -> None:
        cold = await warm.submit_cold(33)
        job = await warm.submit_warm()
        assert [await warm.next(), await warm.next()] == [cold[0], job]

    async def test_warm_preference_stays_within_a_priority(self, warm: WarmDesk) -> None:
        await warm.submit_warm(priority=0)
        cold = await warm.submit_cold(1, priority=1)
        assert await warm.next() == cold[0]

    async def test_warm_preference_skips_a_job_for_120_seconds(self, warm: WarmDesk) -> None:
        cold = await warm.submit_cold(1)
        jobs = [await warm.submit_warm() for _ in range(3)]
        assert await warm.next() == jobs[0]
        await warm.world.advance(119.999)
        assert await warm.next() == jobs[1]
        await warm.world.advance(0.001)
        assert [await warm.next(), await warm.next()] == [cold[0], jobs[2]]


async def test_lookahead_of_0_disables_the_warm_preference(
    backend: SqliteBackend | PostgresBackend, tmp_path: Path
) -> None:
    async with open_world(backend, tmp_path, warm_lookahead_rows=0) as world:
        warm = await WarmDesk(world).set_up()
        cold = await warm.submit_cold(1)
        await warm.submit_warm()
        assert await warm.next() == cold[0]


class TestUnbuildablePayload:
    async def repeat_end(self, world: World, job: JobRecord) -> None:
        """Deliver the last update of an ended job again."""
        dispatch = await world.dispatch(job)
        update = JobUpdate(
            tenant_id=job.tenant_id,
            job_id=job.id,
            version=dispatch.version,
            event_type=f"job:{dispatch.status}",
            status=dispatch.status,
            at=START,
            epoch=dispatch.epoch,
            attempts=dispatch.attempts,
            priority=dispatch.priority,
        )
        entry = OutboxEntry(id=0, shard=dispatch.shard, updates=[update])
        await world.engine.outbox.applier.apply(dispatch.shard, [entry])

    async def test_dispatch_of_a_missing_job_fails_and_is_refunded_once(self, world: World, desk: Desk) -> None:
        job = await desk.submit()
        shard = await world.engine.databases.shard_of(job.tenant_id)
        await execute(shard, "DELETE FROM ai_jobs WHERE id = :id", id=job.id)
        assert await world.lease(desk.worker) is None
        dispatch = await world.dispatch(job)
        assert (dispatch.status, dispatch.last_error) == ("failed", "The job no longer exists.")
        assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_REFUND": 10}
        assert await desk.balance() == 1000
        # Neither a repeated update nor the reconciler refunds the job again.
        await self.repeat_end(world, job)
        assert (await world.engine.operations.reconciler.run(repair=True)).findings == []
        assert await desk.balance() == 1000

    async def test_update_of_a_deleted_job_leaves_its_settlement(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        await world.complete(leased)
        shard = await world.engine.databases.shard_of(job.tenant_id)
        await execute(shard, "DELETE FROM ai_jobs WHERE id = :id", id=job.id)
        await self.repeat_end(world, job)
        assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_CONSUME": 0}

    async def test_job_with_a_missing_graph_fails_and_is_refunded(self, world: World, desk: Desk) -> None:
        job = await desk.submit()
        for file in (world.engine.settings.data_dir / "objects").rglob("*.json"):
            file.unlink()
        world.engine.catalogue.graphs._known.clear()
        assert await world.lease(desk.worker) is None
        assert (await world.job(job)).status == "failed"
        assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_REFUND": 10}
        assert "client:blocked_workflow" not in await world.audit(desk.worker)

    async def test_job_with_an_unreachable_graph_is_requeued_without_penalty(
        self, world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = await desk.submit()
        with monkeypatch.context() as outage:
            down = AsyncMock(side_effect=StorageUnavailable("The S3 server cannot be reached."))
            outage.setattr(world.engine.catalogue.graphs, "get_stored", down)
            assert await world.lease(desk.worker) is None
        dispatch = await world.dispatch(job)
        assert (dispatch.status, dispatch.attempts, dispatch.deferrals) == ("queued", 0, 1)

    async def test_unbuildable_job_does_not_block_the_next(self, world: World, desk: Desk) -> None:
        missing, valid = await desk.submit(), await desk.submit()
        shard = await world.engine.databases.shard_of(missing.tenant_id)
        await execute(shard, "DELETE FROM ai_jobs WHERE id = :id", id=missing.id)
        assert await world.lease(desk.worker) is None
        assert await job_id(world, desk.worker) == valid.id


class TestShardDown:
    @pytest.fixture
    async def shards(self, world: World) -> Desk:
        """Return a desk whose user is in shard a; `world.users[1]` is in shard b."""
        workflow = await world.workflow()
        effect = await world.effect(workflow)
        fleet = await world.fleet(workflow)
        user = await world.user(shard="a")
        await world.user(shard="b")
        worker = await world.worker(fleet, concurrency=10)
        return Desk(world=world, user=user, workflow=workflow, effect=effect, fleet=fleet, worker=worker)

    async def test_job_of_an_unreachable_shard_is_requeued_without_penalty(self, world: World, shards: Desk) -> None:
        job = await shards.submit()
        async with shard_down(world, "a"):
            assert await world.lease(shards.worker) is None
            dispatch = await world.dispatch(job)
        assert (dispatch.status, dispatch.attempts, dispatch.deferrals) == ("queued", 0, 1)
        assert dispatch.available_at == START + timedelta(seconds=5)

    async def test_job_backs_off_until_its_shard_is_reachable(self, world: World, shards: Desk) -> None:
        job = await shards.submit()
        waits = []
        async with shard_down(world, "a"):
            for _ in range(4):
                # make the engine forget that the shard is down
                world.engine.databases._down_until.clear()
                assert await world.lease(shards.worker) is None
                wait = (await world.dispatch(job)).available_at - world.clock.now
                waits.append(wait.total_seconds())
                await world.advance(wait.total_seconds())
        assert waits == [5, 10, 20, 40]
        await world.relay()
        assert await job_id(world, shards.worker) == job.id
        await world.relay()
        assert (await world.job(job)).status == "processing"

    async def test_jobs_of_other_shards_keep_running(self, world: World, shards: Desk) -> None:
        await shards.submit()
        other = await world.submit(world.users[1], shards.effect)
        async with shard_down(world, "a"):
            assert job_ids(await world.leases(shards.worker, 2)) == [other.id]

    async def test_jobs_of_a_shard_known_to_be_down_are_not_leased(self, world: World, shards: Desk) -> None:
        first = await shards.submit()
        async with shard_down(world, "a"):
            assert await world.lease(shards.worker) is None
            later = await world.dispatch(first)
            await world.advance(5)
            other = await world.submit(world.users[1], shards.effect)
            assert job_ids(await world.leases(shards.worker, 2)) == [other.id]
            assert await world.dispatch(first) == later
