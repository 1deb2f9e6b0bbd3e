"""Apply job updates to a shard: job, attempts, events, tokens, video and output in one transaction."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict

from comfyrelay.domain.gallery import output_kind
from comfyrelay.domain.queue.settlement import CANCELED_TEXT, JobState, Settled, apply_updates, video_status_of
from comfyrelay.domain.queue.states import JobStatus, TransactionType
from comfyrelay.domain.queue.updates import JobUpdate
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store import outbox
from comfyrelay.store.database import Tx
from comfyrelay.store.outbox import OutboxEntry
from comfyrelay.store.tenant import deliveries, jobs, ledger, retention
from comfyrelay.store.tenant.library import gallery, media
from comfyrelay.store.tenant.retention import Stray


class UpdateApplier:
    def __init__(
        self,
        databases: Databases,
        *,
        output_disk: str,
        late_upload_seconds: float,
        on_applied: Callable[[str, Sequence[OutboxEntry]], None],
        on_ended: Callable[[Sequence[JobState]], None],
    ) -> None:
        """A lease's uploads are over `late_upload_seconds` after the job's end.

        `on_applied` is called with the entries applied to a shard, and `on_ended` with finished jobs, once for each.
        """
        self._databases = databases
        self._output_disk = output_disk
        self._late_upload_seconds = late_upload_seconds
        self._on_applied = on_applied
        self._on_ended = on_ended

    async def apply(self, shard: str, entries: Sequence[OutboxEntry]) -> list[OutboxEntry]:
        """Apply the next updates of each job; return the entries that are fully applied."""

        async def work(tx: Tx) -> tuple[list[OutboxEntry], list[JobState]]:
            return await self._apply(tx, entries)

        with self._databases.watched(shard):
            applied, ended = await self._databases.shard(shard).run(TransactionStep.DELIVER_APPLY, work)
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
        settled = [each for state in states.values() if (each := apply_updates(state, updates[state.id])) is not None]
        if settled:
            await self.write(tx, settled)
        versions = {job_id: state.dispatch_version for job_id, state in states.items()}
        versions.update({each.job.id: each.job.dispatch_version for each in settled})
        # Updates of a deleted job count as applied.
        applied = [
            entry
            for entry in entries
            if all(update.version <= versions.get(update.job_id, update.version) for update in entry.updates)
        ]
        return applied, [each.job for each in settled if each.settlement is not None]

    def announce(self, shard: str, ended: Sequence[JobState]) -> None:
        """Announce jobs that ended without the queue, after the commit."""
        self._on_applied(shard, ())
        self._on_ended(ended)

    async def write(self, tx: Tx, settled: Sequence[Settled]) -> None:
        entries = [_token_entry(each) for each in settled if each.settlement is not None]
        refunded = {entry.tenant_id for entry in entries if entry.amount}
        if refunded:
            # Lock wallets before videos, in the same order as submissions.
            await ledger.lock_wallets(tx, refunded)
        outputs = [each for each in settled if each.output is not None]
        if outputs:
            await media.write_outputs(tx, [_output_row(output, self._output_disk) for output in outputs])
            await gallery.write(tx, [_gallery_row(output) for output in outputs])
        await jobs.write_settled(tx, settled)
        await jobs.write_attempts(tx, [attempt for job in settled for attempt in job.attempts.values()])
        await jobs.write_events(tx, [event for job in settled for event in job.events])
        videos = [_video_change(each) for each in settled if each.job.video_id is not None]
        if videos:
            await media.change_videos(tx, videos)
        if holds := [each.hold for each in settled if each.hold is not None]:
            await media.hold_batches(tx, holds)
        ended = [each for each in settled if each.settlement is not None]
        if ended:
            await deliveries.write_due(tx, [each.job.id for each in ended])
        strays = [Stray(job_id=each.job.id, tenant_id=each.job.tenant_id) for each in ended if each.leases]
        if strays:
            await retention.write_stray(tx, strays, after_seconds=self._late_upload_seconds)
        if entries:
            await ledger.append(tx, entries)


def _token_entry(settled: Settled) -> ledger.NewTransaction:
    assert settled.settlement is not None
    is_refund = settled.settlement is TransactionType.JOB_REFUND
    return ledger.NewTransaction(
        tenant_id=settled.job.tenant_id,
        type=settled.settlement,
        amount=settled.job.reserved_tokens if is_refund else 0,
        job_id=settled.job.id,
    )


def _output_row(settled: Settled, disk: str) -> dict[str, object]:
    output = settled.output
    assert output is not None
    return {
        "id": output.file_id,
        "tenant_id": settled.job.tenant_id,
        "user_id": settled.job.user_id,
        "disk": disk,
        "path": output.path,
        "mime_type": output.mime_type,
        "size": output.size,
        "content_hash": output.sha256,
        "metadata": output.metadata,
        **asdict(output.media),
    }


def _gallery_row(settled: Settled) -> dict[str, object]:
    assert settled.output is not None
    kind = output_kind(settled.output.mime_type)
    return {"id": settled.output.file_id, "job_id": settled.job.id, "number": 1, "kind": kind}


def _video_change(settled: Settled) -> media.VideoChange:
    job = settled.job
    details: dict[str, object] | None = None
    if job.status == JobStatus.FAILED:
        details = {"error": job.error_message}
    elif job.status == JobStatus.CANCELED:
        details = {"error": CANCELED_TEXT}
    elif job.status == JobStatus.COMPLETED and job.started_at and job.completed_at:
        details = {"processing_seconds": (job.completed_at - job.started_at).total_seconds()}
        if settled.output is not None and settled.output.sent is not None:
            details["output"] = settled.output.sent
    assert job.video_id is not None
    return media.VideoChange(
        id=job.video_id,
        job_id=job.id,
        status=video_status_of(job.status),
        processed_file_id=job.output_file_id if job.status == JobStatus.COMPLETED else None,
        processing_details=details,
    )
