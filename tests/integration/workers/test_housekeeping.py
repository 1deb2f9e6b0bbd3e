"""Silent workers are removed, and the number of workers is limited."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from comfyrelay.errors import Forbidden
from comfyrelay.services.hooks import Hooks
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Boundary
from tests.support.world import PostgresBackend, SqliteBackend, World, open_world

HOUR = 3600.0


async def worker_names(world: World) -> set[str]:
    return {item.worker.worker_id for item in (await world.engine.workers.views.workers(limit=100)).items}


async def test_silent_worker_is_removed_after_two_hours(world: World) -> None:
    desk = await world.desk()
    await world.advance(2 * HOUR - 1)
    fresh = await world.worker(desk.fleet)
    assert await world.engine.workers.workers.remove_offline(2 * HOUR) == 0
    await world.advance(2)
    assert await world.engine.workers.workers.remove_offline(2 * HOUR) == 1
    assert await worker_names(world) == {fresh}
    assert await world.audit(desk.worker) == ["register", "remove"]


async def test_offline_worker_with_a_lease_is_kept_until_the_lease_is_reaped(world: World) -> None:
    desk = await world.desk()
    job, _ = await desk.submit_and_lease()
    await world.advance(3 * HOUR)
    assert await world.engine.workers.workers.remove_offline(2 * HOUR) == 0
    assert (await world.job(job)).status == "processing"
    assert await world.engine.queue.reaper.run_once() == 1
    await world.wait_for_deliveries()
    assert (await world.job(job)).status == "queued"
    assert await world.engine.workers.workers.remove_offline(2 * HOUR) == 1
    # the expired lease used an attempt
    dispatch = await world.dispatch(job)
    assert (dispatch.status, dispatch.attempts) == ("queued", 1)


async def test_desk_workers_and_revoked_workers_are_not_removed(world: World) -> None:
    await world.restart(Hooks(desk_workers=["own"]))
    fleet = await world.fleet(await world.workflow())
    await world.worker(fleet, name="own")
    revoked = await world.worker(fleet)
    await world.engine.workers.workers.set_approved(revoked, is_approved=False)
    await world.advance(3 * HOUR)
    assert await world.engine.workers.workers.remove_offline(2 * HOUR) == 0
    assert await worker_names(world) == {"own", revoked}


async def test_worker_that_leases_a_job_concurrently_is_not_removed(world: World) -> None:
    """Either the worker is removed and has no lease, or it keeps its lease."""
    desk = await world.desk()
    await world.advance(3 * HOUR)
    await desk.submit()
    request = LeaseRequest(worker_id=desk.worker, providers=["self_hosted"])
    removed, leased = await asyncio.gather(
        world.engine.workers.workers.remove_offline(2 * HOUR),
        world.engine.queue.leasing.lease(request),
        return_exceptions=True,
    )
    has_lease = not isinstance(leased, Forbidden) and leased != []
    assert (removed, has_lease) in {(1, False), (0, True)}
    assert await worker_names(world) == ({desk.worker} if has_lease else set())


async def test_worker_with_an_uncommitted_lease_is_not_removed(
    postgres_backend: PostgresBackend, tmp_path: Path
) -> None:
    """When silent workers are removed, the lease has been written but not committed."""
    async with open_world(postgres_backend, tmp_path) as world:
        desk = await world.desk()
        await desk.submit()
        await world.advance(3 * HOUR)
        removed: list[int] = []

        async def remove_offline(step: str, boundary: Boundary) -> None:
            if step == TransactionStep.LEASE and boundary is Boundary.BEFORE_COMMIT and not removed:
                removed.append(await world.engine.workers.workers.remove_offline(2 * HOUR))

        world.on_boundary(remove_offline)
        assert await world.lease(desk.worker) is not None
        assert removed == [0]
        assert await worker_names(world) == {desk.worker}


@pytest.fixture
async def limited(backend: SqliteBackend | PostgresBackend, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(backend, tmp_path, max_workers=2) as world:
        yield world


async def test_max_workers_limits_all_fleets_together(limited: World) -> None:
    first, second = [await limited.fleet(await limited.workflow()) for _ in range(2)]
    register = limited.engine.workers.workers.register
    results = await asyncio.gather(
        *(register(worker_id=f"w{n}", fleet_slug=(first, second)[n % 2], key="k" * 16) for n in range(5)),
        return_exceptions=True,
    )
    refused = [result for result in results if isinstance(result, Forbidden)]
    assert len(refused) == 3
    assert refused[0].detail == "All fleets together are full: they have 2 workers (max_workers)."
    # a registered worker may register again
    [name, _] = sorted(await worker_names(limited))
    await register(worker_id=name, fleet_slug=(first, second)[int(name[1:]) % 2], key="k" * 16)
