"""The audit log of people's changes, and snapshots of the changed objects."""

import hashlib
import re
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, Table, Text, cast, delete, insert, or_, select, update

from comfyrelay.domain.records.operations import AuditFilter, AuditLogEntry, NewAuditLogEntry
from comfyrelay.store.central.tables.accounts import tenants, users
from comfyrelay.store.central.tables.catalogue import effects, workflows
from comfyrelay.store.central.tables.operations import audit_log as a
from comfyrelay.store.central.tables.workers import fleets, workers, workflow_fleets
from comfyrelay.store.central.tenants import by_email
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import in_period, newest_page
from comfyrelay.store.types import json_text, relay_now

_RECORD = [a.c[name] for name in AuditLogEntry.__dataclass_fields__]
# Fields that change without a person's action, or that mean nothing to people.
_UNINTERESTING = {"updated_at", "created_at", "last_processing_time_seconds", "asset_hashes", "launches_reset_at"}
# A plain "key" is the name of a form field, except in the options of machine providers.
_SECRET = re.compile(
    r"password|secret|credential|(^|_)(token|hash)s?$|_keys?$|^keys$|^env(ironment)?$|user_data", re.IGNORECASE
)
_WORKER_FIELDS = ("worker_id", "display_name", "max_concurrency", "is_approved", "is_draining")
_OPTIONS = "options"
Snapshot = dict[str, Any]


class _Kind(NamedTuple):
    table: Table
    # Columns by their names in the path.
    keys: Mapping[str, str]
    columns: tuple[str, ...]


def _columns(table: Table, *without: str) -> tuple[str, ...]:
    left_out = {*_UNINTERESTING, *without}
    return tuple(column.key for column in table.c if column.key not in left_out and not _SECRET.search(column.key))


KINDS = {
    "effects": _Kind(effects, {"slug": "slug"}, _columns(effects)),
    "workflows": _Kind(workflows, {"slug": "slug"}, _columns(workflows)),
    "fleets": _Kind(fleets, {"stage": "stage", "slug": "slug"}, _columns(fleets)),
    "tenants": _Kind(tenants, {"tenant_id": "id"}, _columns(tenants)),
    "users": _Kind(users, {"user_id": "id"}, _columns(users)),
    "workers": _Kind(workers, {"worker_id": "worker_id"}, _WORKER_FIELDS),
}


async def snapshot(tx: Tx, kind: str, keys: Mapping[str, Any], *, lock: bool = False) -> Snapshot | None:
    """Return the fields of an object, locked against other changes; `None` if there is none. A tenant and its user are
    one object."""
    found = await _row(tx, kind, keys, lock=lock)
    if found is None:
        return None
    if kind == "fleets":
        mapped = select(workflows.c.slug).join(workflow_fleets, workflow_fleets.c.workflow_id == workflows.c.id)
        mapped = mapped.where(workflow_fleets.c.fleet_id == found["id"]).order_by(workflows.c.slug)
        found["workflow_slugs"] = await tx.scalars(mapped)
    if kind == "users":
        tenant = await _row(tx, "tenants", {"tenant_id": found["tenant_id"]}, lock=lock)
        return {**_prefixed("user", found), **_prefixed("tenant", tenant or {})}
    if kind == "tenants":
        user = await tx.scalar(select(users.c.id).where(users.c.tenant_id == found["id"]))
        of_user = await _row(tx, "users", {"user_id": user}, lock=lock) if user is not None else None
        return {**_prefixed("user", of_user or {}), **_prefixed("tenant", found)}
    return found


def _prefixed(prefix: str, fields: Snapshot) -> Snapshot:
    return {f"{prefix}.{name}": value for name, value in fields.items()}


async def _row(tx: Tx, kind: str, keys: Mapping[str, Any], *, lock: bool) -> Snapshot | None:
    table, names, columns = KINDS[kind]
    query: Select[Any] = select(*(table.c[name] for name in columns))
    query = query.where(*(table.c[column] == keys[name] for name, column in names.items()))
    if table is workflows:
        query = query.where(workflows.c.deleted_at.is_(None))
    row = (await tx.execute(query.with_for_update() if lock else query)).first()
    return None if row is None else {name: _plain(value) for name, value in row._mapping.items()}


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date | datetime) else value


def etag(found: Snapshot | None) -> str | None:
    """Return the version of an object as a quoted HTTP ETag."""
    if found is None:
        return None
    text = json_text([dict(sorted(found.items()))], "sqlite")
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:20]}"'


def without_secrets(value: Any, *, is_of_provider: bool = False) -> Any:
    """Return a JSON value whose secrets are masked. `is_of_provider` is set inside the options of a machine provider,
    which may be any JSON."""
    if isinstance(value, Mapping):
        shown = {}
        for name, inner in value.items():
            is_secret = _SECRET.search(str(name)) or (is_of_provider and str(name).lower() == "key")
            is_options = name == _OPTIONS and isinstance(inner, Mapping)
            shown[name] = (
                "…"
                if is_secret and inner is not None
                else without_secrets(inner, is_of_provider=is_of_provider or is_options)
            )
        return shown
    if isinstance(value, list):
        return [without_secrets(inner, is_of_provider=is_of_provider) for inner in value]
    return value


async def record(tx: Tx, entry: NewAuditLogEntry) -> int:
    values = {name: getattr(entry, name) for name in NewAuditLogEntry.__dataclass_fields__}
    entry_id: int = await tx.scalar(insert(a).values(**values, created_at=relay_now()).returning(a.c.id))
    return entry_id


async def complete(tx: Tx, entry_id: int, entry: NewAuditLogEntry) -> None:
    """Write the outcome of a change."""
    values = {name: getattr(entry, name) for name in ("subject", "before", "after", "is_done")}
    await tx.execute(update(a).where(a.c.id == entry_id).values(**values))


async def remove(tx: Tx, entry_id: int) -> None:
    """Delete the entry of a change that failed."""
    await tx.execute(delete(a).where(a.c.id == entry_id))


async def erase_person(tx: Tx, user_id: str, tenant_id: str) -> None:
    """Remove the personal data of a deleted user from the log. The entries and their times remain."""
    await tx.execute(update(a).where(a.c.actor_id == user_id).values(actor="deleted account", address=None))
    about = a.c.subject.in_(_subjects_of(user_id, tenant_id))
    await tx.execute(update(a).where(about).values(before=None, after=None))


def _subjects_of(user_id: str, tenant_id: str) -> list[str]:
    return [f"users/{user_id}", f"tenants/{tenant_id}"]


async def page(
    tx: Tx, wanted: AuditFilter, *, before_id: int | None = None, limit: int = 50
) -> tuple[list[AuditLogEntry], int | None]:
    """Return a page, newest first, and the id of the next page."""
    customer = await by_email(tx, wanted.search.strip().lower()) if wanted.search else None

    def conditions(c: Any) -> list[ColumnElement[bool]]:
        found: list[ColumnElement[bool]] = [] if wanted.action is None else [c.action == wanted.action]
        if wanted.search is not None:
            parts = (c.actor, c.subject, c.action, c.address)
            matches = [part.icontains(wanted.search, autoescape=True) for part in parts]
            # Results contain the ids of customers and jobs.
            matches.append(cast(c.after, Text).contains(wanted.search, autoescape=True))
            if customer is not None:
                matches.append(c.subject.in_(_subjects_of(customer.id, customer.tenant_id)))
                matches.append(cast(c.after, Text).contains(customer.tenant_id, autoescape=True))
            found.append(or_(*matches))
        if wanted.begins is not None:
            found.append(c.created_at >= wanted.begins)
        if wanted.ends is not None:
            found.append(c.created_at < wanted.ends)
        return found

    rows = await in_period(tx, select(*_RECORD), a.c.id, a.c.created_at, begins=wanted.begins, ends=wanted.ends)
    unindexed = conditions if conditions(a.c) else None
    return await newest_page(tx, AuditLogEntry, rows, a.c.id, before=before_id, limit=limit, unindexed=unindexed)
