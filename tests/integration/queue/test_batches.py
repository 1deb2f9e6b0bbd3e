"""Batches submit, pause, resume, cancel, move and retry thousands of jobs as one."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from comfyrelay.domain.queue.ordering import MoveTo
from comfyrelay.domain.queue.states import PauseMode, WorkflowKind
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import (
    IdempotencyConflict,
    InsufficientTokens,
    InvalidInput,
    TooManyActiveJobs,
)
from comfyrelay.services.accounts import tenancy
from comfyrelay.services.hooks import Hooks
from comfyrelay.services.jobs.batches import BatchState
from comfyrelay.services.jobs.submission.requests import ItemRequest
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import tables as central
from comfyrelay.store.database import Boundary
from comfyrelay.store.tenant import jobs
from tests.support.full import full_only
from tests.support.statements import count_statements
from tests.support.world import GRAPH, PATIENCE_SECONDS, Crash, Desk, World, submit_batch

pytestmark = pytest.mark.both_databases

MANY = pytest.mark.parametrize("items", [500, *full_only(5_000)])


async def state(desk: Desk, batch: BatchState) -> BatchState:
    return await desk.world.engine.jobs.batches.state(desk.user.tenant_id, batch.id)


async def jobs_of(desk: Desk, batch: BatchState) -> list[JobRecord]:
    """Return the newest job of every item, in the order of the batch."""
    async with (await desk.world.engine.databases.shard_of(desk.user.tenant_id)).read() as tx:
        return await jobs.newest_in_batch(tx, desk.user.tenant_id, batch.id)


async def prompts(desk: Desk, worker: str, count: int) -> list[str]:
    """Return the prompts that a worker with this many slots gets, in order."""
    leased = await desk.world.leases(worker, count)
    return [lease.graph["2"]["inputs"]["text"] for lease in leased]


async def submit_and_crash(desk: Desk, items: int) -> BatchState:
    """Submit a batch and crash before it reaches the queue."""
    desk.world.crash_on(TransactionStep.SUBMIT_JOB, Boundary.AFTER_COMMIT)
    with pytest.raises(Crash):
        await submit_batch(desk.world, desk.user, desk.effect, items, key="lost")
    desk.world.on_boundary(None)
    assert await desk.world.count() == 0
    return await submit_batch(desk.world, desk.user, desk.effect, items, key="lost")


# submission


@pytest.mark.parametrize("nodes", [1, 500])
async def test_items_of_a_large_graph_are_resolved_off_the_event_loop(world: World, nodes: int) -> None:
    loop, loop_ran = asyncio.get_running_loop(), list[bool]()

    def wait_for_loop(_values: Mapping[str, Any]) -> dict[str, Any]:
        if threading.current_thread() is not threading.main_thread():
            turn = threading.Event()
            loop.call_soon_threadsafe(turn.set)
            loop_ran.append(turn.wait(PATIENCE_SECONDS))
        return {}

    await world.restart(Hooks(checks={WorkflowKind.GRAPH: wait_for_loop}))
    padding = {f"node-{number}": {"class_type": "Note", "inputs": {"text": "x" * 100}} for number in range(nodes)}
    desk = await world.desk(workflow=await world.workflow(graph={**GRAPH, **padding}))
    batch = await submit_batch(world, desk.user, desk.effect)
    assert batch.total == 3
    assert loop_ran == ([True] * 3 if nodes > 1 else [])


@MANY
async def test_submission_runs_as_many_statements_for_many_items_as_for_ten(
    world: World, items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Keep the tenant's limits cached even on a slow machine.
    monkeypatch.setattr(tenancy, "CACHE_SECONDS", 3600.0)
    desk = await world.desk(tokens=100_000)
    video = await world.engine.accounts.tenancy.add_video(desk.user, original_file_id=await desk.file())
    await submit_batch(world, desk.user, desk.effect, 1)
    await world.engine.outbox.delivery.idle()
    async with count_statements(world) as few:
        await submit_batch(world, desk.user, desk.effect, [ItemRequest(video_id=video)] * 10)
        await world.engine.outbox.delivery.idle()
    async with count_statements(world) as many:
        batch = await submit_batch(world, desk.user, desk.effect, [ItemRequest(video_id=video)] * items)
        await world.engine.outbox.delivery.idle()
    assert many == few
    assert many["central"] > 0
    assert batch.counts == {"queued": items}
    assert await desk.balance() == 100_000 - 10 * (items + 11)


async def test_items_are_leased_in_the_order_of_the_batch(world: World) -> None:
    desk = await world.desk(concurrency=50)
    await submit_batch(world, desk.user, desk.effect, 50)
    assert await prompts(desk, desk.worker, 50) == [f"item {n}" for n in range(50)]


async def test_relay_keeps_the_order_of_the_batch(world: World) -> None:
    desk = await world.desk(concurrency=50)
    await submit_and_crash(desk, 50)
    await world.relay()
    assert await prompts(desk, desk.worker, 50) == [f"item {n}" for n in range(50)]


async def test_batches_are_leased_in_order_of_submission(world: World) -> None:
    desk = await world.desk(concurrency=10)
    first = [ItemRequest(input_payload={"prompt": f"first {n}"}) for n in range(3)]
    await submit_batch(world, desk.user, desk.effect, first)
    await world.advance(1)
    await submit_batch(world, desk.user, desk.effect, 3)
    assert await prompts(desk, desk.worker, 10) == ["first 0", "first 1", "first 2", "item 0", "item 1", "item 2"]


async def test_batch_reports_its_progress(world: World) -> None:
    desk = await world.desk(concurrency=3)
    batch = await submit_batch(world, desk.user, desk.effect, 4, label="A folder")
    assert (batch.label, batch.total, batch.progress) == ("A folder", 4, 0.0)
    completed, failed, _ = await world.leases(desk.worker, 3)
    await world.complete(completed)
    await world.fail(failed)
    batch = await state(desk, batch)
    assert batch.counts == {"completed": 1, "failed": 1, "processing": 1, "queued": 1}
    assert (batch.total, batch.done, batch.progress) == (4, 2, 0.5)


async def test_invalid_item_refuses_the_whole_batch_and_is_named(world: World) -> None:
    desk = await world.desk()
    items = [ItemRequest(), ItemRequest(), ItemRequest(input_payload={"prompt": 7, "seed": 1})]
    with pytest.raises(InvalidInput, match="Item 2") as refused:
        await submit_batch(world, desk.user, desk.effect, items)
    assert refused.value.errors == {
        "items.2.prompt": "This must be text.",
        "items.2.seed": "Unknown input. Available inputs: prompt.",
    }
    assert (await world.count(), await desk.balance()) == (0, 1000)


async def test_batch_is_refused_if_the_balance_does_not_cover_all_items(world: World) -> None:
    desk = await world.desk(tokens=29)
    with pytest.raises(InsufficientTokens) as refused:
        await submit_batch(world, desk.user, desk.effect, 3, key="once")
    assert (refused.value.required_tokens, refused.value.balance) == (30, 29)
    assert (await world.count(), await desk.balance()) == (0, 29)
    await world.engine.accounts.ledger.credit(desk.user.tenant_id, 1, reference="one more")
    assert (await submit_batch(world, desk.user, desk.effect, 3, key="once")).counts == {"queued": 3}
    assert await desk.balance() == 0


@pytest.mark.parametrize("items", [0, 10_001])
async def test_empty_or_oversized_batch_is_refused(world: World, items: int) -> None:
    desk = await world.desk()
    with pytest.raises(InvalidInput) as refused:
        await submit_batch(world, desk.user, desk.effect, items)
    assert "items" in refused.value.errors


async def test_idempotency_key_creates_one_batch(world: World) -> None:
    desk = await world.desk()
    batches = await asyncio.gather(*(submit_batch(world, desk.user, desk.effect, 3, key="once") for _ in range(5)))
    assert await submit_batch(world, desk.user, desk.effect, 3, key="once") == batches[0]
    assert len({batch.id for batch in batches}) == 1
    with pytest.raises(IdempotencyConflict):
        await submit_batch(world, desk.user, desk.effect, 4, key="once")
    assert (await world.count(), await desk.balance()) == (3, 970)


# batch actions


@MANY
async def test_batch_action_runs_as_many_statements_for_many_items_as_for_ten(world: World, items: int) -> None:
    desk = await world.desk(tokens=100_000)
    control, tenant_id = world.engine.queue.control, desk.user.tenant_id
    costs = []
    for count in (1, 10, items):
        batch = await submit_batch(world, desk.user, desk.effect, count)
        async with count_statements(world) as counted:
            assert await control.pause_batch(tenant_id, batch.id) == count
            assert await control.resume_batch(tenant_id, batch.id) == count
            await control.move_batch(tenant_id, batch.id, MoveTo.TOP)
            assert await control.cancel_batch(tenant_id, batch.id) == count
            await world.wait_for_deliveries()
        costs.append(counted)
        assert (await state(desk, batch)).counts == {"canceled": count}
    # A slow machine needs more delivery rounds.
    assert all(count <= costs[1][name] + 20 for name, count in costs[2].items())
    assert await desk.balance() == 100_000


@MANY
async def test_batch_action_writes_one_outbox_row(world: World, items: int) -> None:
    desk = await world.desk(tokens=100_000)
    batch = await submit_batch(world, desk.user, desk.effect, items)
    world.crash_on(TransactionStep.CONTROL, Boundary.AFTER_COMMIT)
    with pytest.raises(Crash):
        await world.engine.queue.control.cancel_batch(desk.user.tenant_id, batch.id)
    assert await world.count(central.queue.outbox) == 1
    assert len(await world.entries()) == items
    await world.relay()
    assert await world.count(central.queue.outbox) == 0
    assert (await state(desk, batch)).counts == {"canceled": items}
    assert await desk.balance() == 100_000


async def test_paused_batch_finishes_running_items_and_starts_no_others(world: World) -> None:
    desk = await world.desk(concurrency=3)
    batch = await submit_batch(world, desk.user, desk.effect, 3)
    leased = await world.lease(desk.worker)
    assert leased is not None
    assert await world.engine.queue.control.pause_batch(desk.user.tenant_id, batch.id) == 3
    assert await world.lease(desk.worker) is None
    assert await world.complete(leased) == "completed"
    assert (await state(desk, batch)).counts == {"completed": 1, "paused": 2}


async def test_resumed_batch_continues_where_it_stopped(world: World) -> None:
    desk = await world.desk(concurrency=3)
    batch = await submit_batch(world, desk.user, desk.effect, 3)
    leased = await world.lease(desk.worker)
    assert leased is not None
    await world.engine.queue.control.pause_batch(desk.user.tenant_id, batch.id, mode=PauseMode.NOW)
    await world.requeue(leased)
    assert (await state(desk, batch)).counts == {"paused": 3}
    assert await world.engine.queue.control.resume_batch(desk.user.tenant_id, batch.id) == 3
    assert await prompts(desk, desk.worker, 3) == ["item 0", "item 1", "item 2"]


async def test_canceling_a_batch_keeps_ended_items_and_other_batches(world: World) -> None:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect, 3)
    other = await submit_batch(world, desk.user, desk.effect, 3)
    leased = await world.lease(desk.worker)
    assert leased is not None
    await world.complete(leased)
    assert await world.engine.queue.control.cancel_batch(desk.user.tenant_id, batch.id) == 2
    assert (await state(desk, batch)).counts == {"completed": 1, "canceled": 2}
    assert (await state(desk, other)).counts == {"queued": 3}
    assert await desk.balance() == 960


async def test_batch_canceled_before_it_is_queued_is_not_leased(world: World) -> None:
    desk = await world.desk()
    batch = await submit_and_crash(desk, 3)
    assert await world.engine.queue.control.cancel_batch(desk.user.tenant_id, batch.id) == 3
    await world.relay()
    assert await world.lease(desk.worker) is None
    assert (await state(desk, batch)).counts == {"canceled": 3}
    assert await desk.balance() == 1000


async def test_batch_with_a_higher_priority_is_leased_first(world: World) -> None:
    desk = await world.desk(concurrency=10)
    first = [ItemRequest(input_payload={"prompt": "first"})]
    await submit_batch(world, desk.user, desk.effect, first)
    batch = await submit_batch(world, desk.user, desk.effect, 2)
    assert await world.engine.queue.control.set_batch_priority(desk.user.tenant_id, batch.id, 5) == 2
    assert await prompts(desk, desk.worker, 10) == ["item 0", "item 1", "first"]


# order


async def submit_three_batches(desk: Desk) -> list[BatchState]:
    batches = []
    for name in "abc":
        items = [ItemRequest(input_payload={"prompt": f"{name}{n}"}) for n in range(3)]
        batches.append(await submit_batch(desk.world, desk.user, desk.effect, items))
        await desk.world.advance(1)
    return batches


@pytest.mark.parametrize(
    ("moves", "order"),
    [
        ([(2, MoveTo.UP)], "a0 a1 a2 c0 c1 c2 b0 b1 b2"),
        ([(2, MoveTo.TOP)], "c0 c1 c2 a0 a1 a2 b0 b1 b2"),
        ([(0, MoveTo.DOWN)], "b0 b1 b2 a0 a1 a2 c0 c1 c2"),
        ([(0, MoveTo.UP), (2, MoveTo.DOWN)], "a0 a1 a2 b0 b1 b2 c0 c1 c2"),
    ],
    ids=["up", "top", "down", "beyond_either_end"],
)
async def test_batch_moves_past_whole_batches(world: World, moves: list[tuple[int, MoveTo]], order: str) -> None:
    desk = await world.desk(concurrency=10)
    batches = await submit_three_batches(desk)
    for number, to in moves:
        await world.engine.queue.control.move_batch(desk.user.tenant_id, batches[number].id, to)
    assert await prompts(desk, desk.worker, 10) == order.split()


async def test_only_waiting_items_move_with_their_batch(world: World) -> None:
    desk = await world.desk(concurrency=10)
    batches = await submit_three_batches(desk)
    assert await prompts(desk, desk.worker, 1) == ["a0"]
    await world.engine.queue.control.move_batch(desk.user.tenant_id, batches[0].id, MoveTo.DOWN)
    assert await prompts(desk, desk.worker, 10) == ["b0", "b1", "b2", "a1", "a2", "c0", "c1", "c2"]


async def test_item_moves_one_step_inside_its_batch(world: World) -> None:
    desk = await world.desk(concurrency=10)
    batch = await submit_batch(world, desk.user, desk.effect, 4)
    items = await jobs_of(desk, batch)
    await world.engine.queue.control.move(desk.user.tenant_id, items[2].id, MoveTo.UP)
    await world.engine.queue.control.move(desk.user.tenant_id, items[0].id, MoveTo.DOWN)
    assert await prompts(desk, desk.worker, 10) == ["item 2", "item 0", "item 1", "item 3"]


async def test_job_moves_past_a_whole_batch(world: World) -> None:
    desk = await world.desk(concurrency=10)
    await submit_batch(world, desk.user, desk.effect, 3)
    await world.advance(1)
    job = await desk.submit(input_payload={"prompt": "alone"})
    await world.engine.queue.control.move(desk.user.tenant_id, job.id, MoveTo.UP)
    assert await prompts(desk, desk.worker, 10) == ["alone", "item 0", "item 1", "item 2"]


async def test_batch_can_be_moved_before_it_is_queued(world: World) -> None:
    desk = await world.desk(concurrency=10)
    lost = await submit_and_crash(desk, 2)
    await desk.submit(input_payload={"prompt": "alone"})
    await world.advance(1)
    await world.engine.queue.control.move_batch(desk.user.tenant_id, lost.id, MoveTo.TOP)
    assert await prompts(desk, desk.worker, 10) == ["item 0", "item 1", "alone"]


# retry


async def test_only_failed_items_are_retried(world: World) -> None:
    desk = await world.desk(concurrency=4)
    batch = await submit_batch(world, desk.user, desk.effect, 4)
    leased = await world.leases(desk.worker, 3)
    await world.complete(leased[0])
    await world.fail(leased[1])
    await world.fail(leased[2])
    await world.advance(1)
    assert await world.engine.jobs.batches.retry_failed(desk.user.tenant_id, batch.id) == 2
    assert (await state(desk, batch)).counts == {"completed": 1, "queued": 3}
    assert await desk.balance() == 960
    assert await prompts(desk, desk.worker, 4) == ["item 3", "item 1", "item 2"]


async def test_concurrent_retries_retry_a_failed_item_once(world: World) -> None:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect, 1)
    leased = await world.lease(desk.worker)
    assert leased is not None
    await world.fail(leased)
    retried = await asyncio.gather(
        *(world.engine.jobs.batches.retry_failed(desk.user.tenant_id, batch.id) for _ in range(3))
    )
    assert sorted(retried) == [0, 0, 1]
    assert await desk.balance() == 990


async def test_newest_attempt_of_an_item_counts(world: World) -> None:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect, 1)
    for _ in range(3):
        leased = await world.lease(desk.worker)
        assert leased is not None
        await world.fail(leased)
        assert await world.engine.jobs.batches.retry_failed(desk.user.tenant_id, batch.id) == 1
    leased = await world.lease(desk.worker)
    assert leased is not None
    await world.complete(leased)
    assert (await state(desk, batch)).counts == {"completed": 1}
    assert await world.engine.jobs.batches.retry_failed(desk.user.tenant_id, batch.id) == 0
    assert await desk.balance() == 990


async def test_canceled_items_are_not_retried(world: World) -> None:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect, 2)
    await world.engine.queue.control.cancel_batch(desk.user.tenant_id, batch.id)
    assert await world.engine.jobs.batches.retry_failed(desk.user.tenant_id, batch.id) == 0


async def test_no_item_is_retried_if_the_balance_does_not_cover_all(world: World) -> None:
    desk = await world.desk(concurrency=2, tokens=20)
    batch = await submit_batch(world, desk.user, desk.effect, 2)
    for leased in await world.leases(desk.worker, 2):
        await world.fail(leased)
    await desk.submit()
    with pytest.raises(InsufficientTokens):
        await world.engine.jobs.batches.retry_failed(desk.user.tenant_id, batch.id)
    assert (await state(desk, batch)).counts == {"failed": 2}
    assert await desk.balance() == 10


async def test_retry_of_a_finished_batch_counts_as_an_active_job(world: World) -> None:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect, 1)
    leased = await world.lease(desk.worker)
    assert leased is not None
    await world.fail(leased)
    for _ in range(5):
        await desk.submit()
    with pytest.raises(TooManyActiveJobs):
        await world.engine.jobs.batches.retry_failed(desk.user.tenant_id, batch.id)
    with pytest.raises(TooManyActiveJobs):
        await world.engine.jobs.submit.retry(desk.user.tenant_id, leased.dispatch.tenant_job_id)


async def test_retry_of_an_active_batch_ignores_the_active_job_limit(world: World) -> None:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect, 2)
    leased = await world.lease(desk.worker)
    assert leased is not None
    await world.fail(leased)
    for _ in range(4):
        await desk.submit()
    assert await world.engine.jobs.batches.retry_failed(desk.user.tenant_id, batch.id) == 1
