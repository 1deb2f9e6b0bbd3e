"""Positions in the queue: reorder waiting dispatches, and estimate how long they wait."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Float, Select, and_, case, cast, false, func, literal, or_, select
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.dispatch import Dispatch
from comfyrelay.domain.queue.ordering import Place
from comfyrelay.domain.queue.states import DispatchStatus
from comfyrelay.store.central.queue.dispatches import WAITING, of_batch
from comfyrelay.store.central.queue.pauses import is_free
from comfyrelay.store.central.tables.autoscaling import workflow_durations
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import MAX_SCANNED
from comfyrelay.store.row_parameters import update_rows, with_rows
from comfyrelay.store.types import relay_now, sql_literal


async def places(tx: Tx, tenant_id: str, priority: int) -> list[Place]:
    """Lock and return a tenant's waiting dispatches of one priority, in queue order."""
    query = (
        select(d.c.id, d.c.rank, d.c.batch_id, d.c.tenant_job_id)
        .where(d.c.tenant_id == tenant_id, d.c.priority == priority, WAITING)
        .order_by(d.c.id)
        .with_for_update()
    )
    rows = sorted((await tx.execute(query)).all(), key=lambda row: (row.rank, row.id))
    return [Place(id=row.id, rank=row.rank, group=row.batch_id or row.tenant_job_id) for row in rows]


async def waiting_of_batch(tx: Tx, tenant_id: str, batch_id: str) -> dict[int, int]:
    """Return the waiting dispatches of a batch with their priorities."""
    query = select(d.c.id, d.c.priority).where(of_batch(tenant_id, batch_id), WAITING)
    return {row.id: row.priority for row in await tx.execute(query)}


async def write_ranks(tx: Tx, ranks: Mapping[int, int]) -> None:
    await tx.write(_write_ranks, with_rows({"id": id_, "rank": rank} for id_, rank in ranks.items()))


@cache
def _write_ranks(dialect: str) -> Executable:
    return update_rows(dialect, d, "id", "rank")


class Ahead(NamedTuple):
    """The number of dispatches ahead of another, and their usual total run time."""

    jobs: int
    seconds: float


async def waiting_workflows(tx: Tx, *, stage: str, provider: str, workflow_ids: Sequence[int]) -> list[int]:
    """Return the workflows that have queued dispatches, among the given ones."""
    is_ready = _is_ready(stage=stage, provider=provider, workflow_ids=workflow_ids)
    return await tx.scalars(select(d.c.workflow_id).where(is_ready).distinct())


async def ahead_of(tx: Tx, dispatch: Dispatch, workflow_ids: Sequence[int], *, usual: Mapping[int, float]) -> Ahead:
    """Sum up the queued dispatches of these workflows ahead of this one. `usual` has the usual seconds by workflow."""
    is_before = or_(
        d.c.priority > dispatch.priority,
        and_(d.c.priority == dispatch.priority, d.c.rank < dispatch.rank),
        and_(d.c.priority == dispatch.priority, d.c.rank == dispatch.rank, d.c.id < dispatch.id),
    )
    is_ready = _is_ready(stage=dispatch.stage, provider=dispatch.provider, workflow_ids=workflow_ids)
    row = (await tx.execute(select(func.count(), func.sum(_seconds(usual))).where(is_ready, is_before))).one()
    return Ahead(row[0], float(row[1] or 0.0))


async def ahead_of_new(
    tx: Tx, *, stage: str, provider: str, workflow_ids: Sequence[int], priority: int, usual: Mapping[int, float]
) -> Ahead:
    """Sum up the queued dispatches of these workflows that run before a new one with this priority."""
    is_ready = _is_ready(stage=stage, provider=provider, workflow_ids=workflow_ids)
    query = select(func.count(), func.sum(_seconds(usual))).where(is_ready, d.c.priority >= priority)
    row = (await tx.execute(query)).one()
    return Ahead(row[0], float(row[1] or 0.0))


def _seconds(usual: Mapping[int, float]) -> ColumnElement[float]:
    return cast(case(usual, value=d.c.workflow_id, else_=0.0) if usual else literal(0.0), Float(53))


def _is_ready(*, stage: str, provider: str, workflow_ids: Sequence[int]) -> ColumnElement[bool]:
    return and_(
        d.c.status == sql_literal(DispatchStatus.QUEUED),
        d.c.stage == stage,
        d.c.provider == provider,
        d.c.workflow_id.in_(workflow_ids) if workflow_ids else false(),
        d.c.available_at <= relay_now(),
        is_free(),
    )


async def ahead_of_each(
    tx: Tx,
    ids: Collection[int],
    *,
    stage: str,
    provider: str,
    workflow_ids: Sequence[int],
    usual: Mapping[int, float],
) -> dict[int, Ahead]:
    """For each dispatch, sum up the queued dispatches of these workflows that are ahead of it. Dispatches that cannot
    run yet are left out."""
    order = (d.c.priority.desc(), d.c.rank, d.c.id)
    place = func.row_number().over(order_by=order).label("place")
    until = func.sum(_seconds(usual)).over(order_by=order).label("until")
    is_ready = _is_ready(stage=stage, provider=provider, workflow_ids=workflow_ids)
    queue = select(d.c.id, place, until, _seconds(usual).label("own")).where(is_ready).subquery()
    rows = await tx.execute(select(queue).where(queue.c.id.in_(ids)))
    return {row.id: Ahead(row.place - 1, float(row.until - row.own)) for row in rows}


async def last_of_batches(tx: Tx, tenant_id: str, batch_ids: Collection[str]) -> dict[str, str]:
    """Return the last queued job of each batch, in queue order."""
    place = func.row_number().over(partition_by=d.c.batch_id, order_by=(d.c.priority, d.c.rank.desc(), d.c.id.desc()))
    # SQLite uses the partial index only if its condition is repeated.
    is_queued = and_(WAITING, d.c.status == sql_literal(DispatchStatus.QUEUED))
    queued = (
        select(d.c.batch_id, d.c.tenant_job_id, place.label("place"))
        .where(d.c.tenant_id == tenant_id, d.c.batch_id.in_(batch_ids), is_queued)
        .subquery()
    )
    rows = await tx.execute(select(queued).where(queued.c.place == 1))
    return {row.batch_id: row.tenant_job_id for row in rows}


async def mean_durations(tx: Tx, workflow_ids: Iterable[int]) -> dict[int, float]:
    """Return the mean duration of each workflow, as far as it is known."""
    found = {id_: await mean_duration(tx, [id_]) for id_ in set(workflow_ids)}
    return {id_: seconds for id_, seconds in found.items() if seconds is not None}


async def mean_duration(tx: Tx, workflow_ids: Sequence[int], *, of_last: int = 50) -> float | None:
    """Return the mean duration of the newest completed dispatches of these workflows, or the learned duration if there
    are no recent ones."""
    seconds = await tx.scalar(mean_duration_query(workflow_ids, of_last=of_last))
    if seconds is None:
        learned = workflow_durations.c
        is_whole_workflow = learned.workflow_id.in_(workflow_ids) & (learned.effect_id == 0)
        seconds = await tx.scalar(select(func.avg(learned.mean_seconds)).where(is_whole_workflow))
    return None if seconds is None else float(seconds)


def mean_duration_query(workflow_ids: Sequence[int], *, of_last: int) -> Select[Any]:
    """Return the query. It reads the newest dispatches until it has enough. The number is limited, because completed
    dispatches have no index by workflow: for a workflow that never ran, all of them would be read."""
    newest_id = select(func.max(d.alias().c.id)).scalar_subquery()
    newest = (
        select(d.c.duration_seconds)
        .where(
            d.c.id > newest_id - MAX_SCANNED,
            d.c.status == sql_literal(DispatchStatus.COMPLETED),
            d.c.workflow_id.in_(workflow_ids),
        )
        .order_by(d.c.id.desc())
        .limit(of_last)
        .subquery()
    )
    return select(func.avg(newest.c.duration_seconds))
