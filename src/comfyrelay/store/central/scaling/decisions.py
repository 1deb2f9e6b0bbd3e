"""What was decided for fleets, and why."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select, delete, insert, select, update

from comfyrelay.domain.scaling.machines import ScalingDecision
from comfyrelay.store.central.tables import scaling_decisions as s
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import newest_first
from comfyrelay.store.types import relay_now

_DECISION = [s.c[name] for name in ScalingDecision.__dataclass_fields__]


async def record(tx: Tx, **values: Any) -> int:
    query = insert(s).values(**values, created_at=relay_now()).returning(s.c.id)
    return int((await tx.execute(query)).scalar_one())


async def note_outcome(tx: Tx, decision_id: int, outcome: Mapping[str, Any]) -> None:
    await tx.execute(update(s).where(s.c.id == decision_id).values(outcome=dict(outcome)))


def of_fleet_query(fleet_id: int) -> Select[Any]:
    return select(*_DECISION).where(s.c.fleet_id == fleet_id)


async def page(
    tx: Tx, fleet_id: int, *, before_id: int | None = None, limit: int
) -> tuple[list[ScalingDecision], int | None]:
    """The newest first, and the id to go on before."""
    query = of_fleet_query(fleet_id)
    if before_id is not None:
        query = query.where(s.c.id < before_id)
    rows, before = await newest_first(tx, query, s.c.id, limit=limit)
    return [ScalingDecision(**row._mapping) for row in rows], before


async def latest(tx: Tx, fleet_id: int) -> ScalingDecision | None:
    found, _ = await page(tx, fleet_id, limit=1)
    return found[0] if found else None


async def forget_old(tx: Tx, fleet_id: int, *, keep: int) -> int:
    """Keep the newest of a fleet; returns how many were removed."""
    ordered = select(s.c.id).where(s.c.fleet_id == fleet_id).order_by(s.c.id.desc())
    oldest_kept = await tx.scalar(ordered.offset(keep - 1).limit(1))
    if oldest_kept is None:
        return 0
    query = delete(s).where(s.c.fleet_id == fleet_id, s.c.id < oldest_kept).returning(s.c.id)
    return len((await tx.execute(query)).all())
