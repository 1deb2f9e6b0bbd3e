"""A failure that all items of a batch would share holds the batch; one resume runs all of its items."""

import asyncio
from typing import Any

import pytest

from comfyrelay.domain.bulk import BulkAction
from comfyrelay.domain.queue.states import JobStatus, PauseMode
from comfyrelay.domain.queue.wait_reasons import Reason
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import Fault, InsufficientTokens
from comfyrelay.protocol.jobs import BulkFilter
from comfyrelay.services.hooks import Hooks
from comfyrelay.services.jobs.batches import BatchState
from comfyrelay.services.jobs.submission.requests import ItemRequest
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.settle import Report, Verb
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Boundary
from comfyrelay.store.tenant import history, jobs
from comfyrelay.store.tenant.history import Position
from tests.support.full import full_only
from tests.support.world import GRAPH, OUTPUT, PROMPT, Crash, Desk, World, submit_batch

MISSING = "FancySampler (3): this node is not installed on the server"
# Users run the server themselves, so they see ComfyUI's messages.
OWNERS = Hooks(users_are_owners=True)
HELD = f"On hold: one item failed, and the others would fail the same way. {MISSING}. Fix this, then resume."


@pytest.fixture(autouse=True)
async def owners(world: World) -> None:
    await world.restart(OWNERS)


async def state(desk: Desk, batch: BatchState) -> BatchState:
    await desk.world.wait_for_deliveries()
    return await desk.world.engine.jobs.batches.state(desk.user.tenant_id, batch.id)


async def resume(desk: Desk, batch: BatchState) -> int:
    return await desk.world.engine.jobs.batches.resume(desk.user.tenant_id, batch.id)


async def jobs_of(desk: Desk, batch: BatchState) -> list[JobRecord]:
    async with (await desk.world.engine.databases.shard_of(desk.user.tenant_id)).read() as tx:
        return await jobs.newest_in_batch(tx, desk.user.tenant_id, batch.id)


async def submit_held_batch(world: World, items: int = 4, **options: Any) -> tuple[Desk, BatchState]:
    """Submit a batch, and fail its first item because of a missing node."""
    desk = await world.desk(**options)
    batch = await submit_batch(world, desk.user, desk.effect, items)
    await fail_next(world, desk.worker)
    return desk, batch


async def fail_next(world: World, worker: str, code: str | None = "not_installed", **values: Any) -> LeasedDispatch:
    leased = await world.lease(worker)
    assert leased is not None
    await world.fail(leased, MISSING, code=code, **values)
    return leased


@pytest.mark.both_databases
async def test_first_failure_holds_the_batch_with_a_reason(world: World) -> None:
    desk, batch = await submit_held_batch(world)
    found = await state(desk, batch)
    assert found.counts == {"failed": 1, "paused": 3}
    assert found.held == HELD
    assert await world.lease(desk.worker) is None
    waiting = (await world.engine.jobs.views.job(desk.user.tenant_id, (await jobs_of(desk, batch))[1].id)).waiting
    assert waiting is not None
    assert (waiting.reason, waiting.text) == (Reason.HELD, HELD)


async def test_unreadable_model_holds_the_batch_even_after_a_completed_item(world: World) -> None:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect, 4)
    leased = await world.lease(desk.worker)
    assert leased is not None
    await world.complete(leased)
    await fail_next(world, desk.worker, "model_unreadable")
    assert (await state(desk, batch)).counts == {"completed": 1, "failed": 1, "paused": 2}


@pytest.mark.both_databases
async def test_resume_runs_the_held_and_the_failed_items(world: World) -> None:
    desk, batch = await submit_held_batch(world, concurrency=10)
    assert await resume(desk, batch) == 4
    found = await state(desk, batch)
    assert (found.counts, found.held) == ({"queued": 4}, None)
    for lease in await world.leases(desk.worker, 10):
        await world.complete(lease)
    assert (await state(desk, batch)).counts == {"completed": 4}


async def test_resume_without_a_fix_fails_only_one_more_item(world: World) -> None:
    desk, batch = await submit_held_batch(world)
    await resume(desk, batch)
    await fail_next(world, desk.worker)
    found = await state(desk, batch)
    assert (found.counts, found.held) == ({"failed": 1, "paused": 3}, HELD)


async def test_failed_items_are_refunded_and_held_items_stay_reserved(world: World) -> None:
    desk, batch = await submit_held_batch(world, tokens=40)
    assert await desk.balance() == 10
    other = await desk.submit()
    with pytest.raises(InsufficientTokens):
        await resume(desk, batch)
    # the resume is rolled back
    assert (await state(desk, batch)).held == HELD
    await world.engine.queue.control.cancel(other.tenant_id, other.id)
    await world.wait_for_deliveries()
    await resume(desk, batch)
    assert await desk.balance() == 0
    await world.engine.queue.control.cancel_batch(desk.user.tenant_id, batch.id)
    await world.wait_for_deliveries()
    assert await desk.balance() == 40


async def test_running_items_finish_and_do_not_hold_the_batch_again(world: World) -> None:
    desk = await world.desk(concurrency=4)
    batch = await submit_batch(world, desk.user, desk.effect, 6)
    first, second, third, fourth = await world.leases(desk.worker, 4)
    await world.fail(first, MISSING, code="not_installed")
    await world.complete(second)
    await world.fail(third, "another text", code="not_installed")
    # a requeued item is held with the rest
    await world.requeue(fourth)
    found = await state(desk, batch)
    assert found.counts == {"failed": 2, "completed": 1, "paused": 3}
    assert found.held == HELD
    assert await resume(desk, batch) == 5
    assert (await state(desk, batch)).counts == {"completed": 1, "queued": 5}


@pytest.mark.both_databases
async def test_concurrent_failures_hold_the_batch_once(world: World) -> None:
    desk = await world.desk(concurrency=8)
    batch = await submit_batch(world, desk.user, desk.effect, 20)
    leased = await world.leases(desk.worker, 8)
    await asyncio.gather(*(world.fail(lease, MISSING, code="not_installed") for lease in leased))
    found = await state(desk, batch)
    assert found.counts == {"failed": 8, "paused": 12}
    async with (await world.engine.databases.shard_of(desk.user.tenant_id)).read() as tx:
        items = await jobs.newest_in_batch(tx, desk.user.tenant_id, batch.id)
        held = [Position(job.tenant_id, job.id, 0) for job in items if job.status == "paused"]
        events = await history.events_after(tx, held)
    reasons = [event.data["reason"] for event in events if event.type == "job:paused"]
    assert len(reasons) == 12
    assert all(reason.startswith("On hold: one item failed") for reason in reasons)
    assert await resume(desk, batch) == 20


@pytest.mark.parametrize("code", ["graph_refused", *full_only("graph_not_allowed", "invalid_graph")])
async def test_invalid_graph_holds_the_batch_unless_an_item_has_completed(world: World, code: str) -> None:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect, 3)
    leased = await world.lease(desk.worker)
    assert leased is not None
    await world.complete(leased)
    await fail_next(world, desk.worker, code)
    assert (await state(desk, batch)).counts == {"completed": 1, "failed": 1, "queued": 1}
    other = await submit_batch(world, desk.user, desk.effect, 3)
    await world.engine.queue.control.cancel_batch(desk.user.tenant_id, batch.id)
    await fail_next(world, desk.worker, code)
    assert (await state(desk, other)).counts == {"failed": 1, "paused": 2}


@pytest.mark.parametrize("code", [None, "node_failed", *full_only("out_of_memory", "no_output", "unknown")])
async def test_failure_of_a_single_item_does_not_hold_the_batch(world: World, code: str | None) -> None:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect, 3)
    await fail_next(world, desk.worker, code)
    found = await state(desk, batch)
    assert (found.counts, found.held) == ({"failed": 1, "queued": 2}, None)


async def test_batch_is_not_held_while_another_worker_can_try(world: World) -> None:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect, 3)
    await fail_next(world, desk.worker, fault=Fault.WORKER)
    assert (await state(desk, batch)).counts == {"queued": 3}


async def test_other_batches_and_models_keep_running(world: World) -> None:
    choice = {"key": "model", "type": "text", "placeholder": "{{MODEL}}", "user_configurable": True}
    graph = {**GRAPH, "1": {"class_type": "CheckpointLoader", "inputs": {"ckpt_name": "{{MODEL}}"}}}
    desk = await world.desk(workflow=await world.workflow(graph=graph, properties=[PROMPT, choice]))
    items = [ItemRequest(input_payload={"model": f"{name}.safetensors"}) for name in ("a", "a", "b")]
    batch = await submit_batch(world, desk.user, desk.effect, items)
    other = await submit_batch(world, desk.user, desk.effect, items[:1])
    await fail_next(world, desk.worker)
    assert (await state(desk, batch)).counts == {"failed": 1, "paused": 1, "queued": 1}
    assert (await state(desk, other)).counts == {"queued": 1}


async def test_batch_without_waiting_items_is_not_held(world: World) -> None:
    desk, batch = await submit_held_batch(world, items=1)
    found = await state(desk, batch)
    assert (found.counts, found.held) == ({"failed": 1}, None)


async def test_resuming_all_paused_jobs_also_runs_the_failed_items(world: World) -> None:
    desk, batch = await submit_held_batch(world)
    done = await world.engine.jobs.bulk.run(
        desk.user.tenant_id, BulkAction.RESUME, among=BulkFilter(status=JobStatus.PAUSED)
    )
    assert done.changed == 4
    found = await state(desk, batch)
    assert (found.counts, found.held) == ({"queued": 4}, None)


async def test_latest_failure_is_the_reported_hold_reason(world: World) -> None:
    desk, batch = await submit_held_batch(world)
    await world.engine.queue.control.resume_batch(desk.user.tenant_id, batch.id)
    await world.advance(10)
    leased = await world.lease(desk.worker)
    assert leased is not None
    await world.fail(leased, "Other (7): this node is not installed on the server", code="not_installed")
    found = await state(desk, batch)
    assert found.held is not None
    assert "Other (7)" in found.held
    assert await resume(desk, batch) == 4


async def test_batch_paused_by_its_user_resumes_without_a_retry(world: World) -> None:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect, 3)
    await fail_next(world, desk.worker, None)
    await world.engine.queue.control.pause_batch(desk.user.tenant_id, batch.id, mode=PauseMode.AFTER)
    assert await resume(desk, batch) == 2
    assert (await state(desk, batch)).counts == {"failed": 1, "queued": 2}


@pytest.mark.parametrize("boundary", list(Boundary))
async def test_crash_before_the_hold_fails_one_more_item(world: World, boundary: Boundary) -> None:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect, 4)
    leased = await world.lease(desk.worker)
    assert leased is not None
    world.crash_on(TransactionStep.HOLD, boundary)
    with pytest.raises(Crash):
        await world.fail(leased, MISSING, code="not_installed")
    await world.restart(OWNERS)
    await world.relay()
    if boundary is Boundary.BEFORE_COMMIT:
        assert (await state(desk, batch)).counts == {"failed": 1, "queued": 3}
        await fail_next(world, desk.worker)
    found = await state(desk, batch)
    assert found.held == HELD
    assert found.counts["paused"] == 4 - found.counts["failed"]
    assert await resume(desk, batch) == 4
    assert (await state(desk, batch)).counts == {"queued": 4}


@pytest.mark.both_databases
async def test_three_consecutive_failures_for_the_same_reason_hold_the_batch(world: World) -> None:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect, 6)
    for number in range(3):
        assert (await state(desk, batch)).held is None, number
        await fail_next(world, desk.worker, "node_failed")
    found = await state(desk, batch)
    assert found.counts == {"failed": 3, "paused": 3}
    assert found.held == f"On hold: 3 items in a row failed for the same reason. {MISSING}. Fix this, then resume."
    # one resume runs all failed items
    assert await resume(desk, batch) == 6
    assert (await state(desk, batch)).counts == {"queued": 6}


@pytest.mark.parametrize(
    "errors",
    [
        ["There is not enough space: 1.93 GiB free.", "There is not enough space: 2,041 MiB free."],
        ["Out of memory (1024 × 1024 pixels, 20 steps).", "Out of memory (768 × 768 pixels, 30 steps)."],
        ["LoadImage cannot read 'a.png'.", "LoadImage cannot read 'b c.png'."],
    ],
)
async def test_numbers_and_quoted_names_do_not_change_the_reason(world: World, errors: list[str]) -> None:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect, 6)
    for error in (*errors, errors[0]):
        assert (await state(desk, batch)).held is None
        leased = await world.lease(desk.worker)
        assert leased is not None
        await world.fail(leased, error, code="node_failed")
    found = await state(desk, batch)
    assert (found.counts, found.held is None) == ({"failed": 3, "paused": 3}, False)


@pytest.mark.both_databases
async def test_failures_before_a_resume_do_not_hold_the_batch_again(world: World) -> None:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect, 6)
    for _ in range(3):
        await fail_next(world, desk.worker, "node_failed")
    await world.advance(10)
    assert await resume(desk, batch) == 6
    for number in range(2):
        await fail_next(world, desk.worker, "node_failed")
        assert (await state(desk, batch)).held is None, number
    await fail_next(world, desk.worker, "node_failed")
    found = await state(desk, batch)
    assert (found.counts, found.held is None) == ({"failed": 3, "paused": 3}, False)


@pytest.mark.both_databases
async def test_item_that_ran_during_the_hold_counts_only_failures_after_the_resume(world: World) -> None:
    desk = await world.desk(concurrency=4)
    batch = await submit_batch(world, desk.user, desk.effect, 6)
    running, *others = await world.leases(desk.worker, 4)
    for other in others:
        await world.fail(other, MISSING, code="node_failed")
    await world.advance(10)
    assert await resume(desk, batch) == 6
    await world.fail(running, MISSING, code="node_failed")
    found = await state(desk, batch)
    assert (found.counts, found.held) == ({"failed": 1, "queued": 5}, None)


@pytest.mark.parametrize(("verbs", "is_held"), [("fff", True), ("fcff", False), ("cfff", True)])
async def test_equal_failures_in_one_settlement_are_counted_together(world: World, verbs: str, is_held: bool) -> None:
    desk = await world.desk(concurrency=4)
    batch = await submit_batch(world, desk.user, desk.effect, 6)
    reports = [
        Report(
            verb=Verb.FAIL if verb == "f" else Verb.COMPLETE,
            dispatch_id=leased.dispatch_id,
            lease_token=leased.lease_token,
            output=None if verb == "f" else OUTPUT,
            error=MISSING if verb == "f" else "",
        )
        for verb, leased in zip(verbs, await world.leases(desk.worker, len(verbs)), strict=True)
    ]
    await world.engine.queue.settle.report_many(reports)
    found = await state(desk, batch)
    assert (found.held is not None) == is_held
    assert found.counts["failed"] == verbs.count("f")


async def test_failures_between_completed_items_or_with_other_messages_do_not_hold_the_batch(world: World) -> None:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect, 8)
    for outcome in ("same", "same", "completed", "same", "other", "same", "same"):
        leased = await world.lease(desk.worker)
        assert leased is not None
        if outcome == "completed":
            await world.complete(leased)
        else:
            await world.fail(leased, outcome, code="node_failed")
    found = await state(desk, batch)
    assert (found.counts, found.held) == ({"failed": 6, "completed": 1, "queued": 1}, None)
