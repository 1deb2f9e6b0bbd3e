"""Load jobs that have just ended, their batches, and the number of active units."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import chunks
from comfyrelay.store.tenant import jobs
from comfyrelay.store.tenant.library import media

# All jobs of a canceled batch end at the same time.
CHUNK_SIZE = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchOutcome:
    """A batch with its item counts by status. A retried item counts as its newest attempt.

    `notify_urls` get a message when the batch ends. If the batch is held, `held` is the reason and `held_by` the failed
    job.
    """

    id: str
    label: str | None
    counts: Mapping[str, int]
    notify_urls: Sequence[str] = field(repr=False)
    held: str | None = None
    held_by: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedJobs:
    """`jobs` in the order in which they ended. `active` counts queued and running units; a batch is one unit."""

    jobs: Sequence[JobRecord]
    batches: Mapping[str, BatchOutcome]
    active: int


class EndedJobsReader:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    async def load(self, tenant_id: str, user_id: str, job_ids: Iterable[str]) -> EndedJobs:
        """Jobs that no longer exist are left out."""
        found: list[JobRecord] = []
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            for chunk in chunks(list(job_ids), CHUNK_SIZE):
                found += await jobs.by_ids(tx, chunk)
            ids = sorted({each.batch_id for each in found if each.batch_id is not None})
            counts = await jobs.count_in_batches(tx, tenant_id, ids) if ids else {}
            batches = await media.batches_of(tx, tenant_id, ids) if ids else []
            active = await jobs.count_active(tx, tenant_id, user_id)
        return EndedJobs(
            jobs=sorted(found, key=lambda each: each.completed_at or each.created_at),
            batches={
                batch.id: BatchOutcome(
                    id=batch.id,
                    label=batch.label,
                    counts=counts.get(batch.id, {}),
                    notify_urls=batch.notify_urls or (),
                    held=batch.held_text,
                    held_by=batch.held["by"] if batch.held else None,
                )
                for batch in batches
            },
            active=active,
        )
