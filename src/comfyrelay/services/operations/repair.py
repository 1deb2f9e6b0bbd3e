"""Repair safe inconsistencies automatically, and record the repairs.

Jobs without a dispatch are queued again, and the reserved tokens of finished jobs are settled. All other
inconsistencies are left to operators, who can run the reconciler.
"""

from collections import Counter
from collections.abc import Sequence

import structlog

from comfyrelay.domain.consistency import FindingKind, Inconsistency
from comfyrelay.domain.records.workers import NewAuditEntry
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.services.databases import Databases
from comfyrelay.services.operations.reconcile import Reconciler
from comfyrelay.services.paging import chunks
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import audit
from comfyrelay.store.central.queue import dispatches
from comfyrelay.store.tenant import jobs

log = structlog.get_logger(__name__)

SAFE = frozenset({FindingKind.MISSING_DISPATCH, FindingKind.UNSETTLED})
EVENT = "repair"
# More recent inconsistencies may be transactions in progress.
GRACE_SECONDS = 60.0
# Maximum numbers of jobs that one run checks per shard: unfinished jobs, the newest finished jobs, and older jobs in
# rotation. The cost does not depend on the size of the shard.
MAX_JOBS = 20_000
LOOKUP_BATCH_SIZE = 1_000
REPAIR_BATCH_SIZE = 200


class AutoRepair:
    def __init__(self, databases: Databases, reconciler: Reconciler) -> None:
        self._databases = databases
        self._reconciler = reconciler
        # Repairs by this process, by kind.
        self.repaired: Counter[str] = Counter()
        # The position at which the next run continues, by shard.
        self._passed: dict[str, int] = {}
        self._before: dict[str, str | None] = {}

    async def run_once(self) -> int:
        """Repair every reachable shard, and return the number of repairs."""
        repaired = 0
        for shard in self._databases.shards:
            try:
                with self._databases.watched(shard):
                    repaired += await self._repair_shard(shard)
            except DatabaseUnavailable as error:
                if error.name == self._databases.central.name:
                    raise
            except Exception:
                log.exception("repair.failed", shard=shard)
        return repaired

    async def _repair_shard(self, shard: str) -> int:
        suspects = sorted({*await self._find_undispatched(shard), *await self._find_unsettled(shard)})
        # Repair in small batches, so that other requests do not wait for long.
        batches = chunks(suspects, REPAIR_BATCH_SIZE)
        return sum([await self._repair_jobs(shard, batch) for batch in batches])

    async def _repair_jobs(self, shard: str, suspects: Sequence[str]) -> int:
        found = await self._reconciler.repair_jobs(shard, suspects, SAFE)
        for finding in found:
            log.warning("repair.done", kind=finding.kind, shard=shard, job_id=finding.job_id, was=finding.text)
        self.repaired.update(finding.kind for finding in found)
        await self._databases.central.run(
            TransactionStep.REPAIR, lambda tx: audit.record(tx, [_entry(finding) for finding in found])
        )
        return len(found)

    async def _find_undispatched(self, shard: str) -> list[str]:
        """Return the unfinished jobs without a dispatch."""
        passed = self._passed.get(shard, 0)
        async with self._databases.shard(shard).read() as tx:
            active = await jobs.active(tx, older_than_seconds=GRACE_SECONDS, offset=passed, limit=MAX_JOBS)
        self._passed[shard] = passed + len(active) if len(active) == MAX_JOBS else 0
        missing: list[str] = []
        for page in chunks(active, LOOKUP_BATCH_SIZE):
            async with self._databases.central.read() as tx:
                known = await dispatches.known_jobs(tx, page)
            missing += [job_id for _, job_id in page if job_id not in known]
        return missing

    async def _find_unsettled(self, shard: str) -> Sequence[str]:
        """Return the finished jobs whose tokens are neither consumed nor refunded."""
        async with self._databases.shard(shard).read() as tx:
            newest, before = await jobs.unsettled(tx, before_id=None, older_than_seconds=GRACE_SECONDS, limit=MAX_JOBS)
            before = self._before.get(shard) or before
            if before is None:
                return newest
            older, self._before[shard] = await jobs.unsettled(
                tx, before_id=before, older_than_seconds=GRACE_SECONDS, limit=MAX_JOBS
            )
        return [*newest, *older]


def _entry(finding: Inconsistency) -> NewAuditEntry:
    data = {"kind": finding.kind, "text": finding.text, "tenant_id": finding.tenant_id, "job_id": finding.job_id}
    return NewAuditEntry(worker_id="", event=EVENT, dispatch_id=finding.dispatch_id, data=data)
