"""Parked polls: woken when there is work, served even without a wakeup, and never left with half a lease."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from comfyrelay.errors import Forbidden
from comfyrelay.services.engine import Engine
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.services.queue.polls import Polls
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Boundary
from comfyrelay.store.notify import CHANNEL, MAX_MESSAGES, LocalNotifyChannel, PostgresNotifyChannel
from tests.support.world import PATIENCE_SECONDS, Desk, PostgresBackend, World, open_world, submit_many

# Longer than any wait in these tests should take; only a failing test waits this long.
LONG = PATIENCE_SECONDS


class Deaf(LocalNotifyChannel):
    """Every notification is lost."""

    async def notify(self) -> None:
        return None


@pytest.fixture
async def desk(world: World) -> Desk:
    return await world.desk()


def poll(polls: Polls, worker: str, *, wait_seconds: float = LONG) -> "asyncio.Task[list[LeasedDispatch]]":
    request = LeaseRequest(worker_id=worker, providers=["self_hosted"])
    return asyncio.create_task(polls.poll(request, wait_seconds=wait_seconds))


async def parked(polls: Polls, count: int = 1) -> None:
    """Wait until this many polls have found nothing and are parked."""
    async with asyncio.timeout(LONG):
        # There is no signal for a parked poll, so poll at every turn of the loop.
        while polls.parked < count or polls._new or polls._watcher is None:  # noqa: ASYNC110
            await asyncio.sleep(0)


def slow_polls(engine: Engine, notify_channel: LocalNotifyChannel | None = None) -> Polls:
    """Polls without a tick, so that only a wakeup can help."""
    return Polls(
        engine.queue.leasing,
        engine.queue.demand,
        engine.queue.settle,
        notify_channel or engine.notify_channel,
        tick_seconds=10 * LONG,
    )


@pytest.fixture
async def polls(world: World) -> AsyncIterator[Polls]:
    polls = slow_polls(world.engine)
    yield polls
    await polls.stop()


class TestParkedPolls:
    async def test_parked_poll_gets_a_job_that_is_submitted_later(self, world: World, desk: Desk, polls: Polls) -> None:
        waiting = poll(polls, desk.worker)
        await parked(polls)
        job = await desk.submit()
        (leased,) = await waiting
        assert leased.dispatch.tenant_job_id == job.id
        assert polls.parked == 0

    async def test_job_that_is_there_is_given_at_once(self, world: World, desk: Desk, polls: Polls) -> None:
        await desk.submit()
        assert len(await poll(polls, desk.worker, wait_seconds=0)) == 1

    async def test_poll_that_does_not_wait_is_answered_with_nothing(self, desk: Desk, polls: Polls) -> None:
        assert await poll(polls, desk.worker, wait_seconds=0) == []

    async def test_poll_whose_time_is_up_is_answered_with_nothing(self, desk: Desk, polls: Polls) -> None:
        assert await poll(polls, desk.worker, wait_seconds=0.05) == []
        assert polls.parked == 0

    async def test_parked_polls_share_incoming_jobs(self, world: World, desk: Desk, polls: Polls) -> None:
        workers = [await world.worker(desk.fleet) for _ in range(8)]
        waiting = [poll(polls, worker) for worker in workers]
        await parked(polls, 8)
        jobs = await submit_many(world, desk.user, desk.effect, 8)
        found = await asyncio.gather(*waiting)
        assert sorted(each.dispatch.tenant_job_id for leased in found for each in leased) == sorted(j.id for j in jobs)
        assert all(len(leased) == 1 for leased in found)

    async def test_single_job_serves_one_parked_poll(self, world: World, desk: Desk, polls: Polls) -> None:
        waiting = [poll(polls, await world.worker(desk.fleet)) for _ in range(3)]
        await parked(polls, 3)
        await desk.submit()
        done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert (len(done), len(rest), polls.parked) == (1, 2, 2)
        await polls.stop()
        assert [await each for each in rest] == [[], []]

    async def test_requeued_job_wakes_a_parked_poll(self, world: World, desk: Desk, polls: Polls) -> None:
        job, leased = await desk.leased()
        waiting = poll(polls, await world.worker(desk.fleet))
        await parked(polls)
        await world.requeue(leased)
        (found,) = await waiting
        assert found.dispatch.tenant_job_id == job.id

    async def test_parked_polls_cost_no_queries(self, world: World, desk: Desk, polls: Polls) -> None:
        steps: list[str] = []

        async def note(step: str, _: Boundary) -> None:
            steps.append(step)

        idle = poll(polls, desk.worker)
        await parked(polls)
        world.on_boundary(note)
        other = await world.workflow()
        busy = await world.worker(await world.fleet(other))
        steps.clear()
        assert await poll(polls, busy, wait_seconds=0) == []
        assert steps == [TransactionStep.LEASE] * 2
        assert not idle.done()

    async def test_revoked_worker_is_refused_at_the_next_check(self, world: World, desk: Desk, polls: Polls) -> None:
        waiting = poll(polls, desk.worker)
        await parked(polls)
        await world.engine.workers.workers.set_approved(desk.worker, is_approved=False)
        await desk.submit()
        with pytest.raises(Forbidden):
            await waiting

    async def test_tick_serves_parked_polls_although_every_notification_is_lost(self, world: World, desk: Desk) -> None:
        polls = Polls(
            world.engine.queue.leasing, world.engine.queue.demand, world.engine.queue.settle, Deaf(), tick_seconds=0.05
        )
        waiting = poll(polls, desk.worker)
        await parked(polls)
        await desk.submit()
        async with asyncio.timeout(LONG):
            assert len(await waiting) == 1
        await polls.stop()

    async def test_failed_look_is_tried_again(self, world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        polls = Polls(
            world.engine.queue.leasing, world.engine.queue.demand, world.engine.queue.settle, Deaf(), tick_seconds=0.05
        )
        look = world.engine.queue.leasing.lease_many
        failures: list[int] = []

        async def fail_once(requests: Any) -> Any:
            if not failures:
                failures.append(1)
                raise OSError("the database is gone")
            return await look(requests)

        monkeypatch.setattr(world.engine.queue.leasing, "lease_many", fail_once)
        await desk.submit()
        assert len(await poll(polls, desk.worker)) == 1
        assert failures
        await polls.stop()


class TestLeavingPolls:
    async def test_caller_that_hangs_up_while_it_waits_gets_nothing(
        self, world: World, desk: Desk, polls: Polls
    ) -> None:
        waiting = poll(polls, desk.worker)
        await parked(polls)
        waiting.cancel()
        await asyncio.wait([waiting])
        job = await desk.submit()
        assert polls.parked == 0
        assert (await world.dispatch(job)).status == "queued"

    @pytest.mark.parametrize("boundary", list(Boundary))
    async def test_lease_of_a_disconnected_caller_is_requeued_without_penalty(
        self, world: World, desk: Desk, polls: Polls, boundary: Boundary
    ) -> None:
        job = await desk.submit()
        given_back = asyncio.Event()

        async def hang_up(step: str, at: Boundary) -> None:
            if step == TransactionStep.LEASE and at is boundary:
                waiting.cancel()
            if step == TransactionStep.SETTLE and at is Boundary.AFTER_COMMIT:
                given_back.set()

        world.on_boundary(hang_up)
        waiting = poll(polls, desk.worker)
        async with asyncio.timeout(LONG):
            await given_back.wait()
        assert waiting.cancelled()
        dispatch = await world.dispatch(job)
        assert (dispatch.status, dispatch.attempts) == ("queued", 0)
        assert dispatch.last_error == "Requeued: client_disconnected"

    async def test_stop_answers_parked_polls_with_nothing(self, world: World, desk: Desk, polls: Polls) -> None:
        waiting = [poll(polls, await world.worker(desk.fleet)) for _ in range(3)]
        await parked(polls, 3)
        await polls.stop()
        assert await asyncio.gather(*waiting) == [[], [], []]

    async def test_lease_granted_during_the_stop_is_still_delivered(
        self, world: World, desk: Desk, polls: Polls
    ) -> None:
        job = await desk.submit()
        stopping: list[asyncio.Task[None]] = []

        async def stop(step: str, at: Boundary) -> None:
            if step == TransactionStep.LEASE and at is Boundary.AFTER_COMMIT:
                stopping.append(asyncio.create_task(polls.stop()))
                await asyncio.sleep(0)

        world.on_boundary(stop)
        (leased,) = await poll(polls, desk.worker)
        await stopping[0]
        assert leased.dispatch.tenant_job_id == job.id

    async def test_stopped_polls_still_serve_new_requests(self, world: World, desk: Desk, polls: Polls) -> None:
        await polls.stop()
        await desk.submit()
        assert len(await poll(polls, desk.worker)) == 1


class TestLocalNotifyChannel:
    async def test_wakeup_before_the_wait_is_not_lost(self) -> None:
        notify_channel = LocalNotifyChannel()
        await notify_channel.notify()
        assert await notify_channel.wait(LONG)

    async def test_hint_is_heard_once(self) -> None:
        notify_channel = LocalNotifyChannel()
        await notify_channel.notify()
        await notify_channel.notify()
        assert await notify_channel.wait(LONG)
        assert not await notify_channel.wait(0.01)

    async def test_local_notification_reaches_every_listener_at_once(self) -> None:
        notify_channel, heard = LocalNotifyChannel(), list[str]()
        for name in ("one", "other"):
            notify_channel.on_message(lambda word, name=name: heard.append(f"{name} {word}"))  # type: ignore[misc]
        notify_channel.publish("job-1")
        assert heard == ["one job-1", "other job-1"]


@pytest.fixture
async def postgres_world(postgres_backend: PostgresBackend, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(postgres_backend, tmp_path) as world:
        yield world


@asynccontextmanager
async def listening(dsn: str) -> AsyncIterator[PostgresNotifyChannel]:
    notify_channel = PostgresNotifyChannel(dsn)
    await notify_channel.start()
    try:
        async with asyncio.timeout(LONG):
            await notify_channel.listening.wait()
        # The check after every new connection.
        assert await notify_channel.wait(LONG)
        yield notify_channel
    finally:
        await notify_channel.stop()


class TestPostgresNotifyChannel:
    async def test_job_submitted_to_one_server_wakes_a_poll_parked_at_another(self, postgres_world: World) -> None:
        world, clock = postgres_world, postgres_world.clock
        desk = await world.desk()
        dsn = world.engine.databases.central.dsn
        async with listening(dsn) as here, listening(dsn) as there:
            submitting = Engine(world.engine.settings, clock=lambda: clock.now, notify_channel=here)
            serving = Engine(world.engine.settings, clock=lambda: clock.now, notify_channel=there)
            polls = slow_polls(serving)
            waiting = poll(polls, desk.worker)
            await parked(polls)
            world.engine, first = submitting, world.engine
            job = await desk.submit()
            (leased,) = await waiting
            assert leased.dispatch.tenant_job_id == job.id
            await polls.stop()
            world.engine = first
            await submitting.stop()
            await serving.stop()

    async def test_lost_connection_is_made_again_and_looks_once(self, postgres_world: World) -> None:
        dsn = postgres_world.engine.databases.central.dsn
        async with listening(dsn) as notify_channel, listening(dsn) as other:
            connection = notify_channel._connection
            assert connection is not None
            server = await asyncpg.connect(dsn)
            await server.execute("SELECT pg_terminate_backend($1)", connection.get_server_pid())
            await server.close()
            # The first wakeup after the loss can only be the check of the new connection: there was no notification.
            assert await notify_channel.wait(LONG)
            assert notify_channel._connection is not connection
            await other.notify()
            assert await notify_channel.wait(LONG)

    async def test_hundred_hints_are_a_few_notifications(self, postgres_world: World) -> None:
        dsn = postgres_world.engine.databases.central.dsn
        heard: asyncio.Queue[str] = asyncio.Queue()
        listener = await asyncpg.connect(dsn)
        await listener.add_listener(CHANNEL, lambda _c, _p, channel, _m: heard.put_nowait(channel))
        async with listening(dsn) as notify_channel:
            for _ in range(100):
                await notify_channel.notify()
            async with asyncio.timeout(LONG):
                assert await heard.get() == CHANNEL
            # Once nothing more is being sent, all of it has arrived before the answer to a later statement.
            if notify_channel._sender is not None:
                await asyncio.wait([notify_channel._sender])
            await listener.execute("SELECT 1")
            assert heard.qsize() <= 3
        await listener.close()

    async def test_notifications_of_one_server_all_reach_another(self, postgres_world: World) -> None:
        dsn = postgres_world.engine.databases.central.dsn
        # more than fits into one notification
        said = {f"watched:{number:036}" for number in range(2 * MAX_MESSAGES + 1)}
        heard, is_all = set[str](), asyncio.Event()

        def hear(word: str) -> None:
            heard.add(word)
            if heard == said:
                is_all.set()

        async with listening(dsn) as here, listening(dsn) as there:
            there.on_message(hear)
            for word in said:
                here.publish(word)
            await asyncio.wait_for(is_all.wait(), LONG)

    async def test_hint_wakes_this_process_without_the_database(self, postgres_world: World) -> None:
        notify_channel = PostgresNotifyChannel("postgresql://nobody@127.0.0.1:1/nowhere")
        await notify_channel.notify()
        assert await notify_channel.wait(LONG)
