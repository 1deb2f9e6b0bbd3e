"""Erase the data of a deleted account. Its ledger is kept for the operator's accounting, without texts."""

from sqlalchemy import delete, select, update

from comfyrelay.store.database import Tx
from comfyrelay.store.tenant.tables import ai_jobs, metadata, token_transactions, token_wallets

KEPT = (token_wallets, token_transactions)
# Referring tables first.
_ERASED = [table for table in reversed(metadata.sorted_tables) if "tenant_id" in table.c and table not in KEPT]
TABLES = tuple(table.name for table in _ERASED)


async def unfinished_jobs(tx: Tx, tenant_id: str, *, limit: int) -> list[str]:
    query = select(ai_jobs.c.id).where(ai_jobs.c.tenant_id == tenant_id, ai_jobs.c.completed_at.is_(None))
    return await tx.scalars(query.limit(limit))


async def erase_rows(tx: Tx, tenant_id: str) -> None:
    """Delete all rows of a tenant, except its ledger."""
    for table in _ERASED:
        await tx.execute(delete(table).where(table.c.tenant_id == tenant_id))
    of_tenant = token_wallets.c.tenant_id == tenant_id
    await tx.execute(update(token_wallets).where(of_tenant).values(space_bytes=0))
    described = (token_transactions.c.tenant_id == tenant_id) & token_transactions.c.description.is_not(None)
    await tx.execute(update(token_transactions).where(described).values(description=None))
