"""Compare queue, jobs and ledger, report inconsistencies, and repair them on request.

Jobs change during the comparison, so each inconsistency is checked again and counts only if it is confirmed.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

import structlog

from comfyrelay.domain.consistency import (
    SETTLEMENTS,
    FindingKind,
    Inconsistency,
    JobFacts,
    expected_net,
    find_inconsistencies,
)
from comfyrelay.domain.queue import lifecycle
from comfyrelay.domain.queue.dispatch import Dispatch
from comfyrelay.domain.queue.settlement import settlement_of, video_status_of
from comfyrelay.domain.queue.states import (
    ACTIVE_JOB,
    JOB_STATUS_OF,
    DispatchStatus,
    JobEventType,
    JobStatus,
    TransactionType,
)
from comfyrelay.domain.queue.updates import JobUpdate
from comfyrelay.domain.records.accounts import TransactionRecord
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.services.databases import Databases
from comfyrelay.services.outbox.applier import UpdateApplier
from comfyrelay.services.outbox.recovery import OutboxRecovery
from comfyrelay.services.queue.decisions import Decisions
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store import outbox
from comfyrelay.store.central import tables as central
from comfyrelay.store.central.queue import dispatches, leases
from comfyrelay.store.database import Database, Tx
from comfyrelay.store.outbox import OutboxEntry
from comfyrelay.store.tenant import jobs, ledger
from comfyrelay.store.tenant import tables as tenant
from comfyrelay.store.tenant.ledger import NewTransaction
from comfyrelay.store.tenant.library import media

log = structlog.get_logger(__name__)

PAGE_SIZE = 500
# Outbox entries older than this count as stuck.
STUCK_SECONDS = 60.0
REPAIRED = "Repaired by reconcile."

_EVENT_TYPES = {
    DispatchStatus.QUEUED: JobEventType.REQUEUED,
    DispatchStatus.LEASED: JobEventType.STARTED,
    DispatchStatus.COMPLETED: JobEventType.COMPLETED,
    DispatchStatus.FAILED: JobEventType.FAILED,
    DispatchStatus.CANCELED: JobEventType.CANCELED,
    DispatchStatus.PAUSED: JobEventType.PAUSED,
}


@dataclass(kw_only=True, slots=True)
class ReconcileReport:
    findings: list[Inconsistency] = field(default_factory=list)
    repaired: list[Inconsistency] = field(default_factory=list)
    shards_down: list[str] = field(default_factory=list)
    jobs: int = 0

    @property
    def is_clean(self) -> bool:
        return not self.findings and not self.shards_down


class Reconciler:
    def __init__(
        self, databases: Databases, decisions: Decisions, applier: UpdateApplier, recovery: OutboxRecovery
    ) -> None:
        self._databases = databases
        self._decisions = decisions
        self._applier = applier
        self._recovery = recovery

    async def run(self, *, repair: bool = False) -> ReconcileReport:
        """Check everything. With `repair`, also repair the findings."""
        report = ReconcileReport()
        await self._check_leases(report, repair=repair)
        await self._check_dispatches(report, repair=repair)
        for shard in self._databases.shards:
            try:
                with self._databases.watched(shard):
                    await self._check_shard(shard, report, repair=repair)
            except DatabaseUnavailable as error:
                if error.name == self._databases.central.name:
                    raise
                report.shards_down.append(shard)
        return report

    async def repair_jobs(
        self, shard: str, job_ids: Sequence[str], kinds: Collection[FindingKind]
    ) -> list[Inconsistency]:
        """Repair the inconsistencies of these kinds in these jobs, and return them."""
        report = ReconcileReport()
        suspects = [finding for finding in await self._check_again(shard, job_ids) if finding.kind in kinds]
        if suspects:
            await self._confirm(shard, suspects, report, repair=True)
        return report.repaired

    async def _check_shard(self, shard: str, report: ReconcileReport, *, repair: bool) -> None:
        await self._check_outboxes(shard, report, repair=repair)
        after = ""
        while True:
            async with self._databases.shard(shard).read() as tx:
                page = await jobs.page_after(tx, after_id=after, limit=PAGE_SIZE)
            if not page:
                break
            after = page[-1].id
            report.jobs += len(page)
            suspects = await self._find_inconsistencies(shard, page)
            if suspects:
                await self._confirm(shard, suspects, report, repair=repair)
        await self._check_wallets(shard, report, repair=repair)

    async def _confirm(
        self, shard: str, suspects: Sequence[Inconsistency], report: ReconcileReport, *, repair: bool
    ) -> None:
        job_ids = sorted({suspect.job_id for suspect in suspects if suspect.job_id is not None})
        before = {suspect.key for suspect in suspects}
        confirmed = [finding for finding in await self._check_again(shard, job_ids) if finding.key in before]
        report.findings.extend(confirmed)
        if not repair:
            return
        # One repair may be a precondition for another, so repair in rounds: first the queue state, then tokens and
        # videos.
        for _ in range(len(FindingKind)):
            remaining = await self._check_again(shard, job_ids)
            if not remaining:
                break
            done: set[str | None] = set()
            for finding in remaining:
                if finding.job_id not in done:
                    await self._repair(shard, finding)
                    done.add(finding.job_id)
        report.repaired.extend(confirmed)

    async def _check_again(self, shard: str, job_ids: Sequence[str]) -> list[Inconsistency]:
        async with self._databases.shard(shard).read() as tx:
            page = await jobs.by_ids(tx, job_ids)
        return await self._find_inconsistencies(shard, page)

    async def _find_inconsistencies(self, shard: str, page: Sequence[JobRecord]) -> list[Inconsistency]:
        return [finding for facts in await self._facts(shard, page) for finding in find_inconsistencies(facts)]

    async def _facts(self, shard: str, page: Sequence[JobRecord]) -> list[JobFacts]:
        ids = [job.id for job in page]
        async with self._databases.central.read() as tx:
            queued = await dispatches.of_jobs(tx, [(job.tenant_id, job.id) for job in page])
            pending = {
                (update.job_id, update.version)
                for entry in await outbox.entries(tx, shard, limit=10_000)
                for update in entry.updates
            }
        async with self._databases.shard(shard).read() as tx:
            submitted = {id_ for submission in await outbox.submissions(tx, limit=10_000) for id_ in submission.job_ids}
            entries = await ledger.of_jobs(tx, ids)
            videos = await media.videos_of_jobs(tx, ids)
        return [
            JobFacts(
                shard=shard,
                job_id=job.id,
                tenant_id=job.tenant_id,
                status=job.status,
                charged_tokens=job.charged_tokens or 0,
                dispatch_version=job.dispatch_version,
                dispatch=queued.get(job.id),
                transactions={entry.type: entry.amount for entry in entries.get(job.id, [])},
                video_status=videos[job.id].status if job.id in videos else None,
                # Only an update with the next version explains a difference: older versions are already applied, and
                # later versions wait.
                has_pending_update=(job.id, job.dispatch_version + 1) in pending,
                has_submission=job.id in submitted,
            )
            for job in page
        ]

    async def _repair(self, shard: str, finding: Inconsistency) -> None:
        assert finding.tenant_id is not None
        assert finding.job_id is not None
        database = self._databases.shard(shard)
        async with database.read() as tx:
            job = await jobs.get(tx, finding.tenant_id, finding.job_id)
        if job is None:
            return
        log.info("reconcile.repairing", kind=finding.kind, job_id=job.id)
        match finding.kind:
            case FindingKind.MISSING_DISPATCH:
                # If another process has just created the dispatch, updates of the job may already exist.
                if await self._recovery.enqueue(shard, [job]):
                    await self._set_version(shard, job, 0)
            case FindingKind.JOB_BEHIND:
                await self._catch_up(shard, job)
            case FindingKind.DISPATCH_BEHIND:
                await self._end_dispatch(job)
            case FindingKind.SETTLED_EARLY:
                await self._fail(job.tenant_id, job.id, "The tokens were settled before the job ended.")
            case FindingKind.MISSING_RESERVE | FindingKind.UNSETTLED | FindingKind.SETTLED_WRONG:
                await database.run(TransactionStep.REPAIR, lambda tx: _repair_tokens(tx, job, finding.kind))
            case FindingKind.VIDEO_DIFFERS:
                await database.run(TransactionStep.REPAIR, lambda tx: _repair_video(tx, job))
            case _:
                raise AssertionError(f"{finding.kind} is not about a job")

    async def _set_version(self, shard: str, job: JobRecord, version: int) -> None:
        await self._databases.shard(shard).run(TransactionStep.REPAIR, lambda tx: jobs.set_version(tx, job.id, version))

    async def _catch_up(self, shard: str, job: JobRecord) -> None:
        """Bring a job to the state of its dispatch, as if the lost updates had arrived."""
        async with self._databases.central.read() as tx:
            dispatch = (await dispatches.by_job(tx, job.tenant_id, [job.id])).get(job.id)
            now = await tx.now()
        if dispatch is None:
            return
        if JOB_STATUS_OF[DispatchStatus(dispatch.status)] == job.status:
            await self._set_version(shard, job, dispatch.version)
            return
        await self._set_version(shard, job, dispatch.version - 1)
        entry = OutboxEntry(id=0, shard=shard, updates=[_missed_update(dispatch, now)])
        await self._applier.apply(shard, [entry])

    async def _end_dispatch(self, job: JobRecord) -> None:
        status = DispatchStatus(job.status)
        await self._decisions.decide(
            TransactionStep.REPAIR,
            dispatches.of_job(job.tenant_id, job.id),
            lambda dispatch, now: lifecycle.finish_like_job(dispatch, status=status, now=now),
            by="reconcile",
            post=False,
        )

    async def _fail(self, tenant_id: str, job_id: str, error: str) -> None:
        await self._decisions.decide(
            TransactionStep.REPAIR,
            dispatches.of_job(tenant_id, job_id),
            lambda dispatch, now: lifecycle.fail_permanently(dispatch, error=error, now=now),
            by="reconcile",
        )

    async def _check_outboxes(self, shard: str, report: ReconcileReport, *, repair: bool) -> None:
        async with self._databases.central.read() as tx:
            entries = await outbox.count_stuck(tx, central.queue.outbox, shard=shard, older_than_seconds=STUCK_SECONDS)
        async with self._databases.shard(shard).read() as tx:
            submissions = await outbox.count_stuck(tx, tenant.outbox, older_than_seconds=STUCK_SECONDS)
        for count, what in ((entries, "job updates"), (submissions, "submissions")):
            if count:
                text = f"{count} {what} have been in the outbox for more than {STUCK_SECONDS:g} s."
                report.findings.append(Inconsistency(kind=FindingKind.STUCK_OUTBOX, text=text, shard=shard))
        if repair:
            await self._recovery.enqueue_pending(shard)
            await self._recovery.deliver_pending(shard)
            report.repaired.extend(
                finding
                for finding in report.findings
                if finding.kind is FindingKind.STUCK_OUTBOX and finding.shard == shard
            )

    async def _check_dispatches(self, report: ReconcileReport, *, repair: bool) -> None:
        """Find dispatches without a job, and dispatches of an unknown shard."""
        after = 0
        while True:
            async with self._databases.central.read() as tx:
                page = await dispatches.active_page(tx, after_id=after, limit=PAGE_SIZE)
            if not page:
                return
            after = page[-1].id
            by_shard: dict[str, list[Dispatch]] = defaultdict(list)
            for dispatch in page:
                by_shard[dispatch.shard].append(dispatch)
            for shard, found in by_shard.items():
                if shard in self._databases.shards:
                    await self._check_orphans(self._databases.shard(shard), found, report, repair=repair)
                else:
                    text = f"{len(found)} dispatches belong to the shard {shard!r}, which is not configured."
                    report.findings.append(Inconsistency(kind=FindingKind.UNKNOWN_SHARD, text=text, shard=shard))

    async def _check_orphans(
        self, database: Database, found: Sequence[Dispatch], report: ReconcileReport, *, repair: bool
    ) -> None:
        try:
            with self._databases.watched(database.name):
                async with database.read() as tx:
                    known = {job.id for job in await jobs.by_ids(tx, [dispatch.tenant_job_id for dispatch in found])}
        except DatabaseUnavailable:
            return
        for dispatch in found:
            if dispatch.tenant_job_id in known:
                continue
            finding = Inconsistency(
                kind=FindingKind.ORPHANED_DISPATCH,
                text=f"The dispatch is {dispatch.status}, but its job does not exist.",
                shard=database.name,
                tenant_id=dispatch.tenant_id,
                job_id=dispatch.tenant_job_id,
                dispatch_id=dispatch.id,
            )
            report.findings.append(finding)
            if repair:
                await self._fail(dispatch.tenant_id, dispatch.tenant_job_id, "The job no longer exists.")
                report.repaired.append(finding)

    async def _check_leases(self, report: ReconcileReport, *, repair: bool) -> None:
        async with self._databases.central.read() as tx:
            dangling = await leases.dangling(tx, limit=10_000)
        if dangling:
            text = f"{len(dangling)} leases in the history have no end, although their dispatches are no longer leased."
            finding = Inconsistency(kind=FindingKind.DANGLING_LEASE, text=text, shard=self._databases.central.name)
            report.findings.append(finding)
            if repair:
                await self._databases.central.run(
                    TransactionStep.REPAIR, lambda tx: leases.close_dangling(tx, dangling)
                )
                report.repaired.append(finding)

    async def _check_wallets(self, shard: str, report: ReconcileReport, *, repair: bool) -> None:
        database = self._databases.shard(shard)
        async with database.read() as tx:
            reserves = await ledger.transactions_without_job(tx, limit=10_000)
            drifted = await ledger.drifted_wallets(tx)
        for reserve in reserves:
            finding = Inconsistency(
                kind=FindingKind.ORPHANED_RESERVE,
                text=f"{-reserve.amount} tokens are reserved for a job that does not exist.",
                shard=shard,
                tenant_id=reserve.tenant_id,
                job_id=reserve.job_id,
            )
            report.findings.append(finding)
            if repair:
                await database.run(TransactionStep.REPAIR, partial(_refund, reserve=reserve))
                report.repaired.append(finding)
        for tenant_id, (balance, total) in drifted.items():
            text = f"The balance is {balance}, but the transactions sum to {total}."
            finding = Inconsistency(kind=FindingKind.WALLET_DRIFT, text=text, shard=shard, tenant_id=tenant_id)
            report.findings.append(finding)
            if repair:
                await database.run(TransactionStep.REPAIR, partial(_repair_wallet, tenant_id=tenant_id))
                report.repaired.append(finding)


def _missed_update(dispatch: Dispatch, now: datetime) -> JobUpdate:
    return JobUpdate(
        tenant_id=dispatch.tenant_id,
        job_id=dispatch.tenant_job_id,
        version=dispatch.version,
        event_type=_EVENT_TYPES[DispatchStatus(dispatch.status)],
        status=JOB_STATUS_OF[DispatchStatus(dispatch.status)],
        at=dispatch.finished_at or now,
        epoch=dispatch.epoch,
        attempts=dispatch.attempts,
        priority=dispatch.priority,
        worker_id=dispatch.worker_id,
        started_at=dispatch.leased_at,
        error=dispatch.last_error if dispatch.status == DispatchStatus.FAILED else None,
    )


async def _repair_tokens(tx: Tx, job: JobRecord, kind: FindingKind) -> None:
    """Repair the tokens of a job. If the ledger is ambiguous, decide in the user's favour."""
    balance = await ledger.lock_wallet(tx, job.tenant_id)
    entries = {entry.type: entry.amount for entry in (await ledger.of_jobs(tx, [job.id])).get(job.id, [])}
    if kind is FindingKind.MISSING_RESERVE:
        can_reserve = job.status in ACTIVE_JOB and balance >= job.reserved_tokens
        if not can_reserve:
            await jobs.waive_tokens(tx, job.id)
        amount = -job.reserved_tokens if can_reserve else 0
        type_ = TransactionType.JOB_RESERVE
    elif kind is FindingKind.UNSETTLED:
        if SETTLEMENTS & entries.keys():
            # Another process has settled the tokens.
            return
        settlement = settlement_of(job.status, job.charged_tokens or 0)
        assert settlement is not None
        amount = job.reserved_tokens - (job.charged_tokens or 0)
        type_ = settlement
    else:
        expected = expected_net(job.charged_tokens or 0, entries)
        amount = max(-balance, expected - sum(entries.values()))
        type_ = TransactionType.ADJUSTMENT
    entry = NewTransaction(tenant_id=job.tenant_id, type=type_, amount=amount, job_id=job.id, description=REPAIRED)
    await ledger.append(tx, [entry])


async def _repair_video(tx: Tx, job: JobRecord) -> None:
    assert job.video_id is not None
    change = media.VideoChange(
        id=job.video_id,
        job_id=job.id,
        status=video_status_of(job.status),
        processed_file_id=job.output_file_id if job.status == JobStatus.COMPLETED else None,
        processing_details={"error": job.error_message} if job.error_message else None,
    )
    await media.change_videos(tx, [change])


async def _refund(tx: Tx, reserve: TransactionRecord) -> None:
    await ledger.lock_wallet(tx, reserve.tenant_id)
    entry = NewTransaction(
        tenant_id=reserve.tenant_id,
        type=TransactionType.JOB_REFUND,
        amount=-reserve.amount,
        job_id=reserve.job_id,
        description=REPAIRED,
    )
    await ledger.append(tx, [entry])


async def _repair_wallet(tx: Tx, tenant_id: str) -> None:
    """Set the balance to the sum of the transactions."""
    await ledger.lock_wallet(tx, tenant_id)
    drifted = await ledger.drifted_wallets(tx)
    if tenant_id not in drifted:
        return
    _, total = drifted[tenant_id]
    await ledger.set_balance(tx, tenant_id, max(0, total))
    if total < 0:
        reason = "Repaired by reconcile: more tokens were spent than available."
        entry = NewTransaction(tenant_id=tenant_id, type=TransactionType.ADJUSTMENT, amount=-total, description=reason)
        await ledger.append(tx, [entry])
        await ledger.set_balance(tx, tenant_id, 0)
