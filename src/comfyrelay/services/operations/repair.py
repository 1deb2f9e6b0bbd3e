"""Repair safe inconsistencies automatically, and report them.

A job without a dispatch is queued again, and the reserved tokens of a finished job are settled. All other
inconsistencies wait for an operator who runs the reconciler.
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
# Younger differences may be in progress.
GRACE_SECONDS = 60.0
# Jobs checked per run and shard: unfinished ones, the newest finished ones, and as many older ones in rotation. The
# cost does not depend on the size of the shard.
JOBS_AT_ONCE = 20_000
LOOKED_UP_AT_ONCE = 1_000
REPAIRED_AT_ONCE = 200


class AutoRepair:
    def __init__(self, databases: Databases, reconciler: Reconciler) -> None:
        self._databases = databases
        self._reconciler = reconciler
        # Repairs of this process by kind.
        self.repaired: Counter[str] = Counter()
        # By shard, where the next run continues.
        self._passed: dict[str, int] = {}
        self._before: dict[str, str | None] = {}

    async def run_once(self) -> int:
        """Repair every reachable shard; return the number of repairs."""
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
        suspects = sorted({*await self._undispatched(shard), *await self._unsettled(shard)})
        # in small pages, so that other requests do not wait for very many repairs
        pages = chunks(suspects, REPAIRED_AT_ONCE)
        return sum([await self._repair_jobs(shard, page) for page in pages])

    async def _repair_jobs(self, shard: str, suspects: Sequence[str]) -> int:
        found = await self._reconciler.repair_jobs(shard, suspects, SAFE)
        for each in found:
            log.warning("repair.done", kind=each.kind, shard=shard, job=each.job_id, was=each.text)
        self.repaired.update(each.kind for each in found)
        await self._databases.central.run(
            TransactionStep.REPAIR, lambda tx: audit.record(tx, [_entry(each) for each in found])
        )
        return len(found)

    async def _undispatched(self, shard: str) -> list[str]:
        """Unfinished jobs without a dispatch."""
        passed = self._passed.get(shard, 0)
        async with self._databases.shard(shard).read() as tx:
            active = await jobs.active(tx, older_than_seconds=GRACE_SECONDS, offset=passed, limit=JOBS_AT_ONCE)
        self._passed[shard] = passed + len(active) if len(active) == JOBS_AT_ONCE else 0
        missing: list[str] = []
        for page in chunks(active, LOOKED_UP_AT_ONCE):
            async with self._databases.central.read() as tx:
                known = await dispatches.known_jobs(tx, page)
            missing += [job_id for _, job_id in page if job_id not in known]
        return missing

    async def _unsettled(self, shard: str) -> Sequence[str]:
        """Finished jobs whose tokens are neither consumed nor refunded."""
        async with self._databases.shard(shard).read() as tx:
            newest, before = await jobs.unsettled(
                tx, before_id=None, older_than_seconds=GRACE_SECONDS, limit=JOBS_AT_ONCE
            )
            before = self._before.get(shard) or before
            if before is None:
                return newest
            older, self._before[shard] = await jobs.unsettled(
                tx, before_id=before, older_than_seconds=GRACE_SECONDS, limit=JOBS_AT_ONCE
            )
        return [*newest, *older]


def _entry(finding: Inconsistency) -> NewAuditEntry:
    data = {"kind": finding.kind, "text": finding.text, "tenant_id": finding.tenant_id, "job_id": finding.job_id}
    return NewAuditEntry(worker_id="", event=EVENT, dispatch_id=finding.dispatch_id, data=data)
