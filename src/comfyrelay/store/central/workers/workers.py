"""The worker registry: registration, assigned workflows, and workers for a dispatch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Float, Select, Text, bindparam, case, delete, func, insert, select, update
from sqlalchemy.sql import Executable

from comfyrelay.domain.capabilities import CapabilitySummary
from comfyrelay.domain.queue.memory import NO_GPUS, largest_gpu
from comfyrelay.domain.queue.slots import why_unavailable
from comfyrelay.domain.queue.states import Provider, RegistrationSource, WorkflowKind
from comfyrelay.domain.records.workers import Worker, WorkflowWorker
from comfyrelay.store.central.queue.dispatches import LEASED, LEASES, leased_by
from comfyrelay.store.central.tables.catalogue import workflows
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.workers import instance_identities as identities
from comfyrelay.store.central.tables.workers import worker_workflows, workers, workflow_fleets
from comfyrelay.store.database import Tx, conflict_on_violation
from comfyrelay.store.row_parameters import (
    columns_of,
    ids_table,
    insert_rows,
    rows_table,
    update_rows,
    with_ids,
    with_rows,
)
from comfyrelay.store.types import json_value, relay_now, sql_literal

_WORKER = [workers.c[name] for name in Worker.__dataclass_fields__]


async def create(tx: Tx, **values: Any) -> Worker:
    times = {"created_at": relay_now(), "last_seen_at": relay_now()} | await _unavailable_times(tx, values)
    query = insert(workers).values(**_with_summary(values), **times)
    with conflict_on_violation(f"A worker {values['worker_id']!r} is already registered."):
        return await tx.one(Worker, query.returning(*_WORKER))


_HAS_LEASE = select(d.c.id).where(d.c.worker_id == workers.c.worker_id, LEASED).exists()


async def remove_if_offline(tx: Tx, worker_id: str, *, offline_seconds: float) -> bool:
    """Delete a worker that has not been seen for this long and has no lease. Revoked workers are kept."""
    is_offline = (workers.c.last_seen_at < relay_now(-offline_seconds)) & workers.c.is_approved
    query = delete(workers).where(workers.c.worker_id == worker_id, is_offline, ~_HAS_LEASE)
    return await tx.exists(query.returning(workers.c.worker_id))


async def remove_offline(tx: Tx, *, seconds: float) -> list[Worker]:
    """Delete fleet workers that have not been seen for this long and have no lease. Revoked workers are kept."""
    is_removable = (
        workers.c.last_seen_at < relay_now(-seconds),
        workers.c.is_approved,
        workers.c.registration_source == sql_literal(RegistrationSource.FLEET),
    )
    # Lock first, then check again, because the worker may just have got a lease. Leasing also locks the worker.
    query = select(workers.c.worker_id).where(*is_removable).order_by(workers.c.worker_id)
    found = await tx.scalars(query.with_for_update(skip_locked=True))
    if not found:
        return []
    removal = delete(workers).where(workers.c.worker_id.in_(found), *is_removable, ~_HAS_LEASE)
    return await tx.all(Worker, removal.returning(*_WORKER))


async def get(tx: Tx, worker_id: str, *, lock: bool = False) -> Worker | None:
    query = select(*_WORKER).where(workers.c.worker_id == worker_id)
    return await tx.one_or_none(Worker, query.with_for_update() if lock else query)


async def lease_count(tx: Tx, worker_id: str) -> int:
    return int(await tx.scalar(select(func.count()).where(leased_by(worker_id))) or 0)


async def by_token(tx: Tx, token_hash: str) -> Worker | None:
    rows = await tx.fetch(_by_token, {"token_hash": token_hash})
    if not rows:
        return None
    decoded = {name: json_value(getattr(rows[0], name)) for name in ("narrowed_to", "capabilities")}
    return Worker(**{**rows[0]._mapping, **decoded})


@cache
def _by_token(_dialect: str) -> Executable:
    return select(*_WORKER).where(workers.c.token_hash == bindparam("token_hash", type_=Text()))


async def change(tx: Tx, worker_id: str, **values: Any) -> Worker | None:
    query = update(workers).where(workers.c.worker_id == worker_id).values(**_with_summary(values))
    return await tx.one_or_none(Worker, query.returning(*_WORKER))


async def renew(tx: Tx, worker_id: str, **values: Any) -> Worker | None:
    """Update a worker that was just seen."""
    times = {"last_seen_at": relay_now()} | await _unavailable_times(tx, values)
    return await change(tx, worker_id, **values, **times)


async def remove(tx: Tx, worker_id: str) -> None:
    await tx.execute(delete(workers).where(workers.c.worker_id == worker_id))


async def assign(tx: Tx, worker: Worker) -> list[str]:
    """Assign to a worker the workflows of its fleet that it requests. Return the active slugs.

    Inactive workflows are assigned, too, so that they only need to be activated later.
    """
    found = await mapped_to(tx, worker.fleet_id, narrowed_to=worker.narrowed_to, source=worker.registration_source)
    await tx.execute(delete(worker_workflows).where(worker_workflows.c.worker_id == worker.worker_id))
    if found:
        rows = [{"worker_id": worker.worker_id, "workflow_id": row.id} for row in found]
        await tx.execute(insert(worker_workflows).values(rows))
    return [row.slug for row in found if row.is_active]


async def mapped_to(
    tx: Tx, fleet_id: int, *, narrowed_to: Sequence[str] | None, source: str = RegistrationSource.FLEET
) -> Sequence[Any]:
    """Return rows of `id`, `slug` and `is_active`: the workflows that a worker of the fleet would get."""
    query = (
        select(workflows.c.id, workflows.c.slug, workflows.c.is_active)
        .join(workflow_fleets, workflow_fleets.c.workflow_id == workflows.c.id)
        .where(workflow_fleets.c.fleet_id == fleet_id)
        .order_by(workflows.c.slug)
    )
    if narrowed_to is not None:
        query = query.where(workflows.c.slug.in_(narrowed_to))
    if source != RegistrationSource.DESK:
        query = query.where(workflows.c.kind != WorkflowKind.SCRIPT)
    return (await tx.execute(query)).all()


async def assign_fleet(tx: Tx, fleet_id: int) -> None:
    """Assign the workflows of a fleet to all its workers, with four statements for any number of workers."""
    mapped = (
        select(workflows.c.id, workflows.c.slug, workflows.c.kind)
        .join(workflow_fleets, workflow_fleets.c.workflow_id == workflows.c.id)
        .where(workflow_fleets.c.fleet_id == fleet_id)
    )
    found = (await tx.execute(mapped)).all()
    members = select(workers.c.worker_id, workers.c.narrowed_to, workers.c.registration_source).where(
        workers.c.fleet_id == fleet_id
    )
    rows = [
        {"worker_id": worker.worker_id, "workflow_id": workflow.id}
        for worker in await tx.execute(members)
        for workflow in found
        if worker.narrowed_to is None or workflow.slug in worker.narrowed_to
        if workflow.kind != WorkflowKind.SCRIPT or worker.registration_source == RegistrationSource.DESK
    ]
    ids = select(workers.c.worker_id).where(workers.c.fleet_id == fleet_id)
    await tx.execute(delete(worker_workflows).where(worker_workflows.c.worker_id.in_(ids)))
    if rows:
        await tx.write(_assign_rows, with_rows(rows))


@cache
def _assign_rows(dialect: str) -> Executable:
    return insert_rows(dialect, worker_workflows, "worker_id", "workflow_id")


async def record_seen(tx: Tx, worker_ids: Iterable[str]) -> None:
    """Record for many workers that they were just seen."""
    await tx.write(_record_seen, with_ids(sorted(worker_ids)))


@cache
def _record_seen(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    return update(workers).values(last_seen_at=relay_now()).where(workers.c.worker_id == r.c.id)


async def _unavailable_times(tx: Tx, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return equal creation and outage times for a worker that registers before its ComfyUI has started."""
    if values.get("unavailable_reason") is None:
        return {"unavailable_since": None}
    return dict.fromkeys(("created_at", "unavailable_since"), await tx.now())


async def record_devices(tx: Tx, devices: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Store the GPU reports of many workers, which were also just seen."""
    rows = [
        {
            "worker_id": worker_id,
            "devices": reported,
            "memory_bytes": largest_gpu(map(_gpu_bytes, reported)),
            "unavailable_reason": why_unavailable(reported),
        }
        for worker_id, reported in sorted(devices.items())
    ]
    await tx.write(_record_devices, with_rows(rows))


@cache
def _record_devices(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(workers, "worker_id", "devices", "memory_bytes", "unavailable_reason"))
    is_unavailable = r.c.unavailable_reason.is_not(None)
    since = case((is_unavailable, func.coalesce(workers.c.unavailable_since, relay_now())))
    # While ComfyUI is offline, the worker reports no GPU, but it still has one.
    memory_bytes = func.coalesce(r.c.memory_bytes, workers.c.memory_bytes)
    return (
        update(workers)
        .values(
            devices=r.c.devices,
            memory_bytes=memory_bytes,
            unavailable_since=since,
            unavailable_reason=r.c.unavailable_reason,
            last_seen_at=relay_now(),
        )
        .where(workers.c.worker_id == r.c.worker_id)
    )


async def record_warm(tx: Tx, warm: Mapping[str, Sequence[str]]) -> None:
    """Store the hashes of the loaded workflows of many workers."""
    rows = [{"worker_id": worker_id, "warm_hashes": list(hashes)} for worker_id, hashes in sorted(warm.items())]
    await tx.write(_record_warm, with_rows(rows))


@cache
def _record_warm(dialect: str) -> Executable:
    return update_rows(dialect, workers, "worker_id", "warm_hashes")


def _gpu_bytes(device: Mapping[str, Any]) -> int | None:
    """Return the memory of a reported GPU; `None` if the report is invalid."""
    return device.get("memory_total") if device.get("name") not in NO_GPUS else None


def _with_summary(values: Mapping[str, Any]) -> dict[str, Any]:
    """Add the reported providers and a summary as separate columns, because the other capabilities are long and rarely
    needed."""
    if "capabilities" not in values:
        return dict(values)
    reported = values["capabilities"].get("providers")
    providers = [name for name in reported if isinstance(name, str)] if isinstance(reported, list) else None
    summary = asdict(CapabilitySummary.from_report(values["capabilities"]))
    return {**values, "providers": providers, "capability_summary": summary}


def serves(providers: Sequence[str] | None, provider: Provider) -> bool:
    """Return whether a worker with these providers serves this one. A worker that reports none is self-hosted."""
    return provider in (providers or (Provider.SELF_HOSTED,))


async def serving(
    tx: Tx, workflow_id: int, *, stage: str, provider: Provider, offline_seconds: float
) -> list[WorkflowWorker]:
    """Return the workers that may run the workflow now, with their number of leases, without workers that serve only
    other providers."""
    parameters = {"workflow_id": workflow_id, "stage": stage, "offline_seconds": -offline_seconds}
    return [
        WorkflowWorker(worker_id=worker_id, max_concurrency=max_concurrency, leases=leases)
        for worker_id, max_concurrency, leases, providers in await tx.fetch(serving_query, parameters)
        if provider in (json_value(providers) or Provider)
    ]


@cache
def serving_query(_dialect: str = "") -> Select[Any]:
    return (
        select(workers.c.worker_id, workers.c.max_concurrency, LEASES.label("leases"), workers.c.providers)
        .join(worker_workflows, worker_workflows.c.worker_id == workers.c.worker_id)
        .join(workflows, workflows.c.id == worker_workflows.c.workflow_id)
        .where(
            worker_workflows.c.workflow_id == bindparam("workflow_id", type_=BigInteger()),
            workflows.c.is_active,
            workers.c.stage == bindparam("stage", type_=Text()),
            workers.c.is_approved,
            ~workers.c.is_draining,
            workers.c.unavailable_since.is_(None),
            workers.c.last_seen_at >= relay_now(bindparam("offline_seconds", type_=Float())),
        )
    )


async def workflows_of(tx: Tx, worker_ids: Iterable[str]) -> list[int]:
    """Return the workflows of these workers."""
    return [row.workflow_id for row in await tx.fetch(workflows_of_query, with_ids(worker_ids))]


@cache
def workflows_of_query(dialect: str) -> Select[Any]:
    r = ids_table(dialect, Text)
    of_worker = worker_workflows.c.worker_id == r.c.id
    return select(worker_workflows.c.workflow_id).join_from(r, worker_workflows, of_worker).distinct()


async def count_of_fleets(tx: Tx, *, offline_seconds: float) -> int:
    """Count the workers of all fleets that are online, except the workers of a desk."""
    of_fleets = workers.c.registration_source == sql_literal(RegistrationSource.FLEET)
    is_online = workers.c.last_seen_at >= relay_now(-offline_seconds)
    return int(await tx.scalar(select(func.count()).where(of_fleets, is_online)) or 0)


async def count_of_fleet(tx: Tx, fleet_id: int, *, offline_seconds: float) -> int:
    """Count the online workers of a fleet. Dead workers take up no place."""
    is_online = workers.c.last_seen_at >= relay_now(-offline_seconds)
    return int(await tx.scalar(select(func.count()).where(workers.c.fleet_id == fleet_id, is_online)) or 0)


async def identity_key(tx: Tx, instance_id: str) -> str | None:
    """Return the hash of the registration key with which an instance used its identity document, if it did."""
    query = select(identities.c.registration_key_hash).where(identities.c.instance_id == instance_id)
    key_hash: str | None = await tx.scalar(query)
    return key_hash


async def add_identity(tx: Tx, instance_id: str, *, account_id: str, key_hash: str) -> None:
    query = insert(identities).values(instance_id=instance_id, account_id=account_id, registration_key_hash=key_hash)
    await tx.execute(query.values(created_at=relay_now()))
