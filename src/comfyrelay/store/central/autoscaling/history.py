"""Completed dispatches of a fleet, newest first."""

from collections.abc import Collection
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, select

from comfyrelay.domain.queue.states import DispatchStatus
from comfyrelay.store.central.tables.catalogue import workflows
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.database import Tx
from comfyrelay.store.types import sql_literal


class PastJobRow(NamedTuple):
    id: int
    created_at: datetime
    duration_seconds: float
    workflow: str
    # Identifies the required nodes and models.
    workflow_hash: str


def completed_query(stage: str, workflow_ids: Collection[int], *, before: int, limit: int) -> Select[Any]:
    """Return the query. It reads backwards along the primary key, newest dispatches first."""
    return (
        select(d.c.id, d.c.created_at, d.c.duration_seconds, workflows.c.slug.label("workflow"), d.c.workflow_hash)
        .join(workflows, workflows.c.id == d.c.workflow_id)
        .where(
            d.c.id < before,
            d.c.status == sql_literal(DispatchStatus.COMPLETED),
            d.c.stage == stage,
            d.c.workflow_id.in_(sorted(workflow_ids)),
            d.c.duration_seconds.is_not(None),
        )
        .order_by(d.c.id.desc())
        .limit(limit)
    )


async def completed(tx: Tx, stage: str, workflow_ids: Collection[int], *, before: int, limit: int) -> list[PastJobRow]:
    return await tx.all(PastJobRow, completed_query(stage, workflow_ids, before=before, limit=limit))
