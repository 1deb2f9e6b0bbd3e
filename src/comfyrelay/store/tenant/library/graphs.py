"""Graphs of private workflows: their size, and since when nothing refers to them."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from sqlalchemy import delete, insert, select, update

from comfyrelay.store.database import Tx
from comfyrelay.store.tenant.tables import ai_jobs, graphs
from comfyrelay.store.types import relay_now


class StoredGraph(NamedTuple):
    id: str
    tenant_id: str
    bytes: int
    properties_hash: str


_STORED = [graphs.c[name] for name in StoredGraph._fields]


async def find(tx: Tx, tenant_id: str, sha256: str) -> StoredGraph | None:
    is_equal = (graphs.c.tenant_id == tenant_id) & (graphs.c.sha256 == sha256)
    return await tx.one_or_none(StoredGraph, select(*_STORED).where(is_equal))


async def create(tx: Tx, new: StoredGraph, *, sha256: str) -> None:
    await tx.execute(insert(graphs).values(**new._asdict(), sha256=sha256))


async def use(tx: Tx, graph_id: str, *, more_bytes: int, properties_hash: str) -> None:
    """Record that a workflow is stored with this graph again."""
    query = update(graphs).where(graphs.c.id == graph_id)
    more = {"bytes": graphs.c.bytes + more_bytes, "properties_hash": properties_hash}
    await tx.execute(query.values(**more, unused_at=None))


async def page(tx: Tx, *, after_id: str, limit: int) -> list[StoredGraph]:
    query = select(*_STORED).where(graphs.c.id > after_id)
    return await tx.all(StoredGraph, query.order_by(graphs.c.id).limit(limit))


async def used_by_jobs(tx: Tx, paths: Collection[str]) -> set[str]:
    query = select(ai_jobs.c.private_graph).where(ai_jobs.c.private_graph.in_(list(paths))).distinct()
    return set(await tx.scalars(query))


async def mark(tx: Tx, *, used: Iterable[str], unused: Iterable[str]) -> None:
    """Record which graphs are in use. An unused graph keeps its first time."""
    marked = graphs.c.unused_at.is_not(None)
    await tx.execute(update(graphs).where(graphs.c.id.in_(list(used)), marked).values(unused_at=None))
    await tx.execute(update(graphs).where(graphs.c.id.in_(list(unused)), ~marked).values(unused_at=relay_now()))


async def remove(tx: Tx, ids: Iterable[str], *, unused_seconds: float) -> list[StoredGraph]:
    """Delete graphs that have been unused for this long."""
    is_old = graphs.c.unused_at <= relay_now(-unused_seconds)
    return await tx.all(StoredGraph, delete(graphs).where(graphs.c.id.in_(list(ids)), is_old).returning(*_STORED))
