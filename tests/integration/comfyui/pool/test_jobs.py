"""Jobs of a pool on simulator servers."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.comfyui import ComfyClient
from comfyrelay.comfyui.client.uploads import Attachment
from comfyrelay.comfyui.pool import (
    JobAccepted,
    JobCanceled,
    JobCompleted,
    JobFailed,
    JobPreview,
    JobProgress,
    JobQueued,
    JobRetrying,
    JobStarted,
    PoolJobEvent,
    PoolJobStatus,
    PoolReady,
    SmartFailover,
    WorkflowPool,
)
from comfyrelay.errors import (
    Canceled,
    ComfyError,
    Conflict,
    Fault,
    GraphError,
    InvalidInput,
    NodeFailed,
    NotFound,
)
from comfyrelay.simulator import Fail, OutOfMemory, Simulator, Slow, Stuck
from tests.support.pool import QUICK, invert, plain, ready_pool, until


async def test_graph_runs_and_its_files_can_be_fetched(pool: WorkflowPool, tmp_path: Path) -> None:
    job = await pool.enqueue(invert())
    assert (job.status, job.attempts, job.client_id, job.server) == (PoolJobStatus.QUEUED, 0, None, None)
    result = await job
    assert (job.status, job.attempts, job.client_id, job.progress) == (PoolJobStatus.COMPLETED, 1, "a", 1.0)
    assert job.started_at is not None
    assert job.finished_at is not None
    assert job.created_at <= job.started_at <= job.finished_at
    assert await job.download(result.file, tmp_path / "out.png") > 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert await job is result


async def test_run_is_enqueue_and_await(pool: WorkflowPool) -> None:
    result = await pool.run(invert(), include_outputs=["3"])
    assert result.file.node_id == "3"


async def test_graph_may_be_changed_once_it_is_enqueued(pool: WorkflowPool) -> None:
    graph = plain(0xFF0000)
    job = await pool.enqueue(graph)
    graph["3"]["class_type"] = "Nonsense"
    await job


async def test_server_may_be_a_client_object(simulator: Simulator) -> None:
    async with ComfyClient(simulator.url) as comfy:
        async with WorkflowPool([comfy]) as pool:
            job = await pool.enqueue(invert())
            await job
            assert job.client_id == comfy.url
            assert job.server is comfy
        # The pool did not open this client, so it does not close it.
        await comfy.check()


async def test_attachments_are_uploaded(pool: WorkflowPool, simulator: Simulator, tmp_path: Path) -> None:
    job = await pool.enqueue(plain(0x00FF00))
    await job.download((await job).file, tmp_path / "green.png")
    graph = invert()
    graph["1"] = {"class_type": "LoadImage", "inputs": {"image": "?"}, "_meta": {"title": "Photo"}}
    for source in (tmp_path / "green.png", (tmp_path / "green.png").read_bytes()):
        attachment = Attachment(node="Photo", input="image", source=source, name="green.png")
        await pool.run(graph, attachments=[attachment])
    assert simulator.log.uploads_written == 1


async def test_placeholder_becomes_the_uploaded_file(pool: WorkflowPool, simulator: Simulator) -> None:
    graph = {"1": {"class_type": "PreviewAny", "inputs": {"source": "__FILE__"}}}
    attachment = Attachment(placeholder="__FILE__", source=b"own", name="a.png", folder="job-1")
    result = await pool.run(graph, attachments=[attachment])
    assert (simulator.folder / "input" / result.texts["1"][0]).read_bytes() == b"own"
    assert result.texts["1"][0].startswith("comfyrelay/job-1/")


async def test_extra_data_is_sent_to_the_server(pool: WorkflowPool) -> None:
    job = await pool.enqueue(invert(), extra_data={"note": "mine"})
    result = await job
    assert isinstance(job.server, ComfyClient)
    history = await job.server._http.object(f"/history/{result.prompt_id}")
    assert history[result.prompt_id]["prompt"][3]["note"] == "mine"


async def test_cancelled_waiter_does_not_cancel_the_job(pool: WorkflowPool, simulator: Simulator) -> None:
    stuck = simulator.misbehave(Stuck(class_type="ImageInvert"))
    job = await pool.enqueue(invert())
    started = job.events()

    async def wait() -> object:
        return await job

    waiting = [asyncio.create_task(wait()) for _ in range(3)]
    await until(started, JobStarted)
    waiting[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    assert job.status is PoolJobStatus.RUNNING
    stuck.end()
    assert await waiting[1] is await waiting[2]
    assert job.attempts == 1


async def test_invalid_graph_fails_at_once_and_blocks_no_server(pool: WorkflowPool, simulator: Simulator) -> None:
    simulator.misbehave(Fail(class_type="ImageInvert", exception_type="ValueError", message="bad value"))
    events = pool.events("client:blocked_workflow", JobRetrying, JobFailed)
    job = await pool.enqueue(invert())
    for _ in range(2):
        with pytest.raises(NodeFailed):
            await job
    assert (job.status, job.attempts) == (PoolJobStatus.FAILED, 1)
    assert isinstance(job.last_error, NodeFailed)
    assert (await anext(events)).error is job.last_error
    assert pool.stats().clients["a"].blocked_hashes == frozenset()


async def test_unexpected_error_is_a_server_fault_and_keeps_its_traceback(pool: WorkflowPool) -> None:
    graph = invert()
    graph["1"] = {"class_type": "LoadImage", "inputs": {"image": "?"}}
    wrong: Any = 42
    job = await pool.enqueue(graph, attachments=[Attachment(node="1", input="image", source=wrong)], max_attempts=1)
    with pytest.raises(ComfyError, match="unexpectedly") as caught:
        await job
    assert caught.value.fault is Fault.WORKER
    assert "Traceback" in (caught.value.raw or "")


async def test_unreadable_file_fails_the_job_and_blocks_no_server(pool: WorkflowPool, tmp_path: Path) -> None:
    missing = Attachment(node="1", input="image", source=tmp_path / "missing.png")
    job = await pool.enqueue(invert(), attachments=[missing])
    with pytest.raises(ComfyError, match=r"missing\.png cannot be read"):
        await job
    assert job.attempts == 1
    assert pool.stats().clients["a"].blocked_hashes == frozenset()


@pytest.mark.filterwarnings("error")
async def test_failed_job_without_waiters_logs_nothing(pool: WorkflowPool, simulator: Simulator) -> None:
    loop_errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_errors.append(context))
    simulator.misbehave(Fail(class_type="ImageInvert", exception_type="ValueError"))
    events = (await pool.enqueue(invert())).events()
    await until(events, JobFailed)
    await pool.close()
    gc.collect()
    assert loop_errors == []


async def test_job_fails_when_its_attempts_run_out(simulator: Simulator) -> None:
    failing = simulator.misbehave(Fail(class_type="ImageInvert", message="No space left on device"))
    async with ready_pool(simulator, failover=SmartFailover(cooldown_seconds=0)) as pool:
        job = await pool.enqueue(invert(), max_attempts=2, retry_delay=0)
        events = job.events()
        with pytest.raises(ComfyError, match="space"):
            await job
        assert failing.happened == job.attempts == 2
        types = [event.type async for event in events if event.type in ("job:retrying", "job:failed")]
        assert types == ["job:retrying", "job:failed"]


async def test_job_events_are_in_order_and_end_with_the_job(pool: WorkflowPool, simulator: Simulator) -> None:
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.02, steps=2, previews=True))
    everything = pool.events("*")
    metadata = {"tenant": "t1"}
    job = await pool.enqueue(invert(), metadata=metadata, priority=3)
    received = [event async for event in job.events()]
    kinds = [event.type for event in received]
    assert kinds[:2] == ["job:accepted", "job:started"]
    assert kinds[-2:] == ["job:output", "job:completed"]
    assert {"job:progress", "job:preview"} <= set(kinds)
    steps = [event for event in received if isinstance(event, JobProgress) and event.maximum]
    assert [(step.node_id, step.class_type, step.value, step.maximum) for step in steps] == [
        ("2", "ImageInvert", 1.0, 2.0),
        ("2", "ImageInvert", 2.0, 2.0),
    ]
    assert any(isinstance(event, JobPreview) and event.image for event in received)
    assert isinstance(received[-1], JobCompleted)
    assert received[-1].result is await job
    first = await until(everything, JobQueued)
    assert first.priority == 3
    for event in (first, *received):
        assert isinstance(event, PoolJobEvent)
        assert (event.job_id, event.metadata, event.workflow_hash) == (job.id, metadata, job.workflow_hash)
    assert all((event.client_id, event.attempt) == ("a", 1) for event in received)
    # The final event can be read after the job has ended.
    assert [event async for event in job.events()] == [received[-1]]


async def test_callback_can_read_the_finished_job(pool: WorkflowPool) -> None:
    seen: list[object] = []

    async def look(event: JobCompleted) -> None:
        job = pool.job(event.job_id)
        seen.extend([job.status, await job, *[event async for event in job.events()]])

    pool.on("job:completed", look)
    job = await pool.enqueue(plain())
    result = await job
    await pool.close()
    assert seen == [PoolJobStatus.COMPLETED, result, *[event async for event in job.events()]]


async def test_highest_priority_runs_first(pool: WorkflowPool, simulator: Simulator) -> None:
    stuck = simulator.misbehave(Stuck(class_type="ImageInvert", times=1))
    first = await pool.enqueue(invert())
    await until(first.events(), JobStarted)
    starts = pool.events(JobStarted)
    jobs = {priority: await pool.enqueue(plain(), priority=priority) for priority in (0, 5, -1, 9)}
    stuck.end()
    order = [(await anext(starts)).job_id for _ in jobs]
    assert order == [jobs[priority].id for priority in (9, 5, 0, -1)]


async def test_waiting_job_can_be_cancelled(pool: WorkflowPool, simulator: Simulator) -> None:
    stuck = simulator.misbehave(Stuck(class_type="ImageInvert"))
    running = await pool.enqueue(invert())
    waiting = await pool.enqueue(plain())
    await until(running.events(), JobStarted)
    assert pool.stats().queued == 1
    assert await waiting.cancel()
    assert waiting.status is PoolJobStatus.CANCELED
    with pytest.raises(Canceled):
        await waiting
    (end,) = [event async for event in waiting.events()]
    assert isinstance(end, JobCanceled)
    stuck.end()
    await running
    assert simulator.log.prompts_queued == 1
    assert not await waiting.cancel()
    assert not await pool.cancel(running.id)


async def test_cancelling_a_running_job_frees_its_server(pool: WorkflowPool, simulator: Simulator) -> None:
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=60_000))
    job = await pool.enqueue(invert())
    await until(job.events(), JobProgress, lambda event: event.value > 0)
    assert await job.cancel()
    assert job.status is PoolJobStatus.CANCELED
    assert (pool.stats().running, pool.stats().canceled) == (0, 1)
    await pool.run(plain())
    assert simulator.log.interrupts == 1


async def test_cancel_returns_when_the_run_has_stopped_on_its_server(pool: WorkflowPool, simulator: Simulator) -> None:
    stuck = simulator.misbehave(Stuck(class_type="ImageInvert"))
    job = await pool.enqueue(invert())
    events = job.events()
    # Wait for the node: an earlier stop request would end the run at once.
    await until(events, JobProgress, lambda event: event.class_type == "ImageInvert")
    canceling = asyncio.create_task(job.cancel())
    await until(events, JobCanceled)
    assert isinstance(job.server, ComfyClient)
    # The node is still working, although a stop was requested.
    assert len(await job.server.prompts()) == 1
    assert not canceling.done()
    stuck.end()
    assert await canceling
    assert await job.server.prompts() == {}


async def test_cancel_does_not_wait_for_a_stopped_server(pool: WorkflowPool, simulator: Simulator) -> None:
    stuck = simulator.misbehave(Stuck(class_type="ImageInvert"))
    for wait in (False, True):
        job = await pool.enqueue(invert())
        events = job.events()
        await until(events, JobStarted if wait is False else JobAccepted)
        canceling = asyncio.create_task(job.cancel(wait=wait))
        await until(events, JobCanceled)
        if wait:
            await simulator.stop()
        assert await canceling
    stuck.end()


async def test_unknown_preferred_server_is_an_error(pool: WorkflowPool) -> None:
    with pytest.raises(InvalidInput, match="names x, y, which the pool does not have; it has a") as caught:
        await pool.enqueue(invert(), preferred_clients=["a", "y", "x"])
    assert caught.value.errors.keys() == {"preferred_clients"}
    # An excluded server need not exist.
    await pool.run(invert(), exclude_clients=["x"])


async def test_retrying_job_can_be_cancelled(pool: WorkflowPool, simulator: Simulator) -> None:
    simulator.misbehave(OutOfMemory(class_type="ImageInvert"))
    job = await pool.enqueue(invert(), retry_delay=600)
    await until(job.events(), JobRetrying)
    assert (job.status, pool.stats().retrying) == (PoolJobStatus.RETRYING, 1)
    assert await job.cancel()
    assert (job.status, pool.stats().retrying, pool.stats().canceled) == (PoolJobStatus.CANCELED, 0, 1)


async def test_just_assigned_job_can_be_cancelled(pool: WorkflowPool) -> None:
    job = await pool.enqueue(invert())
    # The task of the job has been created but has not started.
    await asyncio.sleep(0)
    assert job.status is PoolJobStatus.RUNNING
    assert await job.cancel()
    assert pool.stats().clients["a"].running == 0
    await pool.run(plain())


async def test_concurrent_cancels_return_the_same_result(pool: WorkflowPool, simulator: Simulator) -> None:
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=60_000))
    job = await pool.enqueue(invert())
    await until(job.events(), JobStarted)
    assert await asyncio.gather(*(job.cancel() for _ in range(3))) == [True, True, True]


async def test_cancelling_a_call_of_run_cancels_the_job(pool: WorkflowPool, simulator: Simulator) -> None:
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=60_000))
    events = pool.events(JobStarted)
    call = asyncio.create_task(pool.run(invert()))
    started = await anext(events)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert pool.job(started.job_id).status is PoolJobStatus.CANCELED


async def test_two_pools_on_one_server_do_not_interfere(simulator: Simulator) -> None:
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.3, steps=30))
    async with ready_pool(simulator) as ours, ready_pool(simulator) as theirs:
        first = await ours.enqueue(invert(1))
        await until(first.events(), JobStarted)
        second = await theirs.enqueue(invert(2))
        await until(second.events(), JobAccepted)
        third = await ours.enqueue(plain())
        assert await first.cancel()
        assert (await second).files
        assert (await third).files
        assert (first.status, second.attempts) == (PoolJobStatus.CANCELED, 1)


async def test_preferred_and_excluded_servers_are_respected(simulators: list[Simulator]) -> None:
    async with ready_pool(*simulators) as pool:
        for _ in range(2):
            job = await pool.enqueue(invert(), preferred_clients=["c"])
            await job
            assert job.client_id == "c"
        # Server c is warm, but excluded.
        job = await pool.enqueue(invert(), exclude_clients=["a", "c"])
        await job
        assert job.client_id == "b"
        assert pool.stats().clients["b"].warm_hashes == (job.workflow_hash,)
        assert pool.stats().clients["a"].completed == 0


async def test_job_that_no_server_can_run_is_refused(pool: WorkflowPool) -> None:
    with pytest.raises(InvalidInput):
        await pool.enqueue(invert(), exclude_clients=["a", "x"])
    with pytest.raises(GraphError):
        await pool.enqueue({})
    async with WorkflowPool([]) as empty:
        with pytest.raises(InvalidInput, match="no servers"):
            await empty.enqueue(invert())


async def test_only_the_newest_finished_jobs_are_kept(simulator: Simulator) -> None:
    async with ready_pool(simulator, keep_finished=2) as pool:
        jobs = [await pool.enqueue(plain()) for _ in range(4)]
        results = [await job for job in jobs]
        assert list(pool.jobs) == [jobs[2].id, jobs[3].id]
        assert pool.job(jobs[3].id) is jobs[3]
        with pytest.raises(NotFound):
            pool.job(jobs[0].id)
        with pytest.raises(NotFound):
            await pool.cancel(jobs[0].id)
        # The handle still has the result of the job.
        assert await jobs[0] is results[0]
        assert pool.stats().completed == 4


async def test_wait_ready_returns_when_the_pool_is_ready(simulator: Simulator) -> None:
    pool = WorkflowPool({"a": simulator.url, "gone": "http://127.0.0.1:9"}, timings=QUICK)
    events = pool.events("pool:ready", "client:state")
    async with pool:
        ready = await until(events, PoolReady)
        assert ready.client_ids == ("a",)
        with pytest.raises(Conflict):
            await pool.open()
