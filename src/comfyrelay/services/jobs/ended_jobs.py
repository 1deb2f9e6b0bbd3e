"""What is known of jobs that have just ended: the jobs, their batches as they are now, and whether anything is left."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.services.databases import Databases
from comfyrelay.store.tenant import jobs
from comfyrelay.store.tenant.library import media

# A batch that is canceled ends all at once.
JOBS_AT_ONCE = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchOutcome:
    """A batch, its items by status (a retried one as its newest try), who asked to be notified of its end, and, if the
    rest of it is held, why and by which job's failure."""

    id: str
    label: str | None
    counts: Mapping[str, int]
    notify_urls: Sequence[str] = field(repr=False)
    held: str | None = None
    held_by: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedJobs:
    """`jobs` in the order in which they ended; `active` counts what is queued or runs, a batch as one."""

    jobs: Sequence[JobRecord]
    batches: Mapping[str, BatchOutcome]
    active: int


class EndedJobsReader:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    async def load(self, tenant_id: str, user_id: str, job_ids: Iterable[str]) -> EndedJobs:
        """Jobs that were deleted meanwhile are left out."""
        wanted = list(job_ids)
        found: list[JobRecord] = []
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            for start in range(0, len(wanted), JOBS_AT_ONCE):
                found += await jobs.by_ids(tx, wanted[start : start + JOBS_AT_ONCE])
            ids = sorted({each.batch_id for each in found if each.batch_id is not None})
            counts = await jobs.count_in_batches(tx, tenant_id, ids) if ids else {}
            batches = await media.batches_of(tx, tenant_id, ids) if ids else []
            active = await jobs.count_active(tx, tenant_id, user_id)
        return EndedJobs(
            jobs=sorted(found, key=lambda each: each.completed_at or each.created_at),
            batches={
                each.id: BatchOutcome(
                    id=each.id,
                    label=each.label,
                    counts=counts.get(each.id, {}),
                    notify_urls=each.notify_urls or (),
                    held=each.held_text,
                    held_by=each.held["by"] if each.held else None,
                )
                for each in batches
            },
            active=active,
        )
