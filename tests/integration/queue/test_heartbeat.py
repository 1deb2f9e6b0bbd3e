"""A heartbeat extends a lease, reports progress, and receives stop requests."""

from datetime import timedelta
from typing import Any

import pytest

from comfyrelay.domain.queue.states import PauseMode
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import LeaseLost
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.heartbeats import MAX_LINE_LENGTH, Heartbeat, HeartbeatResult
from comfyrelay.store.central import tables as central
from comfyrelay.store.tenant import history
from tests.support.world import START, Desk, World, execute, shard_down, submit_many

pytestmark = pytest.mark.both_databases


@pytest.fixture
async def desk(world: World) -> Desk:
    return await world.desk()


def heartbeat(leased: LeasedDispatch, **values: Any) -> Heartbeat:
    return Heartbeat(dispatch_id=leased.dispatch_id, lease_token=leased.lease_token, **values)


async def beat(world: World, leased: LeasedDispatch, **values: Any) -> HeartbeatResult:
    return await world.engine.queue.heartbeats.beat(heartbeat(leased, **values))


async def progress(world: World) -> Any:
    async with world.engine.databases.central.read() as tx:
        return (await tx.execute(central.queue.ai_job_dispatches.select())).one().progress


async def logs(world: World, job: JobRecord) -> list[str]:
    async with (await world.engine.databases.shard_of(job.tenant_id)).read() as tx:
        return [entry.line for entry in await history.log_page(tx, job.tenant_id, job.id, after_id=0, limit=1000)]


class TestExtension:
    async def test_lease_is_extended_from_now(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        await world.advance(600)
        answer = await beat(world, leased)
        assert answer == HeartbeatResult(lease_expires_at=START + timedelta(seconds=1500), stop=None)
        assert (await world.dispatch(job)).lease_expires_at == answer.lease_expires_at

    async def test_extended_lease_is_not_reaped(self, world: World, desk: Desk) -> None:
        _, leased = await desk.submit_and_lease()
        for _ in range(4):
            await world.advance(899)
            await beat(world, leased)
            assert await world.engine.queue.reaper.run_once() == 0

    async def test_expired_lease_is_extended_until_it_is_reaped(self, world: World, desk: Desk) -> None:
        _, leased = await desk.submit_and_lease()
        await world.advance(5000)
        await beat(world, leased)
        assert await world.engine.queue.reaper.run_once() == 0
        assert await world.complete(leased) == "completed"

    async def test_heartbeat_causes_no_state_transition(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        before = await world.dispatch(job)
        await beat(world, leased, progress={"step": 1})
        after = await world.dispatch(job)
        assert (after.version, after.epoch, after.attempts) == (before.version, before.epoch, before.attempts)
        assert await world.events(job) == ["job:queued", "job:started"]

    async def test_each_lease_of_a_heartbeat_batch_gets_its_own_answer(self, world: World) -> None:
        desk = await world.desk(concurrency=3)
        await submit_many(world, desk.user, desk.effect, 3)
        running, ended, canceled = await world.leases(desk.worker, 3)
        await world.requeue(ended)
        await world.engine.queue.control.cancel(canceled.dispatch.tenant_id, canceled.dispatch.tenant_job_id)
        answers = await world.engine.queue.heartbeats.beat_many(
            [heartbeat(lease) for lease in (running, ended, canceled)]
        )
        assert isinstance(answers[1], LeaseLost)
        assert [answer.stop for answer in answers if isinstance(answer, HeartbeatResult)] == [None, "cancel"]


class TestProgress:
    async def test_progress_is_stored_until_the_lease_ends(self, world: World, desk: Desk) -> None:
        _, leased = await desk.submit_and_lease()
        await beat(world, leased, progress={"step": 3, "of": 20, "node": "KSampler"})
        await beat(world, leased)
        assert await progress(world) == {"step": 3, "of": 20, "node": "KSampler"}
        await world.requeue(leased)
        assert await world.lease(desk.worker) is not None
        assert await progress(world) is None

    async def test_later_progress_of_two_concurrent_heartbeats_wins(self, world: World, desk: Desk) -> None:
        _, leased = await desk.submit_and_lease()
        beats = [heartbeat(leased, progress={"step": 1}), heartbeat(leased, progress={"step": 2}), heartbeat(leased)]
        answers = await world.engine.queue.heartbeats.beat_many(beats)
        assert all(isinstance(answer, HeartbeatResult) for answer in answers)
        assert await progress(world) == {"step": 2}

    async def test_unstorable_characters_do_not_fail_a_heartbeat(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        await beat(world, leased, progress={"node": "a\x00b"}, logs=["half \ud800"])
        assert await progress(world) == {"node": "a\ufffdb"}
        assert await logs(world, job) == ["half \ufffd"]


class TestLogs:
    async def test_lines_are_truncated_and_stored_in_order_until_the_lease_ends(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        await beat(world, leased, logs=["one", "two"])
        await beat(world, leased, logs=["x" * (MAX_LINE_LENGTH + 1)])
        await world.requeue(leased)
        with pytest.raises(LeaseLost):
            await beat(world, leased, logs=["too late"])
        assert await logs(world, job) == ["one", "two", "x" * MAX_LINE_LENGTH]

    async def test_unreachable_shard_loses_the_lines_but_not_the_lease(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        await world.advance(600)
        async with shard_down(world, await world.engine.databases.shard_name_of(job.tenant_id)):
            answer = await beat(world, leased, logs=["lost"])
        assert answer.lease_expires_at == START + timedelta(seconds=1500)

    async def test_lines_of_a_deleted_job_are_dropped(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        shard = await world.engine.databases.shard_of(job.tenant_id)
        await execute(shard, "DELETE FROM ai_jobs WHERE id = :id", id=job.id)
        assert (await beat(world, leased, logs=["lost"])).stop is None


class TestStopRequest:
    async def test_cancel_is_repeated_and_overrides_a_pause(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        await world.engine.queue.control.pause(job.tenant_id, job.id, mode=PauseMode.NOW)
        await world.engine.queue.control.cancel(job.tenant_id, job.id)
        assert [(await beat(world, leased)).stop for _ in range(2)] == ["cancel", "cancel"]

    async def test_only_pause_now_is_sent_until_it_is_withdrawn(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        control = world.engine.queue.control
        await control.pause(job.tenant_id, job.id, mode=PauseMode.AFTER)
        assert (await beat(world, leased)).stop is None
        await control.pause(job.tenant_id, job.id, mode=PauseMode.NOW)
        assert (await beat(world, leased)).stop == "pause"
        await control.resume(job.tenant_id, job.id)
        assert (await beat(world, leased)).stop is None
