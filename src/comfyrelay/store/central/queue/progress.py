"""The progress of leased dispatches: as reported, or estimated if the worker reports none."""

from typing import Any

from sqlalchemy import ColumnElement, func, select

from comfyrelay.domain.queue.progress import with_estimate
from comfyrelay.store.central.tables.autoscaling import workflow_durations
from comfyrelay.store.central.tables.catalogue import effects
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.types import json_value, relay_now

# The columns that `progress_in` needs.
PROGRESS_COLUMNS = (d.c.progress, d.c.is_prefetch, d.c.leased_at, d.c.expected_seconds, relay_now().label("now"))


def progress_in(row: Any) -> Any:
    """Return the progress in a row with the columns above."""
    return with_estimate(
        json_value(row.progress),
        is_prefetch=bool(row.is_prefetch),
        leased_at=row.leased_at,
        expected_seconds=row.expected_seconds,
        now=row.now,
    )


def last_processing_time() -> ColumnElement[Any]:
    """Return the duration of the last job with the same effect, or the mean duration of the workflow."""
    of_effect = select(effects.c.last_processing_time_seconds).where(effects.c.id == d.c.effect_id)
    mean = select(workflow_durations.c.mean_seconds).where(
        workflow_durations.c.workflow_id == d.c.workflow_id, workflow_durations.c.effect_id == 0
    )
    return func.coalesce(of_effect.correlate(d).scalar_subquery(), mean.correlate(d).scalar_subquery())
