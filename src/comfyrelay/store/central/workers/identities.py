"""Instances that registered with their identity document, and the hashes of their registration keys."""

from datetime import datetime

from sqlalchemy import insert, select

from comfyrelay.store.central.tables.workers import instance_identities as i
from comfyrelay.store.database import Tx
from comfyrelay.store.types import relay_now


async def known(tx: Tx, instance_id: str) -> tuple[datetime, str | None]:
    """Return the time, and the key hash of an instance if it is known. The caller holds the requirements lock."""
    query = select(i.c.registration_key_hash).where(i.c.instance_id == instance_id)
    return await tx.now(), await tx.scalar(query)


async def add(tx: Tx, instance_id: str, *, account_id: str, key_hash: str) -> None:
    query = insert(i).values(instance_id=instance_id, account_id=account_id, registration_key_hash=key_hash)
    await tx.execute(query.values(created_at=relay_now()))
