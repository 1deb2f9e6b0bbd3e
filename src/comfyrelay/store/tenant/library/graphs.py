"""Graphs of private workflows: their size, and the time since which they have been unused."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from sqlalchemy import delete, insert, select, update

from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.domain.records.catalogue import WorkflowRecord
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant.tables import ai_jobs, graphs
from comfyrelay.store.types import relay_now, sql_literal


class StoredGraph(NamedTuple):
    id: str
    tenant_id: str
    bytes: int
    editor_bytes: int
    properties_hash: str


_STORED = [graphs.c[name] for name in StoredGraph._fields]


async def find(tx: Tx, tenant_id: str, sha256: str) -> StoredGraph | None:
    is_equal = (graphs.c.tenant_id == tenant_id) & (graphs.c.sha256 == sha256)
    return await tx.one_or_none(StoredGraph, select(*_STORED).where(is_equal))


async def create(tx: Tx, new: StoredGraph, *, sha256: str) -> None:
    await tx.execute(insert(graphs).values(**new._asdict(), sha256=sha256))


async def use(tx: Tx, used: StoredGraph) -> None:
    """Record that a workflow is stored with this graph again."""
    await tx.execute(update(graphs).where(graphs.c.id == used.id).values(**used._asdict(), unused_at=None))


async def page(tx: Tx, *, after_id: str, limit: int) -> list[StoredGraph]:
    query = select(*_STORED).where(graphs.c.id > after_id)
    return await tx.all(StoredGraph, query.order_by(graphs.c.id).limit(limit))


async def used_by_jobs(tx: Tx, paths: Collection[str]) -> set[str]:
    query = select(ai_jobs.c.private_graph).where(ai_jobs.c.private_graph.in_(list(paths))).distinct()
    return set(await tx.scalars(query))


async def job_statuses(tx: Tx, workflow: WorkflowRecord, *, limit: int) -> list[str]:
    """Return the statuses of jobs of a private workflow; jobs that did not complete come first."""
    of_workflow = (ai_jobs.c.private_graph == workflow.graph_path) & (ai_jobs.c.workflow_id == workflow.id)
    order = (ai_jobs.c.status == sql_literal(JobStatus.COMPLETED)).asc()
    return list(await tx.scalars(select(ai_jobs.c.status).where(of_workflow).order_by(order).limit(limit)))


async def has_unfinished(tx: Tx, workflow: WorkflowRecord) -> bool:
    """Return whether a private workflow has jobs that have not ended."""
    of_workflow = (ai_jobs.c.private_graph == workflow.graph_path) & (ai_jobs.c.workflow_id == workflow.id)
    return await tx.exists(select(ai_jobs.c.id).where(of_workflow, ai_jobs.c.completed_at.is_(None)).limit(1))


async def mark(tx: Tx, *, used: Iterable[str], unused: Iterable[str]) -> None:
    """Record which graphs are in use. An unused graph keeps the time at which it was first found unused."""
    marked = graphs.c.unused_at.is_not(None)
    await tx.execute(update(graphs).where(graphs.c.id.in_(list(used)), marked).values(unused_at=None))
    await tx.execute(update(graphs).where(graphs.c.id.in_(list(unused)), ~marked).values(unused_at=relay_now()))


async def remove(tx: Tx, ids: Iterable[str], *, unused_seconds: float) -> list[StoredGraph]:
    """Delete graphs that have been unused for this long."""
    is_old = graphs.c.unused_at <= relay_now(-unused_seconds)
    return await tx.all(StoredGraph, delete(graphs).where(graphs.c.id.in_(list(ids)), is_old).returning(*_STORED))
