"""Token wallets and their append-only transactions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import NamedTuple

from sqlalchemy import BigInteger, Text, bindparam, case, func, literal, literal_column, select, update
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.states import TransactionType
from comfyrelay.domain.records.accounts import TransactionRecord
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import newest
from comfyrelay.store.row_parameters import (
    Insert,
    ids_table,
    insert_rows,
    insert_selected,
    rows_table,
    select_by_ids,
    with_ids,
    with_rows,
)
from comfyrelay.store.tenant.tables import ai_jobs, token_wallets
from comfyrelay.store.tenant.tables import token_transactions as t
from comfyrelay.store.types import relay_now


@dataclass(frozen=True, kw_only=True, slots=True)
class NewTransaction:
    tenant_id: str
    type: TransactionType
    amount: int
    job_id: str | None = None
    reference: str | None = None
    description: str | None = None
    # Of a consumed or refunded job.
    effect_id: int | None = None


async def open_wallets(tx: Tx, tenant_ids: Iterable[str]) -> None:
    await tx.write(_open_wallets, with_ids(sorted(set(tenant_ids))))


@cache
def _open_wallets(dialect: str) -> Executable:
    rows = select(ids_table(dialect, Text).c.id, literal(0), relay_now())
    query = insert_selected(dialect, token_wallets, ["tenant_id", "balance", "updated_at"], rows)
    return query.on_conflict_do_nothing()


class LockedWallet(NamedTuple):
    """The balance of a wallet. Owed tokens belong to a refunded payment, but had already been spent."""

    balance: int
    owed: int

    @property
    def spendable(self) -> int:
        return max(0, self.balance - self.owed)


async def lock(tx: Tx, tenant_id: str) -> LockedWallet:
    """Lock a wallet until the transaction ends. Creates the wallet if needed."""
    rows = await tx.fetch(_lock_wallet, {"tenant_id": tenant_id})
    if not rows:
        await open_wallets(tx, [tenant_id])
        rows = await tx.fetch(_lock_wallet, {"tenant_id": tenant_id})
    return LockedWallet(balance=int(rows[0].balance), owed=int(rows[0].owed_tokens))


async def lock_wallet(tx: Tx, tenant_id: str) -> int:
    """Lock a wallet like `lock`, and return the balance."""
    return (await lock(tx, tenant_id)).balance


async def set_owed(tx: Tx, tenant_id: str, owed: int) -> None:
    query = update(token_wallets).where(token_wallets.c.tenant_id == tenant_id)
    await tx.execute(query.values(owed_tokens=owed, updated_at=relay_now()))


@cache
def _lock_wallet(_dialect: str) -> Executable:
    own = token_wallets.c.tenant_id == bindparam("tenant_id", type_=Text())
    return select(token_wallets.c.balance, token_wallets.c.owed_tokens).where(own).with_for_update()


async def take_space(tx: Tx, tenant_id: str, more_bytes: int) -> int:
    """Change the space that a tenant takes up, and return the new total. The wallet must exist."""
    own = token_wallets.c.tenant_id == tenant_id
    query = update(token_wallets).where(own).values(space_bytes=token_wallets.c.space_bytes + more_bytes)
    return int(await tx.scalar(query.returning(token_wallets.c.space_bytes)) or 0)


async def lock_wallets(tx: Tx, tenant_ids: Iterable[str]) -> None:
    """Lock several wallets in order of tenant, so that settlements cannot deadlock."""
    await tx.fetch(_lock_wallets, with_ids(sorted(set(tenant_ids))))


@cache
def _lock_wallets(dialect: str) -> Executable:
    key = token_wallets.c.tenant_id
    return select_by_ids(dialect, key, key).order_by(key).with_for_update(of=token_wallets)


async def append(tx: Tx, entries: Sequence[NewTransaction]) -> int:
    """Insert the transactions that do not exist yet, and update the balances. Return the number of inserted ones.

    The wallets must be locked. A transaction exists if one has the same job and type or the same reference, or if the
    job is already settled.
    """
    written = await tx.fetch(_append, with_rows(entries))
    sums: dict[str, int] = {}
    for tenant_id, amount in written:
        sums[tenant_id] = sums.get(tenant_id, 0) + amount
    await _add_to_balances(tx, sums)
    return len(written)


async def append_new(tx: Tx, tenant_id: str, entries: Sequence[NewTransaction]) -> None:
    """Append transactions of new jobs. Unlike in `append`, none of them can exist yet, so nothing is read."""
    await tx.write(_insert, with_rows(entries))
    await _add_to_balances(tx, {tenant_id: sum(entry.amount for entry in entries)})


async def _add_to_balances(tx: Tx, sums: Mapping[str, int]) -> None:
    changes = [{"tenant_id": tenant_id, "amount": amount} for tenant_id, amount in sorted(sums.items()) if amount]
    if changes:
        await tx.write(_change_balances, with_rows(changes))


@cache
def _append(dialect: str) -> Executable:
    return _insert(dialect).on_conflict_do_nothing().returning(t.c.tenant_id, t.c.amount)


@cache
def _insert(dialect: str) -> Insert:
    return insert_rows(dialect, t, *NewTransaction.__dataclass_fields__, created_at=relay_now())


@cache
def _change_balances(dialect: str) -> Executable:
    r = rows_table(dialect, {"tenant_id": Text(), "amount": BigInteger()})
    return (
        update(token_wallets)
        .values(balance=token_wallets.c.balance + r.c.amount, updated_at=relay_now())
        .where(token_wallets.c.tenant_id == r.c.tenant_id)
    )


async def balance(tx: Tx, tenant_id: str) -> int:
    return (await balances(tx, [tenant_id])).get(tenant_id, 0)


async def balances(tx: Tx, tenant_ids: Iterable[str]) -> dict[str, int]:
    query = select(token_wallets).where(token_wallets.c.tenant_id.in_(set(tenant_ids)))
    return {row.tenant_id: row.balance for row in await tx.execute(query)}


async def owed(tx: Tx, tenant_id: str) -> int:
    found = await tx.scalar(select(token_wallets.c.owed_tokens).where(token_wallets.c.tenant_id == tenant_id))
    return int(found or 0)


async def by_reference(tx: Tx, tenant_id: str, reference: str) -> TransactionRecord | None:
    query = select(t).where(t.c.tenant_id == tenant_id, t.c.reference == reference)
    return await tx.one_or_none(TransactionRecord, query)


async def transactions(
    tx: Tx, tenant_id: str, *, limit: int = 100, before_id: int | None = None
) -> list[TransactionRecord]:
    """Return a page of transactions, newest first."""
    query = select(t, ai_jobs.c.label.label("job_label")).outerjoin(ai_jobs, ai_jobs.c.id == t.c.job_id)
    page = newest(query.where(t.c.tenant_id == tenant_id), t.c.id, before=before_id, limit=limit)
    return await tx.all(TransactionRecord, page)


async def of_jobs(tx: Tx, job_ids: Iterable[str]) -> dict[str, list[TransactionRecord]]:
    found: dict[str, list[TransactionRecord]] = {}
    for row in await tx.fetch(_of_jobs, with_ids(job_ids)):
        found.setdefault(row.job_id, []).append(TransactionRecord(**row._mapping))
    return found


@cache
def _of_jobs(dialect: str) -> Executable:
    return select_by_ids(dialect, t.c.job_id, t)


async def refunds_of(tx: Tx, job_ids: Iterable[str]) -> dict[str, int]:
    """Return the refunded tokens by job."""
    refunds = {TransactionType.JOB_REFUND, TransactionType.JOB_CREDIT}
    return {
        job_id: sum(entry.amount for entry in entries if entry.type in refunds)
        for job_id, entries in (await of_jobs(tx, job_ids)).items()
    }


async def revenue_by(tx: Tx, column: str, *, begins: datetime, ends: datetime) -> dict[str, tuple[int, int]]:
    """Return the number of consumed jobs and their tokens by day, tenant or effect, without refunded tokens."""
    reserve = t.alias("reserve")
    day = (
        func.to_char(func.timezone("UTC", t.c.created_at), "YYYY-MM-DD")
        if tx.dialect == "postgresql"
        else func.substr(t.c.created_at, 1, 10)
    )
    key = {"day": day, "tenant_id": t.c.tenant_id, "effect_id": func.coalesce(t.c.effect_id, 0)}[column].label("key")
    is_consumed = t.c.type == TransactionType.JOB_CONSUME
    jobs = func.sum(case((is_consumed, 1), else_=0)).label("jobs")
    tokens = func.sum(case((is_consumed, -reserve.c.amount), else_=0) - t.c.amount).label("tokens")
    of_same_job = (
        (reserve.c.tenant_id == t.c.tenant_id)
        & (reserve.c.job_id == t.c.job_id)
        & (reserve.c.type == TransactionType.JOB_RESERVE)
    )
    query = (
        select(key, jobs, tokens)
        .join_from(t, reserve, of_same_job)
        .where(
            t.c.type.in_([TransactionType.JOB_CONSUME, TransactionType.JOB_CREDIT]),
            t.c.created_at >= begins,
            t.c.created_at < ends,
        )
        .group_by(literal_column("key") if tx.dialect == "sqlite" else literal_column("1"))
    )
    return {str(row.key): (int(row.jobs), int(row.tokens)) for row in await tx.execute(query)}


async def drifted_wallets(tx: Tx) -> dict[str, tuple[int, int]]:
    """Return wallets whose balance differs from the sum of their transactions: tenant → (balance, sum)."""
    w = token_wallets
    total = func.coalesce(func.sum(t.c.amount), 0)
    query = (
        select(w.c.tenant_id, w.c.balance, total.label("total"))
        .outerjoin(t, t.c.tenant_id == w.c.tenant_id)
        .group_by(w.c.tenant_id, w.c.balance)
        .having(w.c.balance != total)
    )
    return {row.tenant_id: (row.balance, int(row.total)) for row in await tx.execute(query)}


async def transactions_without_job(tx: Tx, *, limit: int) -> list[TransactionRecord]:
    """Return unsettled reservations whose job does not exist."""
    other = t.alias("settlement")
    is_settlement = other.c.type.in_((TransactionType.JOB_CONSUME, TransactionType.JOB_REFUND))
    is_settled = select(other.c.id).where(other.c.job_id == t.c.job_id, is_settlement).exists()
    query = (
        select(t)
        .outerjoin(ai_jobs, ai_jobs.c.id == t.c.job_id)
        .where(t.c.type == TransactionType.JOB_RESERVE, ai_jobs.c.id.is_(None), ~is_settled)
        .limit(limit)
    )
    return await tx.all(TransactionRecord, query)


async def set_balance(tx: Tx, tenant_id: str, balance: int) -> None:
    query = update(token_wallets).where(token_wallets.c.tenant_id == tenant_id)
    await tx.execute(query.values(balance=balance, updated_at=relay_now()))
