"""Send notifications in the background. A failure never affects a job.

A file records the end of the last job that was notified. After the desk was killed, its next start sends the
notifications about later jobs.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import structlog

from comfyrelay.clock import utc_now
from comfyrelay.desk.notifications.notifier import Notifier
from comfyrelay.desk.notifications.rules import Notification, NotificationRules, NotifiedBatch, NotifiedJob
from comfyrelay.domain.queue.settlement import JobState
from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.jobs import BatchRecord, JobRecord
from comfyrelay.protocol.desk import FailedNotification
from comfyrelay.protocol.jobs import QueueCounts
from comfyrelay.services.engine import Engine
from comfyrelay.services.jobs.ended_jobs import EndedJobs
from comfyrelay.system import atomic
from comfyrelay.wakeup import Wakeup

log = structlog.get_logger(__name__)

# A stopping desk waits this long for pending notifications.
FLUSH_SECONDS = 5.0
MAX_REMEMBERED = 10
# In the data folder: the end of the last job that was notified.
NOTIFIED_FILE = ".notified-until"


class NotificationSender:
    def __init__(self, notifier: Notifier, *, state: Path) -> None:
        """`state` is the file with the end of the last job that was notified."""
        self._notifier = notifier
        self._state = state
        self._rules = NotificationRules()
        self._ended: list[str] = []
        self._has_ended = Wakeup()
        self._idle = asyncio.Event()
        self._idle.set()
        self.not_sent: deque[FailedNotification] = deque(maxlen=MAX_REMEMBERED)

    def configure(self, notifier: Notifier) -> None:
        """Use other URLs or events from now on."""
        self._notifier = notifier

    @asynccontextmanager
    async def sending(self, engine: Engine, user: User) -> AsyncIterator[None]:
        """Send inside the block, and briefly wait for pending notifications at its end."""
        await self._find_missed(engine, user)
        task = asyncio.create_task(self._run(engine, user))
        try:
            yield
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._idle.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def job_ended(self, ended: Sequence[JobState]) -> None:
        self._ended += (job.id for job in ended)
        self._idle.clear()
        self._has_ended.notify()

    async def _find_missed(self, engine: Engine, user: User) -> None:
        """Send missed notifications about jobs that ended before the desk was killed."""
        until = await asyncio.to_thread(_read, self._state)
        if until is None:
            await self._record(utc_now())
        elif missed := await engine.jobs.ended_jobs.ended_after(user.tenant_id, until):
            self._ended += missed
            self._idle.clear()
            self._has_ended.notify()

    async def _record(self, until: datetime) -> None:
        try:
            await asyncio.to_thread(atomic.write, self._state, until.isoformat().encode(), mode=0o600)
        except OSError as error:
            log.warning("desk.notification_not_recorded", why=error.strerror)

    async def _run(self, engine: Engine, user: User) -> None:
        while True:
            await self._has_ended.wait()
            # A job that ended while the missed jobs were read is in the list twice.
            ended, self._ended = list(dict.fromkeys(self._ended)), []
            try:
                await self._notify(engine, user, ended)
            except Exception:
                # The next job is notified anyway.
                log.exception("desk.notifying_failed")
            if not self._ended:
                self._idle.set()

    async def _notify(self, engine: Engine, user: User, job_ids: Sequence[str]) -> None:
        ended = await engine.jobs.ended_jobs.load(user.tenant_id, user.id, job_ids)
        queue = QueueCounts.of(await engine.jobs.overview.summary(user.tenant_id, limit=1))
        held = 0 if queue.counts.get(JobStatus.PROCESSING) else queue.held
        # Taken after the query, so that no job found has ended later.
        read_at = utc_now()
        for job in _notifiable(ended.jobs):
            batch = ended.batches.get(job.batch_id or "")
            notified = _notified_batch(batch, ended.counts.get(batch.id, {})) if batch else None
            for notification in self._rules.of_end(
                _notified_job(job), notified, active=ended.active, held=held, read_at=read_at
            ):
                await self._send(notification, ended)
        if ended.jobs:
            last = ended.jobs[-1]
            await self._record(last.completed_at or last.created_at)

    async def _send(self, notification: Notification, ended: EndedJobs) -> None:
        urls = ended.batches[notification.batch_id].notify_urls if notification.batch_id else ()
        for failure in await self._notifier.notify(notification, urls or ()):
            self.not_sent.append(FailedNotification(at=utc_now(), url=failure.url, why=failure.why))
            log.warning("desk.notification_not_sent", url=failure.url, why=failure.why, about=notification.title)


def _read(state: Path) -> datetime | None:
    try:
        return datetime.fromisoformat(state.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def _notifiable(jobs: Sequence[JobRecord]) -> Iterator[JobRecord]:
    """Yield the jobs, but only the last one of each batch."""
    last = {job.batch_id: job.id for job in jobs}
    return (job for job in jobs if job.batch_id is None or last[job.batch_id] == job.id)


def _notified_job(job: JobRecord) -> NotifiedJob:
    return NotifiedJob(
        name=_name(job.label, job.id),
        status=job.status,
        completed_at=job.completed_at or job.created_at,
        error=job.error_message,
    )


def _notified_batch(batch: BatchRecord, counts: Mapping[str, int]) -> NotifiedBatch:
    return NotifiedBatch(
        id=batch.id,
        name=_name(batch.label, batch.id),
        counts=counts,
        held=batch.held_text,
        held_by=batch.held["by"] if batch.held else None,
    )


def _name(label: str | None, id_: str) -> str:
    # Tables also show the end of an id.
    return label or id_[-8:]
