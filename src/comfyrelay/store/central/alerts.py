"""The state of sent alerts, shared by all servers."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import select, update

from comfyrelay.store.central.tables.operations import alert_states as a
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import insert_into


class StoredAlerts(NamedTuple):
    """The state of a rule: when it last sent, the problems its receivers know, and the problems seen by each server."""

    last_sent_at: datetime | None
    told: Any
    seen: Mapping[str, Any]


async def lock(tx: Tx, rule: str) -> StoredAlerts:
    """Lock the state of a rule until the transaction ends. Creates it if needed."""
    new = insert_into(tx.dialect, a).values(rule=rule, told=[], seen={})
    await tx.execute(new.on_conflict_do_nothing())
    query = select(a.c.last_sent_at, a.c.told, a.c.seen).where(a.c.rule == rule).with_for_update()
    return StoredAlerts._make((await tx.execute(query)).one())


async def write(tx: Tx, rule: str, **values: Any) -> None:
    await tx.execute(update(a).where(a.c.rule == rule).values(**values))
