"""What has come apart and can be put together without anybody's judgement is mended by itself, and reported.

A job without its dispatch is put into the queue again, and tokens that are held for a job which has ended are settled
as its end says. Everything else that the reconciler finds waits for somebody who runs it.
"""

from collections import Counter
from collections.abc import Sequence

import structlog

from comfyrelay.domain.consistency import FindingKind, Inconsistency
from comfyrelay.domain.records.workers import NewAuditEntry
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.services.databases import Databases
from comfyrelay.services.operations.reconcile import Reconciler
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import audit
from comfyrelay.store.central.queue import dispatches
from comfyrelay.store.tenant import jobs

log = structlog.get_logger(__name__)

SAFE = frozenset({FindingKind.MISSING_DISPATCH, FindingKind.UNSETTLED})
EVENT = "mend"
# Younger ones may be on their way.
GRACE_SECONDS = 60.0
# A run looks at so many jobs of a shard that have not ended, at the newest ones, and at so many of those before them:
# however large a shard is, it costs little, and all of it is looked at in turn.
JOBS_AT_ONCE = 20_000
LOOKED_UP_AT_ONCE = 1_000
MENDED_AT_ONCE = 200


class Mending:
    def __init__(self, databases: Databases, reconciler: Reconciler) -> None:
        self._databases = databases
        self._reconciler = reconciler
        # What this process has mended, by kind.
        self.mended: Counter[str] = Counter()
        # By shard, where the next run goes on.
        self._passed: dict[str, int] = {}
        self._before: dict[str, str | None] = {}

    async def run_once(self) -> int:
        """Mend what can be mended in every shard that can be reached; returns how much that was."""
        mended = 0
        for shard in self._databases.shards:
            try:
                with self._databases.watched(shard):
                    mended += await self._mend(shard)
            except DatabaseUnavailable as error:
                if error.name == self._databases.central.name:
                    raise
            except Exception:
                log.exception("mending.failed", shard=shard)
        return mended

    async def _mend(self, shard: str) -> int:
        suspects = sorted({*await self._undispatched(shard), *await self._unsettled(shard)})
        mended = 0
        # a few at a time: where very many have come apart, whoever asks for something meanwhile must not wait for all
        for start in range(0, len(suspects), MENDED_AT_ONCE):
            mended += await self._mend_some(shard, suspects[start : start + MENDED_AT_ONCE])
        return mended

    async def _mend_some(self, shard: str, suspects: Sequence[str]) -> int:
        found = await self._reconciler.mend(shard, suspects, SAFE)
        for each in found:
            log.warning("mending.mended", kind=each.kind, shard=shard, job=each.job_id, was=each.text)
        self.mended.update(each.kind for each in found)
        await self._databases.central.run(
            TransactionStep.REPAIR, lambda tx: audit.record(tx, [_entry(each) for each in found])
        )
        return len(found)

    async def _undispatched(self, shard: str) -> list[str]:
        """Jobs that have not ended and are not in the queue."""
        passed = self._passed.get(shard, 0)
        async with self._databases.shard(shard).read() as tx:
            active = await jobs.active(tx, older_than_seconds=GRACE_SECONDS, offset=passed, limit=JOBS_AT_ONCE)
        self._passed[shard] = passed + len(active) if len(active) == JOBS_AT_ONCE else 0
        missing: list[str] = []
        for start in range(0, len(active), LOOKED_UP_AT_ONCE):
            some = active[start : start + LOOKED_UP_AT_ONCE]
            async with self._databases.central.read() as tx:
                there = await dispatches.known_jobs(tx, some)
            missing += [job_id for _, job_id in some if job_id not in there]
        return missing

    async def _unsettled(self, shard: str) -> Sequence[str]:
        """Jobs that have ended and whose tokens are neither consumed nor refunded."""
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
    # no worker had a part in it
    return NewAuditEntry(worker_id="", event=EVENT, dispatch_id=finding.dispatch_id, data=data)
