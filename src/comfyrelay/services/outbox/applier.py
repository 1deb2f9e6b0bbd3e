"""Apply job updates to a shard. One transaction writes job, attempts, events, tokens, video and output."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from comfyrelay.domain.gallery import output_kind
from comfyrelay.domain.queue.settlement import CANCELED_TEXT, JobState, Settled, apply_updates, video_status_of
from comfyrelay.domain.queue.states import TERMINAL_JOB, JobStatus, TransactionType
from comfyrelay.domain.queue.updates import JobUpdate, MediaFacts, UploadedOutput
from comfyrelay.pacing import paced
from comfyrelay.services.context import DISK, ServiceContext
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store import outbox
from comfyrelay.store.database import Tx
from comfyrelay.store.outbox import OutboxEntry
from comfyrelay.store.tenant import deliveries, jobs, ledger, retention
from comfyrelay.store.tenant.library import gallery, media
from comfyrelay.store.tenant.retention import OrphanSearch

# Maximum duration of an upload that started just before its URL expired.
MAX_UPLOAD_SECONDS = 3600.0


class UpdateApplier:
    def __init__(
        self,
        context: ServiceContext,
        *,
        on_applied: Callable[[str, Sequence[OutboxEntry]], None],
        on_ended: Callable[[Sequence[JobState]], None],
    ) -> None:
        """`on_applied` is called with the entries applied to a shard, and `on_ended` once with each finished job."""
        self._databases = context.databases
        self._users_are_owners = context.hooks.users_are_owners
        # This long after a job's end, no upload of its leases can be in progress.
        self._late_upload_seconds = context.settings.lease_url_ttl_seconds + MAX_UPLOAD_SECONDS
        self._on_applied = on_applied
        self._on_ended = on_ended

    async def apply(self, shard: str, entries: Sequence[OutboxEntry]) -> list[OutboxEntry]:
        """Apply the next updates of each job, and return the entries that are fully applied."""
        with self._databases.watched(shard):
            applied, ended = await self._databases.shard(shard).run(
                TransactionStep.DELIVER_APPLY, lambda tx: self._apply(tx, entries)
            )
        self._on_applied(shard, entries)
        if ended:
            self._on_ended(ended)
        return applied

    async def remove(self, entry_ids: Sequence[int]) -> None:
        """Remove applied entries from the outbox."""
        if entry_ids:
            await self._databases.central.run(
                TransactionStep.DELIVER_FORGET, lambda tx: outbox.remove_entries(tx, entry_ids)
            )

    async def remove_submissions(self, shard: str, submission_ids: Sequence[int]) -> None:
        """Remove submissions whose dispatches are queued from the shard's outbox."""
        await self._databases.shard(shard).run(
            TransactionStep.SUBMIT_FORGET, lambda tx: outbox.remove_submissions(tx, submission_ids)
        )

    async def _apply(self, tx: Tx, entries: Sequence[OutboxEntry]) -> tuple[list[OutboxEntry], list[JobState]]:
        """Return the fully applied entries and the jobs that ended with them."""
        updates: dict[str, list[JobUpdate]] = defaultdict(list)
        for entry in entries:
            for update in entry.updates:
                updates[update.job_id].append(update)
        states = await jobs.lock_states(tx, updates)
        changes = [
            apply_updates(state, updates[state.id], users_are_owners=self._users_are_owners)
            async for state in paced(states.values())
        ]
        settled = [change for change in changes if change is not None]
        if settled:
            await self.write(tx, settled)
        if gone := {job_id for job_id in updates.keys() - states.keys() if _is_ended(updates[job_id])}:
            await _refund_gone(tx, gone)
        versions = {job_id: state.dispatch_version for job_id, state in states.items()}
        versions |= {change.job.id: change.job.dispatch_version for change in settled}
        # Updates of a deleted job count as applied.
        applied = [
            entry
            for entry in entries
            if all(update.version <= versions.get(update.job_id, update.version) for update in entry.updates)
        ]
        return applied, [change.job for change in settled if change.settlement is not None]

    def announce(self, shard: str, ended: Sequence[JobState]) -> None:
        """Announce jobs that ended without entering the queue. Called after the commit."""
        self._on_applied(shard, ())
        self._on_ended(ended)

    async def write(self, tx: Tx, settled: Sequence[Settled]) -> None:
        ended = [change for change in settled if change.settlement is not None]
        entries = [_token_entry(change) for change in ended]
        refunded = {entry.tenant_id for entry in entries if entry.amount}
        if refunded:
            # Lock wallets before videos, in the same order as submissions.
            await ledger.lock_wallets(tx, refunded)
        made = [(change.job, list(change.outputs)) for change in settled if change.outputs]
        if made:
            await media.write_outputs(tx, [_output_row(job, output) for job, outputs in made for output in outputs])
            await gallery.write(tx, [row for job, outputs in made for row in _gallery_rows(job, outputs)])
        await jobs.write_settled(tx, settled)
        await jobs.write_attempts(tx, [attempt for change in settled for attempt in change.attempts.values()])
        await jobs.write_events(tx, [event for change in settled for event in change.events])
        videos = [_video_change(change) for change in settled if change.job.video_id is not None]
        if videos:
            await media.change_videos(tx, videos)
        if holds := [change.hold for change in settled if change.hold is not None]:
            await media.hold_batches(tx, holds)
        if ended:
            await deliveries.write_due(tx, [change.job.id for change in ended])
        searches = [
            OrphanSearch(job_id=change.job.id, tenant_id=change.job.tenant_id) for change in ended if change.leases
        ]
        if searches:
            await retention.schedule_orphan_searches(tx, searches, after_seconds=self._late_upload_seconds)
        if entries:
            await ledger.append(tx, entries)


def _is_ended(updates: Sequence[JobUpdate]) -> bool:
    return any(update.status in TERMINAL_JOB for update in updates)


async def _refund_gone(tx: Tx, job_ids: Collection[str]) -> None:
    """Refund the reserved tokens of jobs that ended in the queue, but no longer exist.

    A job that was deleted after its end is already settled.
    """
    reserved = [
        entry
        for entries in (await ledger.of_jobs(tx, sorted(job_ids))).values()
        for entry in entries
        if entry.type == TransactionType.JOB_RESERVE
    ]
    if reserved:
        await ledger.lock_wallets(tx, {entry.tenant_id for entry in reserved})
        refunds = [
            ledger.NewTransaction(
                tenant_id=entry.tenant_id,
                type=TransactionType.JOB_REFUND,
                amount=-entry.amount,
                job_id=entry.job_id,
            )
            for entry in reserved
        ]
        await ledger.append(tx, refunds)


def _token_entry(settled: Settled) -> ledger.NewTransaction:
    assert settled.settlement is not None
    return ledger.NewTransaction(
        tenant_id=settled.job.tenant_id,
        type=settled.settlement,
        # Release the part of the reservation that is not charged.
        amount=settled.job.reserved_tokens - (settled.job.charged_tokens or 0),
        job_id=settled.job.id,
        effect_id=settled.job.effect_id,
    )


def _output_row(job: JobState, output: UploadedOutput) -> dict[str, object]:
    return {
        "id": output.file_id,
        "tenant_id": job.tenant_id,
        "user_id": job.user_id,
        "disk": DISK,
        "path": output.path,
        "mime_type": output.mime_type,
        "size": output.size,
        "content_hash": output.sha256,
        "metadata": output.metadata,
        **{name: getattr(output.media, name) for name in MediaFacts.__dataclass_fields__},
    }


def _gallery_rows(job: JobState, outputs: Sequence[UploadedOutput]) -> list[dict[str, object]]:
    return [
        {"id": output.file_id, "job_id": job.id, "number": number, "kind": output_kind(output.mime_type)}
        for number, output in enumerate(outputs, start=1)
    ]


def _video_change(settled: Settled) -> media.VideoChange:
    job = settled.job
    details: dict[str, object] | None = None
    if job.status == JobStatus.FAILED:
        details = {"error": job.error_message}
    elif job.status == JobStatus.CANCELED:
        details = {"error": CANCELED_TEXT}
    elif job.status == JobStatus.COMPLETED and job.started_at and job.completed_at:
        details = {"processing_seconds": (job.completed_at - job.started_at).total_seconds()}
        if settled.outputs and settled.outputs[0].sent is not None:
            details["output"] = settled.outputs[0].sent
    assert job.video_id is not None
    return media.VideoChange(
        id=job.video_id,
        job_id=job.id,
        status=video_status_of(job.status),
        processed_file_id=job.output_file_id if job.status == JobStatus.COMPLETED else None,
        processing_details=details,
    )
