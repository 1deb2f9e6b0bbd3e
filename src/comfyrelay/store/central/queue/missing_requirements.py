"""Requirements of jobs by workflow hash, and the workers that are known to lack a requirement."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    Select,
    Text,
    bindparam,
    case,
    cast,
    delete,
    func,
    select,
    text,
    update,
)
from sqlalchemy.sql import Executable

from comfyrelay.domain.capabilities import (
    MAX_NAMES_STORED,
    Fitness,
    RequirementKind,
    Requirements,
    UnmetRequirements,
    known_until,
)
from comfyrelay.domain.queue.states import DispatchStatus
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.workers import worker_missing_requirements as missing
from comfyrelay.store.central.tables.workers import worker_workflows, workers
from comfyrelay.store.central.tables.workers import workflow_requirements as requirements
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import ids_table, insert_rows, select_by_ids, with_ids, with_rows
from comfyrelay.store.types import relay_now, sql_literal

Pair = tuple[str, str]
ROWS_AT_ONCE = 500
_NAME = func.coalesce(workers.c.display_name, workers.c.worker_id).label("name")
# As JSON text, which may be megabytes and is not parsed here.
_CAPABILITIES = cast(workers.c.capabilities, Text).label("capabilities")


class Coverage(NamedTuple):
    """Whether any worker can run jobs with a hash."""

    # Workers are assigned to the workflow, but each of them lacks a requirement.
    is_unserved: bool
    was_used_recently: bool


class RawRequirements(NamedTuple):
    workflow_hash: str
    node_types: str
    models: str


async def lock(tx: Tx) -> None:
    """Serialize new requirements and changes of workers, because each must see the writes of the other."""
    if tx.dialect == "postgresql":
        await tx.execute(text("SELECT pg_advisory_xact_lock(hashtext('comfyrelay.requirements'))"))


async def coverage(
    tx: Tx, hashes: Collection[str], *, workflow_id: int, stage: str, recent_seconds: float
) -> dict[str, Coverage]:
    """Return the coverage of the hashes with known requirements."""
    parameters = {"workflow_id": workflow_id, "stage": stage, "recent_seconds": -recent_seconds}
    return {
        row.workflow_hash: Coverage(bool(row.is_unserved), bool(row.was_used_recently))
        for row in await tx.fetch(coverage_query, {**with_ids(hashes), **parameters})
    }


def _may_run() -> ColumnElement[bool]:
    """Return the condition that a worker may run jobs of the workflow, now or when it is online again."""
    return (
        (worker_workflows.c.worker_id == workers.c.worker_id)
        & (worker_workflows.c.workflow_id == bindparam("workflow_id", type_=BigInteger()))
        & (workers.c.stage == bindparam("stage", type_=Text()))
        & workers.c.is_approved
    )


@cache
def coverage_query(dialect: str) -> Select[Any]:
    is_of_worker = (missing.c.worker_id == workers.c.worker_id) & (
        missing.c.workflow_hash == requirements.c.workflow_hash
    )
    unable = select(missing.c.worker_id).select_from(missing, worker_workflows, workers).where(is_of_worker, _may_run())
    able = (
        select(workers.c.worker_id)
        .select_from(worker_workflows, workers)
        .where(_may_run(), ~select(missing.c.worker_id).where(is_of_worker).correlate(requirements, workers).exists())
    )
    # Usually no worker lacks a requirement. Checking this first avoids reading thousands of workers.
    is_missing_anywhere = (
        select(missing.c.worker_id)
        .where(missing.c.workflow_hash == requirements.c.workflow_hash)
        .correlate(requirements)
        .exists()
    )
    is_unserved = case(
        (~is_missing_anywhere, False),
        else_=unable.correlate(requirements).exists() & ~able.correlate(requirements).exists(),
    )
    is_recent = requirements.c.used_at > relay_now(bindparam("recent_seconds", type_=Float()))
    columns = (requirements.c.workflow_hash, is_unserved.label("is_unserved"), is_recent.label("was_used_recently"))
    return select_by_ids(dialect, requirements.c.workflow_hash, *columns)


async def record_used(tx: Tx, hashes: Collection[str]) -> None:
    await tx.write(_record_used, with_ids(sorted(hashes)))


@cache
def _record_used(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    return update(requirements).values(used_at=relay_now()).where(requirements.c.workflow_hash == r.c.id)


async def all_reports(tx: Tx) -> dict[str, Any]:
    """Return the capabilities of all workers as JSON text. No worker can be deleted until the transaction ends."""
    query = select(workers.c.worker_id, _CAPABILITIES).with_for_update(read=True, key_share=True)
    return {row.worker_id: row.capabilities for row in await tx.execute(query)}


async def reports_for(tx: Tx, *, workflow_id: int, stage: str) -> list[tuple[str, str]]:
    """Return names and capabilities, as JSON text, of the workers that may run a workflow."""
    query = select(_NAME, _CAPABILITIES).select_from(worker_workflows, workers).where(_may_run())
    rows = await tx.execute(query.order_by(workers.c.worker_id), {"workflow_id": workflow_id, "stage": stage})
    return [(row.name, row.capabilities) for row in rows]


async def reports_of_fleet(tx: Tx, fleet_id: int) -> list[tuple[str, str]]:
    """Return names and capabilities, as JSON text, of the workers of a fleet."""
    query = select(_NAME, _CAPABILITIES).where(workers.c.fleet_id == fleet_id, workers.c.is_approved)
    return [(row.name, row.capabilities) for row in await tx.execute(query.order_by(workers.c.worker_id))]


async def write_requirements(tx: Tx, new: Mapping[str, Requirements]) -> None:
    rows = [
        {"workflow_hash": hash_, "node_types": sorted(required.node_types), "models": sorted(required.models)}
        for hash_, required in new.items()
    ]
    await tx.write(_write_requirements, with_rows(rows))


@cache
def _write_requirements(dialect: str) -> Executable:
    names = ("workflow_hash", "node_types", "models")
    return insert_rows(dialect, requirements, *names, used_at=relay_now()).on_conflict_do_nothing()


async def known_hashes(tx: Tx) -> set[str]:
    """Return the hashes with known requirements."""
    return set(await tx.scalars(select(requirements.c.workflow_hash)))


async def requirements_of(tx: Tx, wanted: Collection[str]) -> list[RawRequirements]:
    """Return the requirements of these hashes as JSON text, which may be megabytes and is not parsed here."""
    return [RawRequirements(*row) for row in await tx.fetch(_requirements_of, with_ids(sorted(wanted)))]


@cache
def _requirements_of(dialect: str) -> Executable:
    raw = (cast(requirements.c[name], Text).label(name) for name in ("node_types", "models"))
    return select_by_ids(dialect, requirements.c.workflow_hash, requirements.c.workflow_hash, *raw)


async def write_missing(tx: Tx, found: Mapping[Pair, Fitness]) -> None:
    """Record missing requirements by worker and hash. A worker with all requirements has no row."""
    rows = [
        {
            "worker_id": worker_id,
            "workflow_hash": hash_,
            "node_types": list(fitness.missing_node_types[:MAX_NAMES_STORED]),
            "models": list(fitness.missing_models[:MAX_NAMES_STORED]),
            "unreported": list(fitness.unreported),
        }
        for (worker_id, hash_), fitness in found.items()
    ]
    # Write in chunks, because each call passes all rows as one parameter.
    for first in range(0, len(rows), ROWS_AT_ONCE):
        await tx.write(_write_missing, with_rows(rows[first : first + ROWS_AT_ONCE]))


@cache
def _write_missing(dialect: str) -> Executable:
    key, values = ("worker_id", "workflow_hash"), ("node_types", "models", "unreported")
    query = insert_rows(dialect, missing, *key, *values)
    return query.on_conflict_do_update(index_elements=key, set_={name: query.excluded[name] for name in values})


async def clear_worker(tx: Tx, worker_id: str) -> None:
    await tx.execute(delete(missing).where(missing.c.worker_id == worker_id))


async def missing_for_workflow(
    tx: Tx, hashes: Collection[str], *, workflow_id: int, stage: str
) -> list[UnmetRequirements]:
    """Return the missing requirements of the workers that may run a workflow, for all these hashes together."""
    query = (
        select(missing, workers.c.display_name)
        .select_from(missing, worker_workflows, workers)
        .where(missing.c.worker_id == workers.c.worker_id, missing.c.workflow_hash.in_(list(hashes)), _may_run())
        .order_by(missing.c.worker_id)
    )
    rows = await tx.execute(query, {"workflow_id": workflow_id, "stage": stage})
    return [_unmet(list(of_worker)) for _, of_worker in groupby(rows, key=attrgetter("worker_id"))]


async def missing_for_hash(tx: Tx, workflow_hash: str) -> dict[str, UnmetRequirements]:
    """Return the missing requirements for this hash by worker."""
    query = select(missing, workers.c.display_name).join(workers, workers.c.worker_id == missing.c.worker_id)
    rows = await tx.execute(query.where(missing.c.workflow_hash == workflow_hash))
    return {row.worker_id: _unmet([row]) for row in rows}


def _unmet(rows: Sequence[Any]) -> UnmetRequirements:
    return UnmetRequirements(
        worker=rows[0].display_name or rows[0].worker_id,
        node_types=sorted({name for row in rows for name in row.node_types}),
        models=sorted({name for row in rows for name in row.models}),
        unreported=sorted({kind for row in rows for kind in row.unreported}),
        until=known_until(
            pair
            for row in rows
            for pair in ((RequirementKind.NODE, row.node_types), (RequirementKind.MODEL, row.models))
        ),
    )


async def pairs_of(tx: Tx, worker_ids: Iterable[str]) -> set[Pair]:
    """Return (worker, hash) pairs: these workers must not get jobs with these hashes."""
    return {(row.worker_id, row.workflow_hash) for row in await tx.fetch(_pairs_of, with_ids(sorted(worker_ids)))}


@cache
def _pairs_of(dialect: str) -> Executable:
    return select_by_ids(dialect, missing.c.worker_id, missing.c.worker_id, missing.c.workflow_hash)


def unfinished_query() -> Select[Any]:
    """Select the hashes of unfinished jobs. One SELECT per state lets each use a partial index."""
    states = (DispatchStatus.QUEUED, DispatchStatus.LEASED, DispatchStatus.PAUSED)
    first, *rest = (select(d.c.workflow_hash).where(d.c.status == sql_literal(state)) for state in states)
    return select(first.union(*rest).subquery())


async def delete_unused(tx: Tx, *, unused_seconds: float) -> int:
    """Delete requirements that no job has used for this long, except those of unfinished jobs. Return how many."""
    unfinished = set(await tx.scalars(unfinished_query()))
    old = select(requirements.c.workflow_hash).where(requirements.c.used_at < relay_now(-unused_seconds))
    unused = [hash_ for hash_ in await tx.scalars(old) if hash_ not in unfinished]
    if unused:
        await tx.write(_delete, with_ids(unused))
    return len(unused)


@cache
def _delete(dialect: str) -> Executable:
    return delete(requirements).where(requirements.c.workflow_hash.in_(select(ids_table(dialect, Text).c.id)))
