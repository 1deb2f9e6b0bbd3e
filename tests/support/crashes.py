"""Crash at a chosen transaction, and recover."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import select

from comfyrelay.domain.queue.states import TERMINAL_DISPATCH, DispatchStatus, Provider
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import tables as central
from comfyrelay.store.database import Boundary
from tests.support.world import OUTPUT, Crash, World

JANITOR = "janitor"
# Longer than any lease, block or deferral.
LONG_SECONDS = 3600.0
ROUNDS = 20


@dataclass
class CrashPoint:
    happened: bool = False


def crash_at(world: World, step: str, boundary: Boundary, *, nth: int = 1) -> CrashPoint:
    """Crash at this boundary of the n-th such step; after that, nothing commits until the world is restarted."""
    point = CrashPoint()
    passed = 0

    async def crash(at: str, where: Boundary) -> None:
        nonlocal passed
        if at == step and where is boundary:
            passed += 1
            point.happened = point.happened or passed == nth
        if point.happened:
            raise Crash(f"{at} {where}")

    world.on_boundary(crash)
    return point


async def interrupt(world: World, step: TransactionStep, act: Callable[[], Awaitable[object]]) -> None:
    """Crash before this step commits, then restart."""
    crash_at(world, step, Boundary.BEFORE_COMMIT)
    with suppress(Crash):
        await act()
    await world.wait_for_deliveries()
    await world.restart()


async def interrupt_delivery(world: World, act: Callable[[], Awaitable[object]]) -> None:
    """Crash after the update is stored and before it is delivered, then restart."""
    await interrupt(world, TransactionStep.DELIVER_APPLY, act)


async def drain(world: World) -> None:
    """Deliver the outbox, expire lost leases, resume paused jobs and complete all jobs."""
    await _add_janitor(world)
    for _ in range(ROUNDS):
        await world.relay()
        await world.advance(LONG_SECONDS)
        await world.engine.queue.reaper.run_once()
        for tenant_id, job_id in await _jobs_in(world, DispatchStatus.PAUSED):
            await world.engine.queue.control.resume(tenant_id, job_id)
        for leased in await world.leases(JANITOR, 100, providers=list(Provider)):
            await world.engine.queue.settle.complete(leased.dispatch_id, leased.lease_token, output=OUTPUT)
        await world.relay()
        if not await _jobs_in(world, *(set(DispatchStatus) - TERMINAL_DISPATCH)):
            return
    raise AssertionError(f"The queue is not empty after {ROUNDS} rounds.")


async def _add_janitor(world: World) -> None:
    """Add a worker that may run every workflow."""
    async with world.engine.databases.central.read() as tx:
        slugs = await tx.scalars(select(central.catalogue.workflows.c.slug))
    if slugs:
        await world.engine.workers.fleets.create(slug=JANITOR, workflow_slugs=slugs)
        await world.worker(JANITOR, concurrency=100, name=JANITOR)


async def _jobs_in(world: World, *statuses: DispatchStatus) -> list[tuple[str, str]]:
    d = central.queue.ai_job_dispatches
    async with world.engine.databases.central.read() as tx:
        found = await tx.execute(select(d.c.tenant_id, d.c.tenant_job_id).where(d.c.status.in_(statuses)))
        return [(row.tenant_id, row.tenant_job_id) for row in found]
