"""A crash before or after the commit of any transaction does not lose, duplicate or orphan anything.

Each scenario prepares a world and returns the call to interrupt. The process dies at the boundary, another starts,
the relay finishes pending work, the caller repeats unanswered calls, and the queue is drained.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import pytest
from sqlalchemy import select

from comfyrelay.autoscaling.loop import ScalingLoop
from comfyrelay.autoscaling.providers.base import ProviderMachine, ProviderMachineState
from comfyrelay.domain.gallery import GalleryFilter, MarkChange
from comfyrelay.domain.ids import job_folder, output_path, poster_path, tenant_folder
from comfyrelay.domain.payments import Payment
from comfyrelay.domain.queue.ordering import MoveTo
from comfyrelay.domain.queue.states import PauseMode, Stage
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.operations import AuditFilter
from comfyrelay.errors import ComfyRelayError, Conflict, Fault, LeaseLost, NotFound
from comfyrelay.services.accounts.mailer import LEASE_SECONDS as MAIL_LEASE_SECONDS
from comfyrelay.services.autoscaling.usage import UsageGrouping
from comfyrelay.services.jobs.submission.requests import ItemRequest
from comfyrelay.services.operations.outages import Outage, OutageKind
from comfyrelay.services.queue.heartbeats import Heartbeat
from comfyrelay.services.queue.settle import Report, SettledOutput, Verb
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.services.webhooks.deliveries import LEASE_SECONDS
from comfyrelay.settings import AlertRule
from comfyrelay.store.central import catalogue, tenants
from comfyrelay.store.central import tables as central
from comfyrelay.store.database import Boundary
from comfyrelay.store.tenant.library import gallery, media
from comfyrelay.store.tenant.removals import DRAW_SECONDS
from tests.integration.crashes.cases import sampled_on_both
from tests.support.api_calls import png
from tests.support.burst import EXPECTED, PRICE, burst_scenario
from tests.support.crashes import crash_at, drain, interrupt
from tests.support.invariants import (
    EarlierFacts,
    Facts,
    balance_is_the_sum,
    check_agreed,
    check_always,
    check_quiet,
    every_job_agrees_with_its_dispatch,
    every_job_has_ended,
    find_violations,
    outbox_is_empty,
    read_facts,
)
from tests.support.memory_provider import MemoryProvider
from tests.support.world import Crash, Desk, World, execute, submit_batch


@dataclass(kw_only=True)
class Script:
    """The call to interrupt, and the expected final state."""

    act: Callable[[], Awaitable[object]]
    # The statuses of all jobs and the balances of all wallets, in any order.
    ends: Sequence[str]
    balances: Sequence[int]
    # The accepted errors when the caller repeats a call that has already taken effect.
    refusals: tuple[type[ComfyRelayError], ...] = ()
    # Steps after the call has succeeded.
    then: Callable[[], Awaitable[object]] | None = None
    # Whether the relay alone makes both databases agree, even if the caller never returns.
    heals_itself: bool = True
    # Whether the history of every job is complete, which it is not if the test creates the inconsistency by hand.
    is_whole: bool = True


Scenario = Callable[[World], Awaitable[Script]]


# Submission: tenant first, then central.


async def submit(world: World) -> Script:
    desk = await world.desk()
    return Script(act=lambda: desk.submit(key="once"), ends=["completed"], balances=[990])


async def submit_video_job(world: World) -> Script:
    desk = await world.desk()
    video = await world.engine.accounts.tenancy.add_video(desk.user, original_file_id=await desk.file())
    return Script(act=lambda: desk.submit(key="once", video_id=video), ends=["completed"], balances=[990])


async def submit_new_batch(world: World) -> Script:
    desk = await world.desk()
    act = partial(submit_batch, world, desk.user, desk.effect, 3, key="once")
    return Script(act=act, ends=["completed"] * 3, balances=[970])


async def submit_with_reuse(world: World) -> Script:
    """The job exists with its output, or neither does; unused copies are removed."""
    desk = await world.desk()
    await complete_job(world, desk)

    async def check_files() -> None:
        await world.advance(7 * 3600)
        await world.engine.operations.retention.run_once()
        facts = await read_facts(world)
        paths = [file.path async for file in world.engine.objects.list(f"tenants/{desk.user.tenant_id}/ai-jobs")]
        assert len(paths) == len(facts.jobs) == 2
        assert [await world.engine.objects.get(path) for path in paths] == [b"abc"] * 2

    return Script(
        act=lambda: desk.submit(key="once", reuse=True),
        ends=["completed"] * 2,
        balances=[990],
        then=check_files,
    )


async def submit_batch_with_reuse(world: World) -> Script:
    """Two items of the batch are reused, and one runs."""
    desk = await world.desk()
    await complete_job(world, desk)
    items = [ItemRequest(), ItemRequest(), ItemRequest(input_payload={"prompt": "another"})]
    act = partial(submit_batch, world, desk.user, desk.effect, items, key="once", reuse=True)
    return Script(act=act, ends=["completed"] * 4, balances=[980])


async def complete_job(world: World, desk: Desk) -> None:
    _, leased = await desk.submit_and_lease()
    await world.engine.objects.put(leased.output_path, b"abc")
    await world.complete(leased)


async def run_out_of_memory(world: World) -> Script:
    """Repeated reports requeue the job for a larger GPU only once."""
    desk = await world.desk()
    large = await world.worker(desk.fleet)
    devices = [{"server": "comfyui-1", "name": "RTX", "memory_total": 24 * 2**30}]
    world.engine.workers.slots.note(large, devices)
    await world.engine.workers.slots.write_noted()
    _, leased = await desk.submit_and_lease()
    return Script(
        act=partial(world.fail, leased, code="out_of_memory", gpu_bytes=8 * 2**30),
        ends=["completed"],
        balances=[990],
        refusals=(LeaseLost,),
    )


async def retry(world: World) -> Script:
    desk = await world.desk()
    job, leased = await desk.submit_and_lease()
    await world.fail(leased)
    return Script(
        act=lambda: world.engine.jobs.submit.retry(job.tenant_id, job.id), ends=["completed", "failed"], balances=[990]
    )


async def retry_failed_items(world: World) -> Script:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect, 2)
    for _ in range(2):
        leased = await world.lease(desk.worker)
        assert leased is not None
        await world.fail(leased)
    return Script(
        act=lambda: world.engine.jobs.batches.retry_failed(desk.user.tenant_id, batch.id),
        ends=["completed", "completed", "failed", "failed"],
        balances=[980],
    )


async def relay_submission(world: World) -> Script:
    desk = await world.desk()
    await interrupt(world, TransactionStep.SUBMIT_ENQUEUE, desk.submit)
    return Script(act=world.relay, ends=["completed"], balances=[990])


# Worker calls: central first, then tenant.


async def lease(world: World) -> Script:
    desk = await world.desk()
    await desk.submit()
    return Script(act=lambda: world.lease(desk.worker, request_id="r"), ends=["completed"], balances=[990])


async def lease_with_shard_down(world: World) -> Script:
    desk = await world.desk()
    job = await desk.submit()
    shard = await world.engine.databases.shard_name_of(job.tenant_id)
    # The restarted engine connects to the shard again.
    await world.engine.databases.shards.pop(shard).close()
    return Script(act=lambda: world.lease(desk.worker), ends=["completed"], balances=[990])


async def lease_with_missing_graph(world: World) -> Script:
    desk = await world.desk()
    await desk.submit()
    for path in (world.engine.settings.data_dir / "objects").rglob("*.json"):
        path.unlink()
    # Restart, because the engine caches graphs.
    await world.restart()
    return Script(act=lambda: world.lease(desk.worker), ends=["failed"], balances=[1000])


async def heartbeat(world: World) -> Script:
    desk = await world.desk()
    _, leased = await desk.submit_and_lease()
    beat = Heartbeat(
        dispatch_id=leased.dispatch_id, lease_token=leased.lease_token, progress={"value": 1}, logs=["a line"]
    )
    return Script(act=lambda: world.engine.queue.heartbeats.beat(beat), ends=["completed"], balances=[990])


async def complete(world: World) -> Script:
    desk = await world.desk()
    video = await world.engine.accounts.tenancy.add_video(desk.user, original_file_id=await desk.file())
    _, leased = await desk.submit_and_lease(video_id=video)
    return Script(act=lambda: world.complete(leased), ends=["completed"], balances=[990])


async def complete_with_upload(world: World) -> Script:
    """After a crash, the upload is kept for the next attempt; in the end, exactly one copy remains."""
    text = await world.workflow(output_extension="txt", output_mime_type="text/plain")
    desk = await world.desk(workflow=text)
    job, leased = await desk.submit_and_lease()
    await world.engine.objects.put(leased.output_path, b"hello")
    output = SettledOutput(size=5, mime_type="text/plain", extension="", sha256=hashlib.sha256(b"hello").hexdigest())
    report = Report(verb=Verb.COMPLETE, dispatch_id=leased.dispatch_id, lease_token=leased.lease_token, output=output)

    async def check_files() -> None:
        await world.relay()
        # the upload URL is still valid
        await world.engine.objects.put(leased.output_path, b"another")
        await world.advance(7200)
        await world.engine.operations.retention.run_once()
        file_id = (await world.job(job)).output_file_id
        assert file_id is not None
        path = output_path(file_id, tenant_id=job.tenant_id, job_id=job.id, extension="txt")
        paths = [file.path async for file in world.engine.objects.list(job_folder(job.tenant_id, job.id))]
        assert paths == [path]
        assert await world.engine.objects.get(path) == b"hello"

    return Script(
        act=lambda: world.engine.queue.outputs.complete(report),
        ends=["completed"],
        balances=[990],
        then=check_files,
    )


async def complete_in_two_shards(world: World) -> Script:
    desk = await world.desk(concurrency=2)
    assert await world.engine.databases.shard_name_of(desk.user.tenant_id) == "a"
    await desk.submit()
    await world.submit(await world.user(shard="b"), desk.effect)
    reports = [
        Report(verb=Verb.COMPLETE, dispatch_id=leased.dispatch_id, lease_token=leased.lease_token)
        for leased in await world.leases(desk.worker, 2)
    ]
    return Script(
        act=lambda: world.engine.queue.settle.report_many(reports), ends=["completed", "completed"], balances=[990, 990]
    )


async def fail(world: World) -> Script:
    desk = await world.desk()
    _, leased = await desk.submit_and_lease()
    return Script(act=lambda: world.fail(leased), ends=["failed"], balances=[1000])


async def fail_and_hold_batch(world: World) -> Script:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect, 3)
    leased = await world.lease(desk.worker)
    assert leased is not None

    async def then() -> None:
        await world.engine.jobs.batches.resume(desk.user.tenant_id, batch.id)

    return Script(
        act=lambda: world.fail(leased, code="not_installed"),
        ends=["completed", "completed", "completed", "failed"],
        balances=[970],
        then=then,
    )


async def fail_with_worker_fault(world: World) -> Script:
    desk = await world.desk()
    _, leased = await desk.submit_and_lease()
    return Script(act=lambda: world.fail(leased, fault=Fault.WORKER), ends=["completed"], balances=[990])


async def requeue(world: World) -> Script:
    desk = await world.desk()
    _, leased = await desk.submit_and_lease()
    return Script(act=lambda: world.requeue(leased), ends=["completed"], balances=[990], refusals=(LeaseLost,))


async def release(world: World) -> Script:
    desk = await world.desk()
    await desk.submit_and_lease()
    return Script(
        act=lambda: world.engine.workers.workers.release(desk.worker, reason="drain"),
        ends=["completed"],
        balances=[990],
    )


async def deregister(world: World) -> Script:
    desk = await world.desk()
    await desk.submit_and_lease()
    return Script(
        act=lambda: world.engine.workers.workers.deregister(desk.worker),
        ends=["completed"],
        balances=[990],
        refusals=(NotFound,),
    )


async def revoke(world: World) -> Script:
    desk = await world.desk()
    job, _ = await desk.submit_and_lease()

    async def then() -> None:
        assert (await world.dispatch(job)).status == "queued"

    return Script(
        act=lambda: world.engine.workers.workers.set_approved(desk.worker, is_approved=False),
        ends=["completed"],
        balances=[990],
        then=then,
    )


async def recall(world: World) -> Script:
    desk = await world.desk()
    await submit_batch(world, desk.user, desk.effect, 2)
    _, prefetched = await world.leases(desk.worker, 2, prefetch=1)
    beat = Heartbeat(dispatch_id=prefetched.dispatch_id, lease_token=prefetched.lease_token)

    async def then() -> None:
        assert (await world.engine.queue.heartbeats.beat(beat)).stop == "release"

    return Script(
        act=lambda: world.engine.workers.workers.recall_prefetched(desk.worker),
        ends=["completed", "completed"],
        balances=[980],
        then=then,
    )


async def reap(world: World) -> Script:
    desk = await world.desk()
    await desk.submit_and_lease()
    await world.advance(1801)
    return Script(act=partial(run_reaper, world), ends=["completed"], balances=[990])


async def reap_last_attempt(world: World) -> Script:
    desk = await world.desk()
    await desk.submit()
    for attempt in range(3):
        assert await world.lease(desk.worker) is not None
        await world.advance(1801)
        if attempt < 2:
            await world.engine.queue.reaper.run_once()
    return Script(act=partial(run_reaper, world), ends=["failed"], balances=[1000])


async def burst(world: World) -> Script:
    """The budget covers two of the three jobs that wait too long, no matter how often the loop runs."""
    burst = await burst_scenario(world, limit=2 * EXPECTED)
    jobs = await burst.submit(3, max_wait_seconds=10)

    async def check_providers() -> None:
        assert (await burst.providers(jobs)).count("cloud") == 2

    return Script(act=partial(run_burst, world), ends=["completed"] * 4, balances=[960], then=check_providers)


async def return_from_cloud(world: World) -> Script:
    burst = await burst_scenario(world)
    jobs = await burst.submit(max_wait_seconds=10)
    await run_burst(world)
    await world.engine.workers.workers.set_draining(burst.cloud, is_draining=True)

    async def check_provider() -> None:
        assert await burst.providers(jobs) == ["self_hosted"]

    return Script(act=partial(run_burst, world), ends=["completed"] * 2, balances=[980], then=check_provider)


async def fail_in_cloud(world: World) -> Script:
    burst = await burst_scenario(world)
    jobs = await burst.submit(max_wait_seconds=10)
    await run_burst(world)
    leased = await burst.lease_in_cloud()
    await world.advance(5)

    async def check_cost() -> None:
        assert await burst.providers(jobs) == ["self_hosted"]
        assert (await world.dispatch(jobs[0])).cost_micros == 5 * PRICE

    return Script(
        act=lambda: world.fail(leased, fault=Fault.WORKER), ends=["completed"] * 2, balances=[980], then=check_cost
    )


async def run_burst(world: World) -> None:
    await world.engine.autoscaling.bursting.run_once(Stage.PRODUCTION)


async def run_reaper(world: World) -> None:
    # A bound method would belong to the engine before the restart.
    await world.engine.queue.reaper.run_once()


async def relay_update(world: World) -> Script:
    desk = await world.desk()
    _, leased = await desk.submit_and_lease()
    await interrupt(world, TransactionStep.DELIVER_APPLY, lambda: world.complete(leased))
    return Script(act=world.relay, ends=["completed"], balances=[990])


# User calls.


async def cancel(world: World) -> Script:
    desk = await world.desk()
    job = await desk.submit()
    return Script(
        act=lambda: world.engine.queue.control.cancel(job.tenant_id, job.id), ends=["canceled"], balances=[1000]
    )


async def cancel_leased_job(world: World) -> Script:
    desk = await world.desk()
    job, leased = await desk.submit_and_lease()

    async def then() -> None:
        assert await world.requeue(leased) == "canceled"

    return Script(
        act=lambda: world.engine.queue.control.cancel(job.tenant_id, job.id),
        ends=["canceled"],
        balances=[1000],
        then=then,
    )


async def cancel_before_enqueue(world: World) -> Script:
    desk = await world.desk()
    await interrupt(world, TransactionStep.SUBMIT_ENQUEUE, lambda: desk.submit(key="once"))
    shard = await world.engine.databases.shard_of(desk.user.tenant_id)
    [(job_id,)] = await execute(shard, "SELECT id FROM ai_jobs")
    return Script(
        act=lambda: world.engine.queue.control.cancel(desk.user.tenant_id, job_id), ends=["canceled"], balances=[1000]
    )


async def cancel_batch(world: World) -> Script:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect, 3)
    assert await world.lease(desk.worker) is not None
    return Script(
        act=lambda: world.engine.queue.control.cancel_batch(desk.user.tenant_id, batch.id),
        ends=["canceled"] * 3,
        balances=[1000],
    )


async def pause_leased_job(world: World) -> Script:
    desk = await world.desk()
    job, leased = await desk.submit_and_lease()

    async def then() -> None:
        assert await world.requeue(leased) == "paused"

    return Script(
        act=lambda: world.engine.queue.control.pause(job.tenant_id, job.id, mode=PauseMode.NOW),
        ends=["completed"],
        balances=[990],
        then=then,
    )


async def pause_and_resume(world: World) -> Script:
    desk = await world.desk()
    job = await desk.submit()

    async def act() -> None:
        await world.engine.queue.control.pause(job.tenant_id, job.id)
        await world.engine.queue.control.resume(job.tenant_id, job.id)

    return Script(act=act, ends=["completed"], balances=[990])


async def set_priority(world: World) -> Script:
    desk = await world.desk()
    job = await desk.submit()

    async def then() -> None:
        assert ((await world.job(job)).priority, (await world.dispatch(job)).priority) == (5, 5)

    return Script(
        act=lambda: world.engine.queue.control.set_priority(job.tenant_id, job.id, 5),
        ends=["completed"],
        balances=[990],
        then=then,
    )


async def move(world: World) -> Script:
    desk = await world.desk()
    await desk.submit()
    job = await desk.submit()

    async def then() -> None:
        leased = await world.lease(desk.worker)
        assert leased is not None
        assert leased.dispatch.tenant_job_id == job.id

    return Script(
        act=lambda: world.engine.queue.control.move(job.tenant_id, job.id, MoveTo.TOP),
        ends=["completed", "completed"],
        balances=[980],
        then=then,
    )


# Everything else.


async def credit(world: World) -> Script:
    desk = await world.desk()
    return Script(
        act=lambda: world.engine.accounts.ledger.credit(desk.user.tenant_id, 50, reference="payment"),
        ends=[],
        balances=[1050],
    )


async def remove_video(world: World) -> Script:
    desk = await world.desk()
    await world.engine.objects.put("uploads/cat.png", b"cat")
    file = await world.engine.accounts.tenancy.add_file(desk.user, path="uploads/cat.png", mime_type="image/png")
    video = await world.engine.accounts.tenancy.add_video(desk.user, original_file_id=file)

    async def check_file() -> None:
        await world.engine.jobs.removal.run_once(grace_seconds=0)
        assert not await world.engine.objects.exists("uploads/cat.png")

    return Script(
        act=lambda: world.engine.jobs.removal.remove_video(desk.user.tenant_id, video),
        ends=[],
        balances=[1000],
        refusals=(NotFound,),
        then=check_file,
    )


async def add_to_collection(world: World) -> Script:
    desk = await world.desk()
    tenant_id = desk.user.tenant_id
    _, leased = await desk.submit_and_lease()
    await world.complete(leased)
    await world.wait_for_deliveries()
    async with (await world.engine.databases.shard_of(tenant_id)).read() as tx:
        [output] = await gallery.page(tx, tenant_id, GalleryFilter())
    best = await world.engine.gallery.collections.create(tenant_id, "best")

    async def act() -> None:
        change = MarkChange(starred=True)
        await world.engine.gallery.actions.mark(tenant_id, [output.id], change, add_to=best.id)

    async def check_output() -> None:
        [found] = (await world.engine.gallery.listing.by_ids(tenant_id, [output.id])).values()
        async with (await world.engine.databases.shard_of(tenant_id)).read() as tx:
            assert (found.starred, await gallery.collections_of(tx, [output.id])) == (True, {output.id: [best.id]})

    return Script(act=act, ends=["completed"], balances=[990], then=check_output)


async def credit_payment(world: World) -> Script:
    desk = await world.desk(tokens=0)
    payment = Payment(event_id="evt_1", amount=50, tenant_id=desk.user.tenant_id)
    return Script(act=lambda: world.engine.accounts.payments.credit(payment), ends=[], balances=[50])


async def send_webhook(world: World) -> Script:
    """The receiver is unreachable: the delivery is recorded and retried."""
    desk = await world.desk()
    _, leased = await desk.submit_and_lease(webhook_url="http://127.0.0.1:9/")
    await world.complete(leased)

    async def check_retry() -> None:
        await world.advance(LEASE_SECONDS)
        assert await world.engine.webhooks.deliveries.run_once() == 1

    async def act() -> None:
        await world.engine.webhooks.deliveries.run_once()

    return Script(act=act, ends=["completed"], balances=[990], then=check_retry)


async def remove_unused_upload(world: World) -> Script:
    desk = await world.desk()
    await world.engine.objects.put("uploads/cat.png", b"cat")
    await world.engine.accounts.tenancy.add_file(desk.user, path="uploads/cat.png", mime_type="image/png")
    await world.advance(2 * 86400)

    async def act() -> None:
        await world.engine.operations.retention.run_once(grace_seconds=0)

    async def check_file() -> None:
        await world.engine.jobs.removal.run_once(grace_seconds=0)
        assert not await world.engine.objects.exists("uploads/cat.png")

    return Script(act=act, ends=[], balances=[1000], then=check_file)


async def draw_poster(world: World) -> Script:
    desk = await world.desk()
    tenant_id, path = desk.user.tenant_id, "uploads/cat.png"
    await world.engine.objects.put(path, png())
    await world.engine.accounts.tenancy.add_file(desk.user, path=path, mime_type="image/png")
    shard = await world.engine.databases.shard_of(tenant_id)
    await shard.run(TransactionStep.TENANT, lambda tx: media.use_files(tx, tenant_id, [path]))

    async def check_poster() -> None:
        await world.advance(DRAW_SECONDS)
        await world.engine.jobs.pending_posters.run_once()
        [file] = await execute(
            await world.engine.databases.shard_of(tenant_id), "SELECT poster, poster_due_at FROM files"
        )
        assert file.poster_due_at is None
        assert await world.engine.objects.exists(poster_path(path, file.poster))

    async def act() -> None:
        await world.engine.jobs.pending_posters.run_once()

    return Script(act=act, ends=[], balances=[1000], then=check_poster)


async def create_user(world: World) -> Script:
    desk = await world.desk(tokens=0)

    async def then() -> None:
        async with world.engine.databases.central.read() as tx:
            users = central.accounts.users
            [user_id] = await tx.scalars(select(users.c.id).where(users.c.email == "new@example.org"))
            user = await tenants.user(tx, user_id)
        assert isinstance(user, User)
        await world.engine.accounts.ledger.credit(user.tenant_id, 100, reference="first")
        await world.submit(user, desk.effect)

    return Script(
        act=lambda: world.engine.accounts.tenancy.create_user(email="new@example.org"),
        ends=["completed"],
        balances=[0, 90],
        refusals=(Conflict,),
        then=then,
    )


async def create_catalogue(world: World) -> Script:
    user = await world.user()

    async def act() -> None:
        with suppress(Conflict):
            await world.workflow("new")
        with suppress(Conflict):
            await world.engine.catalogue.effects.create(slug="new", workflow_slug="new", credits_cost=10)
        with suppress(Conflict):
            await world.engine.workers.fleets.create(slug="new", workflow_slugs=["new"])

    async def then() -> None:
        async with world.engine.databases.central.read() as tx:
            effect = await catalogue.effect(tx, slug="new")
        assert effect is not None
        await world.submit(user, effect)
        assert await world.lease(await world.worker("new")) is not None

    return Script(act=act, ends=["completed"], balances=[990], then=then)


async def register(world: World) -> Script:
    desk = await world.desk()
    await desk.submit()

    async def then() -> None:
        assert await world.lease("new") is not None

    return Script(
        act=lambda: world.worker(desk.fleet, name="new"),
        ends=["completed"],
        balances=[990],
        refusals=(Conflict,),
        then=then,
    )


async def repair_lost_update(world: World) -> Script:
    desk = await world.desk()
    _, leased = await desk.submit_and_lease()
    await interrupt(world, TransactionStep.DELIVER_APPLY, lambda: world.complete(leased))
    await execute(world.engine.databases.central, "DELETE FROM outbox")
    return repair(world, ends=["completed"], balances=[990])


async def repair_missing_dispatch(world: World) -> Script:
    desk = await world.desk()
    await desk.submit_and_lease()
    await execute(world.engine.databases.central, "DELETE FROM dispatch_leases")
    await execute(world.engine.databases.central, "DELETE FROM ai_job_dispatches")
    return repair(world, ends=["completed"], balances=[990])


async def repair_wallet(world: World) -> Script:
    desk = await world.desk()
    await desk.submit()
    shard = await world.engine.databases.shard_of(desk.user.tenant_id)
    await execute(shard, "UPDATE token_wallets SET balance = 5")
    return repair(world, ends=["completed"], balances=[990])


async def repair_orphaned_dispatch(world: World) -> Script:
    """The job is missing: the dispatch ends, and its reserved tokens are refunded."""
    desk = await world.desk()
    await desk.submit()
    shard = await world.engine.databases.shard_of(desk.user.tenant_id)
    await execute(shard, "DELETE FROM job_events")
    await execute(shard, "DELETE FROM ai_jobs")
    return repair(world, ends=[], balances=[1000])


def repair(world: World, *, ends: Sequence[str], balances: Sequence[int]) -> Script:
    return Script(
        act=lambda: world.engine.operations.reconciler.run(repair=True),
        ends=ends,
        balances=balances,
        heals_itself=False,
        is_whole=False,
    )


async def scale_fleet(world: World) -> Script:
    """The leader adopts an unknown machine and launches another: two exist after a crash at any point."""
    desk = await world.desk()
    _, leased = await desk.submit_and_lease()
    await world.complete(leased)
    provider = MemoryProvider()
    id_ = f"{desk.fleet}.stray"
    provider.there[id_] = ProviderMachine(id=id_, state=ProviderMachineState.RUNNING, key="stray")
    await world.engine.workers.fleets.change(
        stage=Stage.PRODUCTION,
        slug=desk.fleet,
        changes={
            "machines": {"provider": "command", "options": {"boot_seconds": 100_000}},
            "autoscaling": {"min_machines": 3},
        },
    )

    async def act() -> None:
        engine = world.engine
        engine.autoscaling.leadership.ttl_seconds = 600.0
        # the term of the crashed leader has ended
        await world.advance(601)
        await engine.workers.workers.record_seen([desk.worker])
        assert await engine.autoscaling.leadership.claim() is not None
        loop = ScalingLoop(engine, provider)
        await loop.observe_once()
        await loop.decide_once()
        await loop.idle()

    async def then() -> None:
        [fleet] = await world.engine.autoscaling.snapshots.fleets()
        present = await world.engine.autoscaling.machines.present(fleet)
        assert len({key for launch in provider.launches for key in launch}) == 1
        assert {machine.provider_id for machine in present} == set(provider.there)
        assert len(present) == 2

    return Script(act=act, then=then, ends=["completed"], balances=[990])


async def count_usage(world: World) -> Script:
    desk = await world.desk()
    _, leased = await desk.submit_and_lease()
    await world.complete(leased)

    async def act() -> None:
        await world.engine.autoscaling.usage.run_once()

    async def then() -> None:
        [row] = await world.engine.autoscaling.usage.report(UsageGrouping.FLEET)
        assert row.jobs == 1

    return Script(act=act, ends=["completed"], balances=[990], then=then)


async def claim_minute(world: World) -> Script:
    """A minute claimed by a crashed process is lost; the next one can be claimed."""
    await world.desk()
    return Script(act=lambda: world.engine.autoscaling.metrics.claim_minute("cloudwatch"), ends=[], balances=[1000])


async def learn_durations(world: World) -> Script:
    desk = await world.desk()
    _, leased = await desk.submit_and_lease()
    await world.complete(leased)

    async def act() -> None:
        await world.engine.autoscaling.durations.learn()

    async def then() -> None:
        rows = await execute(world.engine.databases.central, "SELECT jobs FROM workflow_durations")
        assert {row.jobs for row in rows} == {1}

    return Script(act=act, ends=["completed"], balances=[990], then=then)


async def send_mail(world: World) -> Script:
    """The mail server is unreachable: the failure is recorded, and the mail is sent again."""
    desk = await world.desk()
    mail = {"smtp_url": "smtp+plain://127.0.0.1:9", "mail_from": "studio@example.org"}
    world.engine.settings = world.engine.settings.model_copy(update=mail)
    await world.restart()
    await world.engine.accounts.mailed_links.request_password(desk.user.email)

    async def act() -> None:
        await world.engine.accounts.mailer.run_once()

    async def then() -> None:
        await world.advance(MAIL_LEASE_SECONDS)
        await world.engine.accounts.mailer.run_once()
        failed = "SELECT recipient FROM mails WHERE last_error IS NOT NULL"
        [row] = await execute(world.engine.databases.central, failed)
        assert row.recipient == desk.user.email

    return Script(act=act, ends=[], balances=[1000], then=then)


async def send_alert(world: World) -> Script:
    """The mail server is unreachable: the alert counts as not sent, and is sent again."""
    await world.desk()
    mail = {"smtp_url": "smtp+plain://127.0.0.1:9", "mail_from": "studio@example.org"}
    rules = {"*": AlertRule(urls=["mailto:ops@example.org"])}
    world.engine.settings = world.engine.settings.model_copy(update={**mail, "alerts": rules})
    await world.restart()
    outage = Outage(
        kind=OutageKind.DISK,
        name="data",
        detail="5% free.",
        means="Uploads fail.",
        advice="Free space.",
        is_severe=True,
        since=datetime(2026, 1, 1, tzinfo=UTC),
    )

    async def act() -> None:
        await world.engine.operations.alerts.notify([outage])

    async def then() -> None:
        # A server that crashed while it was sending waits for the quiet time first.
        await world.advance(3600)
        await world.engine.operations.alerts.notify([outage])
        assert world.engine.operations.alerts.states["*"].failures.keys() == {"mailto:ops@example.org"}

    return Script(act=act, ends=[], balances=[1000], then=then)


async def credit_by_command(world: World) -> Script:
    """A planned audit log entry is written before the change, so that every change has an entry."""
    desk = await world.desk()

    async def act() -> None:
        keys = {"tenant_id": desk.user.tenant_id}
        async with world.engine.audit.command("tokens.credit", "tenants", keys, user="ada", host="relay"):
            await world.engine.accounts.ledger.credit(desk.user.tenant_id, 50, reference="payment")

    async def then() -> None:
        page = await world.engine.audit.page(AuditFilter(), limit=10)
        assert any(entry.action == "tokens.credit" and entry.is_done for entry in page.items)

    return Script(act=act, ends=[], balances=[1050], then=then)


async def erase_account(world: World) -> Script:
    """Only the ledger is kept."""
    desk = await world.desk()
    tenant_id = desk.user.tenant_id
    path = f"{tenant_folder(tenant_id)}/uploads/cat.png"
    await world.engine.objects.put(path, b"cat")
    await world.engine.accounts.tenancy.add_file(desk.user, path=path, mime_type="image/png")
    await world.engine.accounts.own_account.delete_by_admin(desk.user.id)

    async def act() -> None:
        await world.engine.operations.erasure.run_once()

    async def then() -> None:
        assert await execute(await world.engine.databases.shard_of(tenant_id), "SELECT id FROM files") == []
        assert [file.path async for file in world.engine.objects.list(tenant_folder(tenant_id))] == []

    return Script(act=act, ends=[], balances=[1000], then=then)


# The transactions of each scenario, with the number of times each runs.
VERDICT = {TransactionStep.DELIVER_APPLY: 1, TransactionStep.DELIVER_FORGET: 1}
SCENARIOS: Mapping[Scenario, Mapping[TransactionStep, int]] = {
    submit: {
        TransactionStep.AVAILABILITY: 1,
        TransactionStep.SUBMIT_JOB: 1,
        TransactionStep.SUBMIT_ENQUEUE: 1,
        TransactionStep.SUBMIT_FORGET: 1,
    },
    submit_video_job: {TransactionStep.SUBMIT_JOB: 1},
    submit_new_batch: {TransactionStep.SUBMIT_JOB: 1, TransactionStep.SUBMIT_ENQUEUE: 1},
    submit_with_reuse: {TransactionStep.REUSE: 1, TransactionStep.SUBMIT_JOB: 1},
    submit_batch_with_reuse: {
        TransactionStep.REUSE: 1,
        TransactionStep.SUBMIT_JOB: 1,
        TransactionStep.SUBMIT_ENQUEUE: 1,
    },
    run_out_of_memory: {TransactionStep.SETTLE: 1, **VERDICT},
    retry: {TransactionStep.SUBMIT_JOB: 1, TransactionStep.SUBMIT_ENQUEUE: 1},
    retry_failed_items: {TransactionStep.SUBMIT_JOB: 1},
    relay_submission: {TransactionStep.SUBMIT_ENQUEUE: 1, TransactionStep.SUBMIT_FORGET: 1},
    lease: {TransactionStep.LEASE: 1, **VERDICT},
    lease_with_shard_down: {TransactionStep.LEASE: 1, TransactionStep.DEFER: 1},
    lease_with_missing_graph: {TransactionStep.DEFER: 1},
    heartbeat: {TransactionStep.HEARTBEAT: 1, TransactionStep.HEARTBEAT_LOGS: 1},
    complete: {TransactionStep.SETTLE: 1, **VERDICT},
    complete_with_upload: {TransactionStep.SETTLE: 1, **VERDICT},
    complete_in_two_shards: {TransactionStep.SETTLE: 1, TransactionStep.DELIVER_APPLY: 2},
    fail: {TransactionStep.SETTLE: 1, **VERDICT},
    fail_and_hold_batch: {TransactionStep.SETTLE: 1, TransactionStep.HOLD: 1},
    fail_with_worker_fault: {TransactionStep.SETTLE: 1, TransactionStep.DELIVER_APPLY: 1},
    requeue: {TransactionStep.SETTLE: 1, TransactionStep.DELIVER_APPLY: 1},
    release: {TransactionStep.RELEASE: 1, TransactionStep.DELIVER_APPLY: 1},
    deregister: {TransactionStep.RELEASE: 1},
    revoke: {TransactionStep.WORKER: 1, TransactionStep.RELEASE: 1},
    recall: {TransactionStep.RECALL: 1},
    burst: {TransactionStep.BURST: 1, TransactionStep.DELIVER_APPLY: 1},
    return_from_cloud: {TransactionStep.BURST: 1, TransactionStep.DELIVER_APPLY: 1},
    fail_in_cloud: {TransactionStep.SETTLE: 1, TransactionStep.DELIVER_APPLY: 1},
    reap: {TransactionStep.REAP: 1, TransactionStep.DELIVER_APPLY: 1},
    reap_last_attempt: {TransactionStep.REAP: 1, **VERDICT},
    relay_update: VERDICT,
    cancel: {TransactionStep.CONTROL: 1, **VERDICT},
    cancel_leased_job: {TransactionStep.CONTROL: 1, TransactionStep.DELIVER_APPLY: 1},
    cancel_before_enqueue: {
        TransactionStep.SUBMIT_ENQUEUE: 1,
        TransactionStep.CONTROL: 1,
        TransactionStep.DELIVER_APPLY: 1,
    },
    cancel_batch: {TransactionStep.CONTROL: 1, TransactionStep.DELIVER_APPLY: 1},
    pause_leased_job: {TransactionStep.CONTROL: 1, TransactionStep.DELIVER_APPLY: 1},
    pause_and_resume: {TransactionStep.CONTROL: 2, TransactionStep.DELIVER_APPLY: 1},
    set_priority: {TransactionStep.CONTROL: 1},
    move: {TransactionStep.MOVE: 1},
    credit: {TransactionStep.LEDGER: 1},
    remove_video: {TransactionStep.REMOVE: 1, TransactionStep.REMOVE_FORGET: 1},
    credit_payment: {TransactionStep.PAYMENT: 1, TransactionStep.LEDGER: 1},
    send_webhook: {TransactionStep.WEBHOOK_CLAIM: 1, TransactionStep.WEBHOOK_NOTE: 1},
    remove_unused_upload: {
        TransactionStep.RETENTION_MARK: 1,
        TransactionStep.RETENTION_REMOVE: 1,
        TransactionStep.REMOVE_FORGET: 1,
    },
    draw_poster: {TransactionStep.DRAW_CLAIM: 1, TransactionStep.DRAW_NOTE: 1},
    add_to_collection: {TransactionStep.GALLERY: 1},
    create_user: {TransactionStep.TENANT: 2},
    create_catalogue: {TransactionStep.CATALOGUE: 3},
    register: {TransactionStep.WORKER: 1},
    scale_fleet: {
        TransactionStep.LEAD: 1,
        TransactionStep.SCALE_SEEN: 1,
        TransactionStep.SCALE_INTENT: 1,
        TransactionStep.SCALE_OUTCOME: 1,
    },
    learn_durations: {TransactionStep.LEARN: 1},
    send_mail: {TransactionStep.MAIL_CLAIM: 1, TransactionStep.MAIL_NOTE: 1},
    send_alert: {TransactionStep.ALERT: 2},
    credit_by_command: {TransactionStep.AUDIT: 2, TransactionStep.LEDGER: 1},
    erase_account: {TransactionStep.ERASE: 2},
    count_usage: {TransactionStep.USAGE: 2},
    claim_minute: {TransactionStep.MINUTE: 1},
    repair_lost_update: {TransactionStep.REPAIR: 1, TransactionStep.DELIVER_APPLY: 1},
    repair_missing_dispatch: {TransactionStep.SUBMIT_ENQUEUE: 1, TransactionStep.REPAIR: 1},
    repair_wallet: {TransactionStep.REPAIR: 1},
    repair_orphaned_dispatch: {TransactionStep.REPAIR: 1, **VERDICT},
}
# Cases by crash point.
CASES = {
    (step, boundary): [
        (step, boundary, scenario, nth)
        for scenario, steps in SCENARIOS.items()
        for nth in range(1, steps.get(step, 0) + 1)
    ]
    for step in TransactionStep
    for boundary in Boundary
}


def test_every_step_has_a_scenario() -> None:
    missing = {step for (step, _), cases in CASES.items() if not cases}
    assert not missing, f"No scenario crashes at {missing}: add one to SCENARIOS."


@pytest.mark.parametrize(
    ("backend", "step", "boundary", "scenario", "nth"),
    sampled_on_both([*CASES.values()], covering=2),
    indirect=["backend"],
)
async def test_crash_loses_and_duplicates_nothing(
    world: World, step: TransactionStep, boundary: Boundary, scenario: Scenario, nth: int
) -> None:
    seen = EarlierFacts()
    script = await scenario(world)
    crash = crash_at(world, step, boundary, nth=nth)
    with suppress(Crash):
        await script.act()
    await world.wait_for_deliveries()
    assert crash.happened, f"{scenario.__name__} never reached {boundary} of {step}: correct SCENARIOS."
    await world.restart()
    if script.is_whole:
        await check_always(world, seen)
    await world.relay()
    if script.heals_itself:
        await check_agreed(world)
    with suppress(*script.refusals):
        await script.act()
    await world.wait_for_deliveries()
    if script.then is not None:
        await script.then()
    if script.is_whole:
        await check_always(world, seen)
    await drain(world)
    if script.is_whole:
        await check_always(world, seen)
        facts = await check_quiet(world)
    else:
        facts = await check_repaired(world)
    assert sorted(job.status for job in facts.jobs) == sorted(script.ends)
    assert sorted(facts.wallets.values()) == sorted(script.balances)


async def check_repaired(world: World) -> Facts:
    """The history was damaged by hand, so the reconciler decides; balances must still be right."""
    report = await world.engine.operations.reconciler.run()
    assert report.findings == []
    facts = await read_facts(world)
    rules = (balance_is_the_sum, outbox_is_empty, every_job_agrees_with_its_dispatch, every_job_has_ended)
    assert find_violations(facts, rules) == []
    return facts
