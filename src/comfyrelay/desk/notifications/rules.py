"""Decide which ended jobs and batches cause a notification."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from comfyrelay.domain.queue.queue_pause import pause_text
from comfyrelay.protocol.desk import NotificationEvent


@dataclass(frozen=True, kw_only=True, slots=True)
class Notification:
    """A notification. `batch_id` is set for a batch, so that its subscribers are notified as well."""

    event: NotificationEvent
    title: str
    body: str
    batch_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NotifiedJob:
    """A job that has ended. `name` is its display name."""

    name: str
    status: str
    completed_at: datetime
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NotifiedBatch:
    """A batch with its item counts by status. A retried item counts as its newest attempt.

    If the batch is held, `held` is the reason and `held_by` the failed job.
    """

    id: str
    name: str
    counts: Mapping[str, int]
    held: str | None = None
    held_by: str | None = None

    @property
    def is_over(self) -> bool:
        return not any(self.counts.get(status, 0) for status in ("queued", "processing", "paused"))


class NotificationRules:
    """Notifies once about each completed or failed job without a batch, each batch whose last item has ended, each
    failure that holds a batch, and a queue that is empty, or paused while nothing runs."""

    def __init__(self) -> None:
        # The time of the last notification by batch; the key `None` is the whole queue.
        self._notified_at: dict[str | None, datetime] = {}
        # By batch, the failure in the last notification about a held batch.
        self._held_by: dict[str, str | None] = {}

    def of_end(
        self, job: NotifiedJob, batch: NotifiedBatch | None, *, active: int, held: int = 0, read_at: datetime
    ) -> list[Notification]:
        """Return the notifications for a job that has ended. `batch` and `active`, the number of queued and running
        jobs, were read at `read_at`. `held` is the number of jobs that a paused queue holds while nothing runs."""
        found = []
        if batch is None:
            found += _job_notifications(job)
        elif batch.held is not None and not batch.is_over:
            if self._held_by.get(batch.id) == batch.held_by:
                return []
            self._held_by[batch.id] = batch.held_by
            # The queue may be empty now, but only because the batch is held.
            title = f"{batch.name} is held"
            return [Notification(event=NotificationEvent.FAILED, title=title, body=batch.held, batch_id=batch.id)]
        elif batch.is_over and self._is_new(batch.id, job, read_at):
            found += _batch_notifications(batch)
        if (held or not active) and self._is_new(None, job, read_at):
            title, text = ("The queue is paused", f"{pause_text(held)} ") if held else ("The queue is empty", "")
            body = f"{text}The last job was {job.name}."
            found.append(Notification(event=NotificationEvent.QUEUE_EMPTY, title=title, body=body))
        return found

    def _is_new(self, about: str | None, job: NotifiedJob, read_at: datetime) -> bool:
        """Whether no notification covers this job yet. A notification covers all jobs that ended before its data was
        read."""
        notified_at = self._notified_at.get(about)
        if notified_at is not None and job.completed_at <= notified_at:
            return False
        self._notified_at[about] = read_at
        return True


def _job_notifications(job: NotifiedJob) -> list[Notification]:
    if job.status == "completed":
        title, body = f"{job.name} is done", "Its output is ready."
        return [Notification(event=NotificationEvent.COMPLETED, title=title, body=body)]
    if job.status == "failed":
        body = job.error or "No reason was given."
        return [Notification(event=NotificationEvent.FAILED, title=f"{job.name} failed", body=body)]
    return []


def _batch_notifications(batch: NotifiedBatch) -> list[Notification]:
    completed, failed = batch.counts.get("completed", 0), batch.counts.get("failed", 0)
    if not completed and not failed:
        return []
    summary = ", ".join(f"{count} {status}" for status, count in batch.counts.items() if count)
    return [
        Notification(
            event=NotificationEvent.FAILED if failed else NotificationEvent.COMPLETED,
            title=f"{batch.name} is done{f', but {failed} failed' if failed else ''}",
            body=f"{summary[0].upper()}{summary[1:]}.",
            batch_id=batch.id,
        )
    ]
