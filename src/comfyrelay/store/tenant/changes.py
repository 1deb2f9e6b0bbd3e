"""Which jobs transactions have changed, which outputs they marked, and that tokens came, for those who follow a tenant.

Each row has the number of its transaction. Transactions commit in any order, so whoever has read up to some row has not
seen all before it. What is certain is the horizon: every transaction with a smaller number has ended. So one reads from
the last horizon on, and may see a row again, but misses none.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Select, Text, bindparam, cast, delete, func, insert, select
from sqlalchemy.sql import Executable

from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import columns_of, rows_table, with_rows
from comfyrelay.store.tenant.tables import changes as c
from comfyrelay.store.types import json_value, relay_now

# Before the id of an output among those of jobs.
_OUTPUT = "output:"
# Among the ids of jobs: tokens came that are of no job.
_WALLET = "wallet:"
# In place of ids: any of them may have changed.
_ALL = "*"
# Of one transaction; of more, all count as marked.
MOST_MARKED = 200


class Horizon(NamedTuple):
    """All transactions with a smaller number have ended; and what time it was."""

    txid: int
    at: datetime


class JobChange(NamedTuple):
    id: int
    tenant_id: str
    txid: int
    # of jobs; of one that was removed, its batch's too
    ids: list[str]
    # of outputs; nothing where none was marked
    marked: "MarkedOutputs | None" = None
    # tokens came to the wallet
    is_credit: bool = False


class MarkedOutputs(NamedTuple):
    """Outputs whose stars, rejects, notes or collections changed; without any, the collections alone did."""

    ids: frozenset[str]
    is_all: bool

    def __or__(self, other: "MarkedOutputs") -> "MarkedOutputs":
        return MarkedOutputs(self.ids | other.ids, self.is_all or other.is_all)


async def write(tx: Tx, ids: Mapping[str, Iterable[str]]) -> None:
    """These jobs, by tenant, change with this transaction."""
    await tx.write(_write, with_rows({"tenant_id": tenant, "ids": list(theirs)} for tenant, theirs in ids.items()))


async def write_marked(tx: Tx, tenant_id: str, ids: Collection[str] | None = ()) -> None:
    """Marks of these outputs change with this transaction, or of all where that is None; or collections alone."""
    named = [_ALL] if ids is None or len(ids) > MOST_MARKED else sorted(ids)
    await write(tx, {tenant_id: [f"{_OUTPUT}{each}" for each in named or [""]]})


async def write_credit(tx: Tx, tenant_id: str) -> None:
    """Tokens come to the wallet with this transaction."""
    await write(tx, {tenant_id: [_WALLET]})


@cache
def _write(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(c, "tenant_id", "ids"))
    # SQLite has one writer at a time, so the next number is its transaction's
    txid = _number(func.pg_current_xact_id()) if dialect == "postgresql" else _next_number()
    rows = select(r.c.tenant_id, txid, r.c.ids, relay_now())
    return insert(c).from_select(["tenant_id", "txid", "ids", "created_at"], rows)


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
    """By tenant, all from that transaction on. The horizon must have been read before: what commits in between is then
    seen twice, and not never."""
    rows = [{"tenant_id": tenant, "txid": txid} for tenant, txid in positions.items()]
    found = await tx.fetch(_since, {**with_rows(rows), "limit": limit})
    return [_change(row.id, row.tenant_id, row.txid, json_value(row.ids)) for row in found]


def _change(id_: int, tenant_id: str, txid: int, ids: list[str]) -> JobChange:
    outputs = {each.removeprefix(_OUTPUT) for each in ids if each.startswith(_OUTPUT)}
    if _WALLET in ids:
        return JobChange(id_, tenant_id, txid, [], is_credit=True)
    if not outputs:
        return JobChange(id_, tenant_id, txid, ids)
    marked = MarkedOutputs(frozenset(outputs - {_ALL, ""}), _ALL in outputs)
    return JobChange(id_, tenant_id, txid, [each for each in ids if not each.startswith(_OUTPUT)], marked)


@cache
def _since(dialect: str) -> Executable:
    return since_query(dialect)


def since_query(dialect: str) -> Select[Any]:
    r = rows_table(dialect, columns_of(c, "tenant_id", "txid"))
    newer = (c.c.tenant_id == r.c.tenant_id) & (c.c.txid >= r.c.txid)
    query = select(c.c.id, c.c.tenant_id, c.c.txid, c.c.ids).join(r, newer)
    return query.limit(bindparam("limit", type_=BigInteger()))


async def forget(tx: Tx, *, older_than_seconds: float) -> None:
    """The newest stays: on SQLite it holds the last number."""
    newest = select(func.max(c.c.id)).scalar_subquery()
    await tx.execute(delete(c).where(c.c.created_at <= relay_now(-older_than_seconds), c.c.id < newest))
