"""Changed jobs, marked outputs and credited tokens by transaction, for subscribers of a tenant.

Each row has the number of its transaction. Transactions commit in any order, so reading up to a row does not mean that
all rows before it were visible. The horizon is safe: every transaction with a smaller number has ended. Subscribers
read from the last horizon on, so they may see a row twice, but miss none.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Select, Text, bindparam, cast, delete, func, select
from sqlalchemy.sql import Executable

from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import columns_of, insert_rows, rows_table, with_rows
from comfyrelay.store.tenant.tables import changes as c
from comfyrelay.store.transaction import Call
from comfyrelay.store.types import json_value, relay_now

# Prefix of the id of an output.
_OUTPUT = "output:"
# Marks tokens that were credited without a job.
_WALLET = "wallet:"
# Written instead of ids: any of them may have changed.
_ALL = "*"
# Maximum per transaction; above it, all outputs count as marked.
MAX_MARKED = 200


class Horizon(NamedTuple):
    """A transaction number and a time. All transactions with smaller numbers have ended."""

    txid: int
    at: datetime


class JobChange(NamedTuple):
    id: int
    tenant_id: str
    txid: int
    # Ids of jobs. For a deleted job, also the id of its batch.
    ids: list[str]
    marked: "MarkedOutputs | None" = None
    # Whether tokens were credited.
    is_credit: bool = False


class MarkedOutputs(NamedTuple):
    """Outputs whose stars, rejects, notes or collections changed. If there are none, only collections changed."""

    ids: frozenset[str]
    is_all: bool

    def __or__(self, other: "MarkedOutputs") -> "MarkedOutputs":
        return MarkedOutputs(self.ids | other.ids, self.is_all or other.is_all)


async def write(tx: Tx, ids: Mapping[str, Iterable[str]]) -> None:
    """Record the jobs that this transaction changes, by tenant."""
    await tx.write(*call(ids))


def call(ids: Mapping[str, Iterable[str]]) -> Call:
    """Return the statement of `write`, to be sent together with others."""
    return _write, with_rows([{"tenant_id": tenant_id, "ids": list(job_ids)} for tenant_id, job_ids in ids.items()])


async def write_marked(tx: Tx, tenant_id: str, ids: Collection[str] | None = ()) -> None:
    """Record the outputs whose marks this transaction changes: `None` means all, and empty means only collections."""
    marked = [_ALL] if ids is None or len(ids) > MAX_MARKED else sorted(ids)
    await write(tx, {tenant_id: [f"{_OUTPUT}{id_}" for id_ in marked or [""]]})


async def write_credit(tx: Tx, tenant_id: str) -> None:
    """Record that this transaction credits tokens."""
    await write(tx, {tenant_id: [_WALLET]})


@cache
def _write(dialect: str) -> Executable:
    # SQLite has one writer, so the next number belongs to its transaction.
    txid = _number(func.pg_current_xact_id()) if dialect == "postgresql" else _next_number()
    return insert_rows(dialect, c, "tenant_id", "ids", txid=txid, created_at=relay_now())


def _number(xid: ColumnElement[Any]) -> ColumnElement[int]:
    return cast(cast(xid, Text()), BigInteger())


def _next_number() -> ColumnElement[int]:
    newest = c.alias("newest")
    last = select(newest.c.txid).order_by(newest.c.id.desc()).limit(1).scalar_subquery()
    return func.coalesce(last + 1, 1, type_=BigInteger())


async def horizon(tx: Tx) -> Horizon:
    (row,) = await tx.fetch(_horizon, {})
    return Horizon(row.txid, row.at)


@cache
def _horizon(dialect: str) -> Executable:
    is_postgres = dialect == "postgresql"
    txid = _number(func.pg_snapshot_xmin(func.pg_current_snapshot())) if is_postgres else _next_number()
    return select(txid.label("txid"), relay_now().label("at"))


async def since(tx: Tx, positions: Mapping[str, int], *, limit: int) -> list[JobChange]:
    """Return all changes of each tenant, starting at its transaction number. Read the horizon first, so that a commit
    in between is seen twice instead of never."""
    rows = with_rows({"tenant_id": tenant_id, "txid": txid} for tenant_id, txid in positions.items())
    found = await tx.fetch(since_query, {**rows, "limit": limit})
    return [_change(row.id, row.tenant_id, row.txid, json_value(row.ids)) for row in found]


def _change(id_: int, tenant_id: str, txid: int, ids: list[str]) -> JobChange:
    if _WALLET in ids:
        return JobChange(id_, tenant_id, txid, [], is_credit=True)
    outputs = {value.removeprefix(_OUTPUT) for value in ids if value.startswith(_OUTPUT)}
    if not outputs:
        return JobChange(id_, tenant_id, txid, ids)
    marked = MarkedOutputs(frozenset(outputs - {_ALL, ""}), _ALL in outputs)
    return JobChange(id_, tenant_id, txid, [value for value in ids if not value.startswith(_OUTPUT)], marked)


@cache
def since_query(dialect: str) -> Select[Any]:
    r = rows_table(dialect, columns_of(c, "tenant_id", "txid"))
    is_newer = (c.c.tenant_id == r.c.tenant_id) & (c.c.txid >= r.c.txid)
    query = select(c.c.id, c.c.tenant_id, c.c.txid, c.c.ids).join(r, is_newer)
    return query.limit(bindparam("limit", type_=BigInteger()))


async def delete_old(tx: Tx, *, older_than_seconds: float) -> None:
    """Delete old changes. The newest change is kept, because on SQLite it contains the last number."""
    newest = select(func.max(c.c.id)).scalar_subquery()
    await tx.execute(delete(c).where(c.c.created_at <= relay_now(-older_than_seconds), c.c.id < newest))
