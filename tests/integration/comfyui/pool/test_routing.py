"""Jobs fail over between servers after failures of a workflow, interruptions and lost servers."""

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import httpx

from comfyrelay.comfyui.pool import (
    ClientBlockedWorkflow,
    ClientState,
    ClientStateChanged,
    ClientUnblockedWorkflow,
    JobAccepted,
    JobProgress,
    JobRetrying,
    JobStarted,
    MemberTimings,
    PoolJobStatus,
    SmartFailover,
    WorkflowPool,
)
from comfyrelay.errors import RunInterrupted, ServerUnreachable
from comfyrelay.simulator import DropSocket, Fail, Refuse, Restart, Simulator, Slow, Stuck
from tests.support.pool import QUICK, invert, plain, ready_pool, until
from tests.support.world import PATIENCE_SECONDS


async def test_jobs_finish_if_one_of_three_servers_cannot_run_a_workflow(simulators: list[Simulator]) -> None:
    failing = simulators[0].misbehave(Fail(class_type="ImageInvert", message="No space left on device"))
    async with ready_pool(*simulators) as pool:
        blocks = pool.events(ClientBlockedWorkflow, ClientUnblockedWorkflow)
        graphs = [invert(number) if number % 2 else plain(number) for number in range(600)]
        jobs = [await pool.enqueue(graph, retry_delay=0.01) for graph in graphs]
        await asyncio.gather(*(asyncio.wait_for(job, PATIENCE_SECONDS) for job in jobs))
        used = {kind: Counter(job.client_id for job in jobs[kind::2]) for kind in (0, 1)}
        # Only this pair of server and workflow is blocked, after its first failure.
        assert failing.happened == 1
        blocked = await anext(blocks)
        assert (blocked.client_id, blocked.workflow_hash) == ("a", jobs[1].workflow_hash)
        stats = pool.stats()
        assert stats.clients["a"].blocked_hashes == {jobs[1].workflow_hash}
        assert (stats.completed, stats.failed, stats.queued, stats.running, stats.retrying) == (600, 0, 0, 0, 0)
        assert set(used[1]) == {"b", "c"}
        assert used[0]["a"] > 0
        assert sorted(job.attempts for job in jobs) == [1] * 599 + [2]
        assert sum(client.completed for client in stats.clients.values()) == 600
        assert stats.clients["a"].failed == 1


async def test_blocked_pair_is_released_after_its_cooldown(simulator: Simulator) -> None:
    failing = simulator.misbehave(Fail(class_type="ImageInvert", message="No space left on device", times=1))
    async with ready_pool(simulator, failover=SmartFailover(cooldown_seconds=0.3)) as pool:
        events = pool.events()
        job = await pool.enqueue(invert(), retry_delay=0)
        blocked = await until(events, ClientBlockedWorkflow)
        # The server runs other workflows while this job waits.
        other = await pool.enqueue(plain())
        await other
        assert job.status is PoolJobStatus.QUEUED
        unblocked = await until(events, ClientUnblockedWorkflow)
        assert (unblocked.client_id, unblocked.workflow_hash) == ("a", job.workflow_hash)
        assert datetime.now(UTC) - blocked.blocked_until < timedelta(seconds=5)
        await job
        assert job.started_at is not None
        assert job.started_at >= blocked.blocked_until - timedelta(milliseconds=1)
        assert (failing.happened, job.attempts) == (1, 2)


async def test_block_ends_by_the_clock_of_the_strategy(simulator: Simulator) -> None:
    simulator.misbehave(Fail(class_type="ImageInvert", message="No space left on device", times=1))
    now = datetime(2026, 1, 1, tzinfo=UTC)
    async with ready_pool(simulator, failover=SmartFailover(clock=lambda: now)) as pool:
        events = pool.events(ClientBlockedWorkflow, ClientUnblockedWorkflow)
        job = await pool.enqueue(invert(), retry_delay=0)
        assert (await anext(events)).blocked_until == now + timedelta(seconds=60)
        now += timedelta(seconds=59)
        await pool.run(plain())
        assert job.status is PoolJobStatus.QUEUED
        now += timedelta(seconds=1)
        # Any wakeup of the scheduler will do.
        await pool.enqueue(plain())
        await job
        assert isinstance(await anext(events), ClientUnblockedWorkflow)


async def test_interrupted_run_is_retried_without_a_block(pool: WorkflowPool, simulator: Simulator) -> None:
    slow = simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=60_000))
    job = await pool.enqueue(invert(), retry_delay=0)
    events = job.events()
    await until(events, JobProgress, lambda event: event.value > 0)
    slow.end()
    async with httpx.AsyncClient() as http:
        await http.post(f"{simulator.url}/interrupt")
    retrying = await until(events, JobRetrying)
    assert isinstance(retrying.error, RunInterrupted)
    await job
    assert (job.attempts, job.client_id, job.last_error) == (2, "a", None)


async def test_job_outlives_its_server(simulators: list[Simulator]) -> None:
    stuck = [simulator.misbehave(Stuck(class_type="ImageInvert")) for simulator in simulators]
    async with ready_pool(*simulators) as pool:
        states = pool.events(ClientStateChanged)
        job = await pool.enqueue(invert(), retry_delay=0, preferred_clients=["b"])
        events = job.events()
        assert (await until(events, JobStarted)).client_id == "b"
        stuck[0].end()
        stuck[2].end()
        await simulators[1].stop()
        retrying = await until(events, JobRetrying)
        assert isinstance(retrying.error, ServerUnreachable)
        assert (await job).files
        assert job.client_id in {"a", "c"}
        offline = await until(states, ClientStateChanged, lambda event: event.state is ClientState.OFFLINE)
        assert offline.client_id == "b"
        assert offline.reason


async def test_restarted_server_is_used_again_after_a_grace_period(simulator: Simulator) -> None:
    grace = 0.5
    timings = MemberTimings(reconnect_grace_seconds=grace, first_backoff_seconds=0.02, last_backoff_seconds=0.1)
    async with ready_pool(simulator, timings=timings) as pool:
        await pool.run(plain())
        states = pool.events(ClientStateChanged)
        await simulator.stop()
        await until(states, ClientStateChanged, lambda event: event.state is ClientState.OFFLINE)
        job = await pool.enqueue(plain())
        away_at = datetime.now(UTC)
        await simulator.start()
        await until(states, ClientStateChanged, lambda event: event.state is ClientState.ONLINE)
        assert pool.stats().clients["a"].warm_hashes == ()
        await job
        assert job.started_at is not None
        assert job.started_at - away_at >= timedelta(seconds=grace)
        assert job.attempts == 1


async def test_server_is_checked_on_request_instead_of_after_the_pause(simulator: Simulator) -> None:
    timings = MemberTimings(first_backoff_seconds=3600.0, last_backoff_seconds=3600.0)
    async with ready_pool(simulator, timings=timings) as pool:
        states = pool.events(ClientStateChanged)
        await simulator.stop()
        # The first check after a loss is immediate and fails as well.
        for _ in range(2):
            await until(states, ClientStateChanged, lambda event: event.state is ClientState.OFFLINE)
        await simulator.start()
        pool.check_server("a")
        await until(states, ClientStateChanged, lambda event: event.state is ClientState.ONLINE)


async def test_run_lost_in_a_restart_runs_on_another_server(simulators: list[Simulator]) -> None:
    simulators[0].misbehave(Restart(class_type="ImageInvert", times=1))
    async with ready_pool(*simulators) as pool:
        job = await pool.enqueue(invert(), retry_delay=0, preferred_clients=["a"])
        events = job.events()
        assert (await until(events, JobAccepted)).client_id == "a"
        await job
        assert job.attempts == 2
        assert job.client_id != "a"


async def test_server_with_failing_health_checks_gets_no_jobs(simulator: Simulator) -> None:
    timings = replace(QUICK, health_interval_seconds=0.05)
    async with ready_pool(simulator, timings=timings) as pool:
        states = pool.events(ClientStateChanged)
        refusing = simulator.misbehave(Refuse(status=503, path="/prompt"))
        offline = await until(states, ClientStateChanged, lambda event: event.state is ClientState.OFFLINE)
        assert "503" in (offline.reason or "")
        job = await pool.enqueue(plain())
        refusing.end()
        await job
        assert job.attempts == 1


async def test_server_without_a_socket_is_used(simulator: Simulator) -> None:
    simulator.misbehave(Refuse(status=403, path="/ws"))
    timings = replace(QUICK, health_interval_seconds=0.01)
    async with ready_pool(simulator, timings=timings) as pool:
        states = pool.events(ClientStateChanged)
        await pool.run(plain())
        # The missing socket must not take the server offline.
        states.close()
        assert [event async for event in states] == []


async def test_job_waits_for_the_first_online_server(simulator: Simulator) -> None:
    await simulator.stop()
    async with WorkflowPool([simulator.url], timings=QUICK) as pool:
        states = pool.events(ClientStateChanged)
        job = await pool.enqueue(invert())
        await until(states, ClientStateChanged, lambda event: event.state is ClientState.OFFLINE)
        assert job.status is PoolJobStatus.QUEUED
        await simulator.start()
        await job
        assert job.attempts == 1


async def test_servers_can_be_added_and_removed(simulators: list[Simulator]) -> None:
    first, second, _ = simulators
    stuck = first.misbehave(Stuck(class_type="ImageInvert"))
    async with ready_pool(first) as pool:
        job = await pool.enqueue(invert())
        await until(job.events(), JobStarted)
        assert pool.add_server(second.url, name="late") == "late"
        stuck.end()
        await pool.remove_server("a")
        await job
        assert set(pool.stats().clients) == {"late"}
        assert job.attempts == 1


async def test_removed_server_may_finish_its_running_job(simulators: list[Simulator]) -> None:
    first, second, _ = simulators
    stuck = first.misbehave(Stuck(class_type="ImageInvert"))
    async with ready_pool(first) as pool:
        job = await pool.enqueue(invert())
        await until(job.events(), JobStarted)
        pool.add_server(second.url, name="late")
        removal = asyncio.create_task(pool.remove_server("a", finish=True))
        # New jobs go to the other server while the removed server is still working.
        await pool.run(invert(1))
        assert not removal.done()
        stuck.end()
        await removal
        assert (job.status, job.client_id) == (PoolJobStatus.COMPLETED, "a")
        assert set(pool.stats().clients) == {"late"}


async def test_dropped_socket_costs_no_attempt(pool: WorkflowPool, simulator: Simulator) -> None:
    simulator.misbehave(DropSocket(class_type="ImageInvert", times=1))
    states = pool.events(ClientStateChanged)
    job = await pool.enqueue(invert())
    await job
    await until(states, ClientStateChanged, lambda event: event.state is ClientState.OFFLINE)
    await until(states, ClientStateChanged, lambda event: event.state is ClientState.ONLINE)
    await pool.run(invert(1))
    assert job.attempts == 1
