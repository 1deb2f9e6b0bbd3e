"""A job can be tried once on each server, and does not wait forever for a server."""

import asyncio
from pathlib import Path
from typing import ClassVar

import pytest

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.pool import (
    ClientBlockedWorkflow,
    ClientUnblockedWorkflow,
    Failure,
    FailureVerdict,
    JobFailed,
    JobRetrying,
    JobStarted,
    PoolJobStatus,
    SmartFailover,
    SqliteQueue,
    WorkflowPool,
)
from comfyrelay.errors import ComfyError, Fault, GraphRefused, NodeFailed, NotFound, NotInstalled, RunInterrupted
from comfyrelay.simulator import Fail, Simulator, Stuck
from tests.support.pool import QUICK, invert, ready_pool, until
from tests.support.world import PATIENCE_SECONDS

NOWHERE = "http://127.0.0.1:1"
# A missing Python module is the server's fault.
BROKEN = Fail(class_type="ImageInvert", exception_type="ModuleNotFoundError", message="no torch")


def prompts(*simulators: Simulator) -> list[int]:
    return [simulator.log.count("POST", "/prompt") for simulator in simulators]


async def test_job_is_tried_once_per_server_even_without_blocks() -> None:
    never_blocks = SmartFailover(cooldown_seconds=0)
    async with (
        Simulator() as one,
        Simulator() as two,
        Simulator() as three,
        ready_pool(one, two, three, failover=never_blocks) as pool,
    ):
        for simulator in (one, two, three):
            simulator.misbehave(BROKEN)
        job = await pool.enqueue(invert(), max_attempts=1, one_attempt_per_server=True, retry_delay=0)
        events = job.events()
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(ComfyError, match="no torch"):
                await job
        assert prompts(one, two, three) == [1, 1, 1]
        found = [event.type async for event in events if isinstance(event, JobRetrying | JobFailed)]
        assert found == ["job:retrying", "job:retrying", "job:failed"]


async def test_move_to_a_capable_server_costs_no_attempt() -> None:
    async with Simulator() as one, Simulator() as two, ready_pool(one, two) as pool:
        one.misbehave(BROKEN)
        # The job moves to another server at once.
        job = await pool.enqueue(invert(), max_attempts=1, one_attempt_per_server=True, retry_delay=3600)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await job).files
        assert (job.client_id, job.attempts) == ("b", 1)


async def test_job_does_not_wait_for_an_unreachable_server() -> None:
    async with Simulator() as simulator, WorkflowPool([simulator.url, NOWHERE], timings=QUICK) as pool:
        await pool.wait_ready()
        simulator.misbehave(BROKEN)
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(ComfyError, match="no torch"):
                await pool.run(invert(), max_attempts=5, one_attempt_per_server=True, retry_delay=0)
        assert prompts(simulator) == [1]


@pytest.mark.parametrize(("max_attempts", "runs"), [(3, 2), (1, 1)])
async def test_node_error_on_two_servers_is_a_job_fault(
    simulators: list[Simulator], max_attempts: int, runs: int
) -> None:
    async with ready_pool(*simulators) as pool:
        for simulator in simulators:
            simulator.misbehave(Fail(class_type="ImageInvert", exception_type="ValueError", message="wrong"))
        with pytest.raises(NodeFailed) as caught:
            await pool.run(invert(), max_attempts=max_attempts, one_attempt_per_server=True, retry_delay=3600)
        assert caught.value.fault is Fault.JOB
        assert sum(prompts(*simulators)) == runs
        assert all(not client.blocks for client in pool.stats().clients.values())


async def test_server_is_blocked_for_a_node_error_unique_to_it() -> None:
    async with Simulator() as one, Simulator() as two, ready_pool(one, two) as pool:
        one.misbehave(Fail(class_type="ImageInvert", exception_type="AttributeError", message="an old custom node"))
        blocked = pool.events(ClientBlockedWorkflow)
        job = await pool.enqueue(invert(), preferred_clients=["a"], retry_delay=3600)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await job).files
            assert (await anext(blocked)).client_id == "a"
        assert (job.client_id, job.attempts) == ("b", 2)
        assert pool.stats().clients["a"].blocks[job.workflow_hash].failure_count == 1


async def test_job_with_a_node_error_does_not_wait_for_stopped_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("comfyrelay.comfyui.pool.runner.SECOND_ATTEMPT_SECONDS", 0.1)
    async with Simulator() as one, Simulator() as two, ready_pool(one, two) as pool:
        one.misbehave(Fail(class_type="ImageInvert", exception_type="ValueError", message="wrong"))
        two.misbehave(Stuck(class_type="ImageInvert"))
        busy = await pool.enqueue(invert(1), exclude_clients=["a"], max_attempts=1)
        job = await pool.enqueue(invert())
        async with asyncio.timeout(PATIENCE_SECONDS):
            await until(job.events(), JobRetrying)
            await two.stop()
            with pytest.raises(NodeFailed, match="wrong"):
                await job
            await busy.cancel()


class TestRefusedByEveryServer:
    GRAPH: ClassVar[Graph] = {**invert(), "2": {"class_type": "NoSuchNode", "inputs": {}}}

    async def test_job_refused_by_every_server_fails_with_each_reason(self, simulators: list[Simulator]) -> None:
        async with ready_pool(*simulators) as pool, asyncio.timeout(PATIENCE_SECONDS):
            # Several servers, because one refusal must not delay the next attempt.
            for _ in range(3):
                job = await pool.enqueue(self.GRAPH, retry_delay=3600)
                with pytest.raises(NotInstalled) as caught:
                    await job
                for name in "abc":
                    assert f"{name}: NoSuchNode (2): this node is not installed" in caught.value.detail
                assert caught.value.problems == ("NoSuchNode (2): this node is not installed on the server",)
            assert prompts(*simulators) == [3, 3, 3]

    async def test_all_missing_requirements_of_each_server_are_named(self, simulators: list[Simulator]) -> None:
        loader = {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "rare.pt"}}
        graph = {**self.GRAPH, "7": {"class_type": "NoOtherNode", "inputs": {}}, "8": loader}
        async with ready_pool(*simulators) as pool, asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(NotInstalled) as caught:
                await (await pool.enqueue(graph))
        lacking = (
            "NoSuchNode (2): this node is not installed on the server",
            "NoOtherNode (7): this node is not installed on the server",
            "CheckpointLoaderSimple (8): the model 'rare.pt' is not installed on the server (input 'ckpt_name')",
        )
        assert caught.value.problems == lacking
        for name in "abc":
            assert f"{name}: {'; '.join(lacking)}" in caught.value.detail

    async def test_job_waits_for_an_unreachable_server_until_it_is_removed(self, simulator: Simulator) -> None:
        async with WorkflowPool({"here": simulator.url, "away": NOWHERE}, timings=QUICK) as pool:
            await pool.wait_ready()
            job = await pool.enqueue(self.GRAPH)
            await until(job.events(), JobRetrying)
            assert job.status in (PoolJobStatus.QUEUED, PoolJobStatus.RETRYING)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await pool.remove_server("away")
                with pytest.raises(NotInstalled):
                    await job
        assert prompts(simulator) == [1]


class AlwaysBlameServer(SmartFailover):
    """Blame the server for every failure."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def judge(self, failure: Failure) -> FailureVerdict:
        self.asked.append(f"{failure.client_id}: {failure.error.code} after {sorted(failure.earlier)}")
        return FailureVerdict.SERVER


async def test_strategy_may_blame_the_server_for_every_failure() -> None:
    failover = AlwaysBlameServer()
    async with Simulator() as one, Simulator() as two, ready_pool(one, two, failover=failover) as pool:
        one.misbehave(Fail(class_type="ImageInvert", exception_type="ValueError", message="wrong", times=1))
        job = await pool.enqueue(invert(), preferred_clients=["a"], retry_delay=0)
        await job
        assert (job.client_id, failover.asked) == ("b", ["a: node_failed after []"])
        assert pool.stats().clients["a"].blocked_hashes == {job.workflow_hash}
        wrong = invert()
        wrong["1"]["inputs"]["width"] = "wide"
        with pytest.raises(GraphRefused):
            await pool.run(wrong, max_attempts=1)
        assert failover.asked[1:] == ["b: graph_refused after []"]


async def test_block_can_be_ended_by_hand_and_its_failures_can_be_read(simulator: Simulator) -> None:
    simulator.misbehave(BROKEN)
    failover = SmartFailover(max_failures_before_block=2, cooldown_seconds=3600)
    async with ready_pool(simulator, failover=failover) as pool, asyncio.timeout(PATIENCE_SECONDS):
        unblocked = pool.events(ClientUnblockedWorkflow)
        job = await pool.enqueue(invert(), retry_delay=0, max_attempts=3)
        await until(pool.events(), ClientBlockedWorkflow)
        assert pool.stats().clients["a"].blocks[job.workflow_hash].failure_count == 2
        simulator.behave()
        assert pool.unblock("a", job.workflow_hash)
        await job
        assert (await anext(unblocked)).workflow_hash == job.workflow_hash
        assert not pool.unblock("a", job.workflow_hash)
        with pytest.raises(NotFound):
            pool.unblock("b", job.workflow_hash)
        assert pool.stats().clients["a"].blocks == {}


async def test_durable_queue_keeps_blocks_across_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    async with Simulator() as one, Simulator() as two:
        one.misbehave(BROKEN)
        async with ready_pool(one, two, queue=SqliteQueue(path)) as pool:
            digest = (await pool.enqueue(invert(), preferred_clients=["a"], retry_delay=0)).workflow_hash
            await pool.close(drain=True)
        async with ready_pool(one, two, queue=SqliteQueue(path)) as pool:
            assert pool.stats().clients["a"].blocks[digest].failure_count == 1
            job = await pool.enqueue(invert(), preferred_clients=["a"])
            await job
            assert job.client_id == "b"
            assert pool.unblock("a", digest)
        async with ready_pool(one, two, queue=SqliteQueue(path)) as pool:
            assert pool.stats().clients["a"].blocks == {}


async def test_job_without_a_server_fails_after_its_deadline() -> None:
    async with WorkflowPool([NOWHERE], timings=QUICK) as pool:
        job = await pool.enqueue(invert(), give_up_after_seconds=0.1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(RunInterrupted, match="No server"):
                await job
        assert (job.status, job.attempts, pool.stats().failed) == (PoolJobStatus.FAILED, 0, 1)


async def test_abandoned_job_reports_its_first_failure() -> None:
    graph = invert()
    graph["2"]["class_type"] = "NoSuchNode"
    async with Simulator() as simulator, WorkflowPool([simulator.url, NOWHERE], timings=QUICK) as pool:
        await pool.wait_ready()
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(NotInstalled):
                await pool.run(graph, give_up_after_seconds=0.1, retry_delay=0)


async def test_job_fails_when_its_last_servers_are_removed() -> None:
    async with Simulator() as one, Simulator() as two, ready_pool(one, two) as pool:
        one.misbehave(BROKEN)
        stuck = two.misbehave(Stuck(class_type="ImageInvert"))
        busy = await pool.enqueue(invert(1), exclude_clients=["a"], max_attempts=1)
        waiting = await pool.enqueue(
            invert(), max_attempts=1, one_attempt_per_server=True, retry_delay=0, give_up_after_seconds=0.1
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            await until(waiting.events(), JobRetrying)
            await two.stop()
            stuck.end()
            with pytest.raises(ComfyError, match="no torch"):
                await waiting
            await busy.cancel()


async def test_job_waiting_for_a_busy_server_has_no_deadline() -> None:
    async with Simulator() as simulator, ready_pool(simulator) as pool:
        stuck = simulator.misbehave(Stuck(class_type="ImageInvert"))
        first = await pool.enqueue(invert(1))
        events = first.events()
        second = await pool.enqueue(invert(2), give_up_after_seconds=0)
        await until(events, JobStarted)
        assert second.status is PoolJobStatus.QUEUED
        stuck.end()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await first).files
            assert (await second).files


async def test_canceled_job_does_not_fail_at_its_deadline() -> None:
    async with WorkflowPool([NOWHERE], timings=QUICK) as pool:
        canceled = await pool.enqueue(invert(), give_up_after_seconds=0.05)
        assert await canceled.cancel()
        other = await pool.enqueue(invert(), give_up_after_seconds=0.1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(RunInterrupted):
                await other
        assert (canceled.status, pool.stats().failed) == (PoolJobStatus.CANCELED, 1)


async def test_deadline_of_a_restored_job_applies(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    async with WorkflowPool([NOWHERE], queue=SqliteQueue(path), timings=QUICK) as pool:
        job_id = (await pool.enqueue(invert(), give_up_after_seconds=0.5)).id
    async with (
        WorkflowPool([NOWHERE], queue=SqliteQueue(path), timings=QUICK) as pool,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        with pytest.raises(RunInterrupted):
            await pool.job(job_id)
