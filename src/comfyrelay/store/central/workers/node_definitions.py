"""Hashes of the node definitions of workers, and of the latest definitions of each fleet."""

from collections.abc import Collection

from sqlalchemy import select, union, update

from comfyrelay.store.central.tables.workers import fleets, workers
from comfyrelay.store.database import Tx


async def of_worker(tx: Tx, worker_id: str) -> str | None:
    found: str | None = await tx.scalar(select(workers.c.node_definitions_hash).where(workers.c.worker_id == worker_id))
    return found


async def set_hash(tx: Tx, worker_id: str, sha256: str) -> None:
    """Set the hash of a worker and its fleet. The fleet's hash is needed while all workers are offline."""
    await tx.execute(update(workers).where(workers.c.worker_id == worker_id).values(node_definitions_hash=sha256))
    fleet_id = select(workers.c.fleet_id).where(workers.c.worker_id == worker_id).scalar_subquery()
    await tx.execute(update(fleets).where(fleets.c.id == fleet_id).values(node_definitions_hash=sha256))


async def replace_revoked(tx: Tx, worker_id: str) -> None:
    """Replace the hash of the fleet with that of another worker, after this worker was revoked."""
    of_worker = select(workers.c.fleet_id, workers.c.node_definitions_hash).where(workers.c.worker_id == worker_id)
    row = (await tx.execute(of_worker)).one_or_none()
    if row is None or row.node_definitions_hash is None:
        return
    of_others = (
        select(workers.c.node_definitions_hash)
        .where(workers.c.fleet_id == row.fleet_id, workers.c.worker_id != worker_id, workers.c.is_approved)
        .where(workers.c.node_definitions_hash.is_not(None))
        # If another worker has the same hash, the fleet keeps it.
        .order_by(workers.c.node_definitions_hash != row.node_definitions_hash, workers.c.created_at.desc())
        .limit(1)
    )
    is_same = fleets.c.node_definitions_hash == row.node_definitions_hash
    query = update(fleets).where(fleets.c.id == row.fleet_id, is_same)
    await tx.execute(query.values(node_definitions_hash=await tx.scalar(of_others)))


async def of_stage(tx: Tx, stage: str, *, fleet_ids: Collection[int] | None = None, limit: int) -> list[str]:
    """Return the distinct hashes of approved workers, newest first, then the hashes of fleets. With `fleet_ids`, only
    those of these fleets."""
    of_workers = (
        select(workers.c.node_definitions_hash)
        .where(workers.c.stage == stage, workers.c.is_approved, workers.c.node_definitions_hash.is_not(None))
        .order_by(workers.c.created_at.desc(), workers.c.worker_id)
    )
    of_fleets = (
        select(fleets.c.node_definitions_hash)
        .where(fleets.c.stage == stage, fleets.c.node_definitions_hash.is_not(None))
        .order_by(fleets.c.id)
    )
    if fleet_ids is not None:
        of_workers = of_workers.where(workers.c.fleet_id.in_(fleet_ids))
        of_fleets = of_fleets.where(fleets.c.id.in_(fleet_ids))
    return list(dict.fromkeys([*await tx.scalars(of_workers), *await tx.scalars(of_fleets)]))[:limit]


async def used_hashes(tx: Tx) -> set[str]:
    """Return all hashes in use."""
    columns = (workers.c.node_definitions_hash, fleets.c.node_definitions_hash)
    return set(await tx.scalars(union(*(select(column).where(column.is_not(None)) for column in columns))))
