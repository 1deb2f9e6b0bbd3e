"""Load jobs that have just ended, their batches, and the number of active units."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from comfyrelay.domain.records.jobs import BatchRecord, JobRecord
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import chunks
from comfyrelay.store.tenant import jobs
from comfyrelay.store.tenant.library import media

# All jobs of a canceled batch end at the same time.
CHUNK_SIZE = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedJobs:
    """Jobs in the order in which they ended, and their batches with item counts by status.

    A retried item counts as its newest attempt. `active` is the number of queued and running units. A batch is one
    unit.
    """

    jobs: Sequence[JobRecord]
    batches: Mapping[str, BatchRecord]
    counts: Mapping[str, Mapping[str, int]]
    active: int


class EndedJobsReader:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    async def ended_after(self, tenant_id: str, moment: datetime) -> list[str]:
        """Return the jobs that ended after a moment."""
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await jobs.ended_after(tx, tenant_id, moment)

    async def load(self, tenant_id: str, user_id: str, job_ids: Iterable[str]) -> EndedJobs:
        """Load the jobs that still exist."""
        found: list[JobRecord] = []
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            for chunk in chunks(list(job_ids), CHUNK_SIZE):
                found += await jobs.by_ids(tx, chunk)
            ids = sorted({job.batch_id for job in found if job.batch_id is not None})
            counts = await jobs.count_in_batches(tx, tenant_id, ids) if ids else {}
            batches = await media.batches_of(tx, tenant_id, ids) if ids else []
            active = await jobs.count_active(tx, tenant_id, user_id)
        return EndedJobs(
            jobs=sorted(found, key=lambda job: job.completed_at or job.created_at),
            batches={batch.id: batch for batch in batches},
            counts=counts,
            active=active,
        )
