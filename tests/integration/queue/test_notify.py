"""Parked polls wake for new jobs, are served even if a wakeup is lost, and never lose a lease."""

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
from comfyrelay.store.notify import CHANNEL, MAX_MESSAGES, NotifyChannel, PostgresNotifyChannel
from tests.support.world import PATIENCE_SECONDS, Desk, PostgresBackend, World, open_world, submit_many

LONG = PATIENCE_SECONDS


class LossyChannel(NotifyChannel):
    """A channel that loses every notification."""

    async def notify(self) -> None:
        return None


@pytest.fixture
async def desk(world: World) -> Desk:
    return await world.desk()


def poll(polls: Polls, worker: str, *, wait_seconds: float = LONG) -> "asyncio.Task[list[LeasedDispatch]]":
    request = LeaseRequest(worker_id=worker, providers=["self_hosted"])
    return asyncio.create_task(polls.poll(request, wait_seconds=wait_seconds))


async def wait_until_parked(polls: Polls, count: int = 1) -> None:
    """Wait until this many polls have found nothing and are parked."""
    async with asyncio.timeout(LONG):
        # There is no signal for a parked poll, so check at every turn of the event loop.
        while polls.parked < count or polls._new or polls._watcher is None:  # noqa: ASYNC110
            await asyncio.sleep(0)


def make_polls(engine: Engine, channel: NotifyChannel | None = None, *, tick_seconds: float = 10 * LONG) -> Polls:
    """Return polls that by default never tick, so only a wakeup can serve them."""
    channel = channel or engine.notify_channel
    return Polls(engine.queue.leasing, engine.queue.demand, engine.queue.settle, channel, tick_seconds=tick_seconds)


@pytest.fixture
async def polls(world: World) -> AsyncIterator[Polls]:
    polls = make_polls(world.engine)
    yield polls
    await polls.stop()


class TestParkedPolls:
    async def test_parked_poll_gets_a_job_submitted_later(self, world: World, desk: Desk, polls: Polls) -> None:
        waiting = poll(polls, desk.worker)
        await wait_until_parked(polls)
        job = await desk.submit()
        (leased,) = await waiting
        assert leased.dispatch.tenant_job_id == job.id
        assert polls.parked == 0

    async def test_poll_returns_at_once_or_after_its_wait(self, world: World, desk: Desk, polls: Polls) -> None:
        assert await poll(polls, desk.worker, wait_seconds=0) == []
        assert await poll(polls, desk.worker, wait_seconds=0.05) == []
        assert polls.parked == 0
        await desk.submit()
        assert len(await poll(polls, desk.worker, wait_seconds=0)) == 1

    @pytest.mark.both_databases
    async def test_parked_polls_share_incoming_jobs(self, world: World, desk: Desk, polls: Polls) -> None:
        workers = [await world.worker(desk.fleet) for _ in range(8)]
        waiting = [poll(polls, worker) for worker in workers]
        await wait_until_parked(polls, 8)
        jobs = await submit_many(world, desk.user, desk.effect, 8)
        found = await asyncio.gather(*waiting)
        assert sorted(lease.dispatch.tenant_job_id for (lease,) in found) == sorted(job.id for job in jobs)

    async def test_single_job_serves_one_parked_poll(self, world: World, desk: Desk, polls: Polls) -> None:
        waiting = [poll(polls, await world.worker(desk.fleet)) for _ in range(3)]
        await wait_until_parked(polls, 3)
        await desk.submit()
        done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert (len(done), len(rest), polls.parked) == (1, 2, 2)
        await polls.stop()
        assert await asyncio.gather(*rest) == [[], []]

    async def test_requeued_job_wakes_a_parked_poll(self, world: World, desk: Desk, polls: Polls) -> None:
        job, leased = await desk.submit_and_lease()
        waiting = poll(polls, await world.worker(desk.fleet))
        await wait_until_parked(polls)
        await world.requeue(leased)
        (found,) = await waiting
        assert found.dispatch.tenant_job_id == job.id

    async def test_parked_polls_are_not_queried_with_other_polls(self, world: World, desk: Desk, polls: Polls) -> None:
        steps: list[str] = []

        async def record(step: str, _: Boundary) -> None:
            steps.append(step)

        idle = poll(polls, desk.worker)
        await wait_until_parked(polls)
        world.on_boundary(record)
        other = await world.workflow()
        busy = await world.worker(await world.fleet(other))
        steps.clear()
        assert await poll(polls, busy, wait_seconds=0) == []
        assert steps == [TransactionStep.LEASE] * 2
        assert not idle.done()

    async def test_revoked_worker_is_refused_at_the_next_check(self, world: World, desk: Desk, polls: Polls) -> None:
        waiting = poll(polls, desk.worker)
        await wait_until_parked(polls)
        await world.engine.workers.workers.set_approved(desk.worker, is_approved=False)
        await desk.submit()
        with pytest.raises(Forbidden):
            await waiting

    async def test_tick_serves_parked_polls_if_every_notification_is_lost(self, world: World, desk: Desk) -> None:
        polls = make_polls(world.engine, LossyChannel(), tick_seconds=0.05)
        waiting = poll(polls, desk.worker)
        await wait_until_parked(polls)
        await desk.submit()
        async with asyncio.timeout(LONG):
            assert len(await waiting) == 1
        await polls.stop()

    async def test_failed_query_is_retried(self, world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        polls = make_polls(world.engine, LossyChannel(), tick_seconds=0.05)
        lease_many = world.engine.queue.leasing.lease_many
        failures: list[int] = []

        async def fail_once(requests: Any) -> Any:
            if not failures:
                failures.append(1)
                raise OSError("the database is unreachable")
            return await lease_many(requests)

        monkeypatch.setattr(world.engine.queue.leasing, "lease_many", fail_once)
        await desk.submit()
        assert len(await poll(polls, desk.worker)) == 1
        assert failures
        await polls.stop()


class TestDisconnectedPolls:
    async def test_disconnected_parked_poll_gets_no_job(self, world: World, desk: Desk, polls: Polls) -> None:
        waiting = poll(polls, desk.worker)
        await wait_until_parked(polls)
        waiting.cancel()
        await asyncio.wait([waiting])
        job = await desk.submit()
        assert polls.parked == 0
        assert (await world.dispatch(job)).status == "queued"

    @pytest.mark.parametrize("boundary", list(Boundary))
    @pytest.mark.both_databases
    async def test_lease_of_a_disconnected_caller_is_requeued_without_penalty(
        self, world: World, desk: Desk, polls: Polls, boundary: Boundary
    ) -> None:
        job = await desk.submit()
        requeued = asyncio.Event()

        async def hang_up(step: str, at: Boundary) -> None:
            if step == TransactionStep.LEASE and at is boundary:
                waiting.cancel()
            if step == TransactionStep.SETTLE and at is Boundary.AFTER_COMMIT:
                requeued.set()

        world.on_boundary(hang_up)
        waiting = poll(polls, desk.worker)
        async with asyncio.timeout(LONG):
            await requeued.wait()
        assert waiting.cancelled()
        dispatch = await world.dispatch(job)
        assert (dispatch.status, dispatch.attempts) == ("queued", 0)
        assert dispatch.last_error == "Requeued: client_disconnected"

    async def test_stop_answers_parked_polls_with_nothing(self, world: World, desk: Desk, polls: Polls) -> None:
        waiting = [poll(polls, await world.worker(desk.fleet)) for _ in range(3)]
        await wait_until_parked(polls, 3)
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


class TestNotifyChannel:
    async def test_pending_notifications_end_one_wait(self) -> None:
        notify_channel = NotifyChannel()
        await notify_channel.notify()
        await notify_channel.notify()
        assert await notify_channel.wait(LONG)
        assert not await notify_channel.wait(0.01)

    async def test_message_reaches_every_listener_at_once(self) -> None:
        notify_channel, received = NotifyChannel(), list[str]()
        for name in ("one", "other"):
            notify_channel.on_message(lambda message, name=name: received.append(f"{name} {message}"))  # type: ignore[misc]
        notify_channel.publish("job-1")
        assert received == ["one job-1", "other job-1"]


@pytest.fixture
async def postgres_world(postgres_backend: PostgresBackend, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(postgres_backend, tmp_path) as world:
        yield world


@asynccontextmanager
async def listen(dsn: str) -> AsyncIterator[PostgresNotifyChannel]:
    notify_channel = PostgresNotifyChannel(dsn)
    await notify_channel.start()
    try:
        async with asyncio.timeout(LONG):
            await notify_channel.listening.wait()
        # each new connection causes one wakeup
        assert await notify_channel.wait(LONG)
        yield notify_channel
    finally:
        await notify_channel.stop()


class TestPostgresNotifyChannel:
    async def test_job_submitted_to_one_server_wakes_a_poll_parked_on_another(self, postgres_world: World) -> None:
        world, clock = postgres_world, postgres_world.clock
        desk = await world.desk()
        dsn = world.engine.databases.central.dsn
        async with listen(dsn) as here, listen(dsn) as there:
            submitting = Engine(world.engine.settings, clock=lambda: clock.now, notify_channel=here)
            serving = Engine(world.engine.settings, clock=lambda: clock.now, notify_channel=there)
            polls = make_polls(serving)
            waiting = poll(polls, desk.worker)
            await wait_until_parked(polls)
            world.engine, first = submitting, world.engine
            job = await desk.submit()
            (leased,) = await waiting
            assert leased.dispatch.tenant_job_id == job.id
            await polls.stop()
            world.engine = first
            await submitting.stop()
            await serving.stop()

    async def test_lost_connection_is_reopened_and_wakes_once(self, postgres_world: World) -> None:
        dsn = postgres_world.engine.databases.central.dsn
        async with listen(dsn) as notify_channel, listen(dsn) as other:
            connection = notify_channel._connection
            assert connection is not None
            server = await asyncpg.connect(dsn)
            await server.execute("SELECT pg_terminate_backend($1)", connection.get_server_pid())
            await server.close()
            # No notification was sent, so only the new connection can cause this wakeup.
            assert await notify_channel.wait(LONG)
            assert notify_channel._connection is not connection
            await other.notify()
            assert await notify_channel.wait(LONG)

    async def test_many_notifications_are_sent_as_a_few(self, postgres_world: World) -> None:
        dsn = postgres_world.engine.databases.central.dsn
        received: asyncio.Queue[str] = asyncio.Queue()
        listener = await asyncpg.connect(dsn)
        await listener.add_listener(CHANNEL, lambda _c, _p, channel, _m: received.put_nowait(channel))
        async with listen(dsn) as notify_channel:
            for _ in range(100):
                await notify_channel.notify()
            async with asyncio.timeout(LONG):
                assert await received.get() == CHANNEL
            # PostgreSQL delivers notifications before the answer to a later statement.
            if notify_channel._sender is not None:
                await asyncio.wait([notify_channel._sender])
            await listener.execute("SELECT 1")
            assert received.qsize() <= 3
        await listener.close()

    async def test_every_message_of_one_server_reaches_another(self, postgres_world: World) -> None:
        dsn = postgres_world.engine.databases.central.dsn
        # more than fits into one notification
        sent = {f"watched:{number:036}" for number in range(2 * MAX_MESSAGES + 1)}
        received, is_complete = set[str](), asyncio.Event()

        def receive(message: str) -> None:
            received.add(message)
            if received == sent:
                is_complete.set()

        async with listen(dsn) as here, listen(dsn) as there:
            there.on_message(receive)
            for message in sent:
                here.publish(message)
            await asyncio.wait_for(is_complete.wait(), LONG)

    async def test_notification_wakes_this_process_without_the_database(self, postgres_world: World) -> None:
        notify_channel = PostgresNotifyChannel("postgresql://nobody@127.0.0.1:1/nowhere")
        await notify_channel.notify()
        assert await notify_channel.wait(LONG)
