"""Entries of the queue view: a batch or a single job with its items, counts and wait reason."""

from collections.abc import Container, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from comfyrelay.domain.queue.states import TERMINAL_JOB, JobStatus, UnitStatus, finished_status, shown_status
from comfyrelay.domain.queue.wait_reasons import Waiting
from comfyrelay.domain.records.catalogue import WorkflowRecord
from comfyrelay.domain.records.jobs import JobRecord, Unit
from comfyrelay.protocol.jobs import QueueEntry, QueueItem
from comfyrelay.services.jobs.batches import BatchState
from comfyrelay.services.jobs.views.media import ShownMedia
from comfyrelay.services.jobs.views.overview import JOB_STATUS
from comfyrelay.store.tenant.units import BatchItem, BatchSummary

# Number of items per batch that the list shows. The other items are on further pages.
MAX_ITEMS = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueOrder:
    """Order and status of units that have not ended."""

    active: Set[Unit]
    running: Sequence[Unit]
    waiting: Sequence[Unit]
    # Units with at least one queued or paused job.
    queued: frozenset[Unit]
    paused: frozenset[Unit]
    # By job: the seconds for which it has been running.
    seconds: Mapping[str, float]
    # By job that a worker has leased to run next: its unit.
    fetched: Mapping[str, Unit]

    def status_of(self, unit: Unit) -> UnitStatus | None:
        """Return the status of a unit, or `None` if it has ended."""
        if unit not in self.active:
            return None
        if unit in self.running:
            return UnitStatus.RUNNING
        return UnitStatus.PAUSED if unit in self.paused and unit not in self.queued else UnitStatus.WAITING


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitRows:
    """Rows for the entries of several units, by the id of the batch or job."""

    states: Mapping[str, BatchState]
    summaries: Mapping[str, BatchSummary]
    singles: Mapping[str, JobRecord]
    errors: Mapping[str, str | None]
    items: Mapping[str, Sequence[BatchItem]]
    retries: Mapping[str, str]
    workflows: Mapping[int, WorkflowRecord]
    # Mean run time in seconds, by workflow.
    means: Mapping[int, float]
    reasons: Mapping[str, Waiting]
    # Number of matching jobs per batch. `None` if `BatchState.counts` is enough.
    matched: Mapping[str, int] | None
    # Media URLs by file id.
    media: Mapping[str, ShownMedia]


def batch_entry(unit: Unit, rows: UnitRows, order: QueueOrder, filtered: UnitStatus | None) -> QueueEntry:
    """Build the entry of a batch. `filtered` is the status that the list is filtered by."""
    status = order.status_of(unit)
    state, summary, items = rows.states[unit.id], rows.summaries[unit.id], rows.items.get(unit.id, ())
    shared = _shared_fields(unit, summary.workflow_id, state.counts, rows, fetched=state.fetched, filtered=filtered)
    if rows.matched is not None:
        shared["matched"] = rows.matched.get(unit.id, 0)
    return QueueEntry(
        **shared,
        is_batch=True,
        label=state.label,
        first_label=next((item.label for item in items), None),
        status=status or finished_status(state.counts),
        total=state.total,
        held=state.held,
        expected_seconds=state.expected_seconds,
        priority=summary.priority,
        created_at=state.created_at,
        ended_at=summary.ended_at if status is None else None,
        took_seconds=_seconds_between(summary.started_at, summary.ended_at) if status is None else None,
        error=rows.errors.get(unit.id),
        retried_as=None,
        items=[queue_item(item, rows.media, order.fetched) for item in items],
        next_cursor=str(MAX_ITEMS - 1) if state.total > len(items) else None,
    )


def job_entry(unit: Unit, rows: UnitRows, order: QueueOrder, filtered: UnitStatus | None) -> QueueEntry:
    """Build the entry of a single job."""
    status = order.status_of(unit)
    job = rows.singles[unit.id]
    is_fetched = job.id in order.fetched
    counts: dict[str, int] = {shown_status(job.status, is_prefetched=is_fetched): 1}
    mean = rows.means.get(job.workflow_id)
    has_ended = job.status in TERMINAL_JOB
    return QueueEntry(
        **_shared_fields(unit, job.workflow_id, counts, rows, fetched=int(is_fetched), filtered=filtered),
        is_batch=False,
        label=job.label,
        first_label=None,
        status=status if status is not None and not has_ended else finished_status(counts),
        total=1,
        held=None,
        expected_seconds=None if has_ended or mean is None else max(0.0, mean - order.seconds.get(job.id, 0.0)),
        priority=job.priority,
        created_at=job.created_at,
        ended_at=job.completed_at,
        took_seconds=_seconds_between(job.started_at, job.completed_at),
        error=job.error_message,
        retried_as=rows.retries.get(job.id),
        items=[queue_item(job, rows.media, order.fetched)],
        next_cursor=None,
    )


def queue_item(item: BatchItem | JobRecord, facts: Mapping[str, ShownMedia], fetched: Container[str]) -> QueueItem:
    """Build an item of an entry."""
    output, source = facts.get(item.output_file_id or ""), facts.get(item.input_file_id or "")
    return QueueItem(
        id=item.id,
        item_no=item.item_no,
        status=shown_status(item.status, is_prefetched=item.id in fetched),
        error=item.error_message,
        poster_url=output.poster_url if output else None,
        preview_url=output.preview_url if output else None,
        input_poster_url=source.poster_url if source else None,
    )


def _seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    return None if start is None or end is None else (end - start).total_seconds()


def _shared_fields(
    unit: Unit,
    workflow_id: int,
    counts: Mapping[str, int],
    rows: UnitRows,
    *,
    fetched: int,
    filtered: UnitStatus | None,
) -> dict[str, Any]:
    """Return the fields that batches and jobs have in common."""
    workflow, waiting = rows.workflows.get(workflow_id), rows.reasons.get(unit.id)
    return {
        "id": unit.id,
        "workflow_slug": workflow.slug if workflow else None,
        "workflow_name": workflow.name if workflow else None,
        "kind": workflow.output_mime_type.partition("/")[0] if workflow else None,
        "matched": sum(counts.values()) if filtered is None else counts.get(JOB_STATUS.get(filtered, filtered), 0),
        "counts": {status: counts.get(status, 0) for status in JobStatus},
        "fetched": fetched,
        "starts_in_seconds": waiting.expected_start_seconds if waiting else None,
        "waiting_text": waiting.text if waiting else None,
        "waiting_reason": waiting.reason if waiting else None,
    }
