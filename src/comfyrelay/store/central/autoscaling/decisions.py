"""Autoscaling decisions and their reasons."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select, delete, insert, select, tuple_, update

from comfyrelay.domain.autoscaling.machines import ScalingDecision
from comfyrelay.store.central.tables.autoscaling import autoscaling_decisions as s
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import page_of
from comfyrelay.store.types import relay_now

MAX_ID = 2**63 - 1
_DECISION = [s.c[name] for name in ScalingDecision.__dataclass_fields__]


async def record(tx: Tx, **values: Any) -> int:
    query = insert(s).values(**values, created_at=relay_now()).returning(s.c.id)
    return int((await tx.execute(query)).scalar_one())


async def note_outcome(tx: Tx, decision_id: int, outcome: Mapping[str, Any]) -> None:
    await tx.execute(update(s).where(s.c.id == decision_id).values(outcome=dict(outcome)))


def newest_query(fleet_id: int, *, before_id: int | None, limit: int) -> Select[Any]:
    """Return the query, which compares and orders by the columns of the index. With a plain condition on the fleet, the
    planner may scan the decisions of all fleets by id."""
    before = MAX_ID if before_id is None else before_id
    return (
        select(*_DECISION)
        .where(tuple_(s.c.fleet_id, s.c.id) < tuple_(fleet_id, before), s.c.fleet_id >= fleet_id)
        .order_by(s.c.fleet_id.desc(), s.c.id.desc())
        .limit(limit)
    )


async def page(
    tx: Tx, fleet_id: int, *, before_id: int | None = None, limit: int
) -> tuple[list[ScalingDecision], int | None]:
    """Return a page, newest first, and the id of the next page."""
    query = newest_query(fleet_id, before_id=before_id, limit=limit + 1)
    return page_of((await tx.execute(query)).all(), ScalingDecision, "id", limit=limit)


async def latest(tx: Tx, fleet_id: int) -> ScalingDecision | None:
    found, _ = await page(tx, fleet_id, limit=1)
    return found[0] if found else None


async def forget_old(tx: Tx, fleet_id: int, *, keep: int) -> int:
    """Delete all but the newest `keep` decisions of a fleet. Return the number of deleted ones."""
    ordered = select(s.c.id).where(s.c.fleet_id == fleet_id).order_by(s.c.id.desc())
    oldest_kept = await tx.scalar(ordered.offset(keep - 1).limit(1))
    if oldest_kept is None:
        return 0
    query = delete(s).where(s.c.fleet_id == fleet_id, s.c.id < oldest_kept).returning(s.c.id)
    return len((await tx.execute(query)).all())
