"""Find completed jobs whose outputs an equal job can reuse."""

from collections.abc import Collection
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Text, bindparam, select
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.domain.records.jobs import FileRecord
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import ids_table, with_ids
from comfyrelay.store.tenant.tables import ai_jobs, files, outputs
from comfyrelay.store.types import json_value, sql_literal

_FILE = [files.c[name] for name in FileRecord.__dataclass_fields__]


class ReusableFile(NamedTuple):
    """An output of a completed job."""

    file: FileRecord
    metadata: Any
    is_poster_due: bool


class ReusableJob(NamedTuple):
    """A completed job and its outputs, in order."""

    job_id: str
    outputs: list[ReusableFile]


async def reusable_jobs(tx: Tx, tenant_id: str, fingerprints: Collection[str]) -> dict[tuple[str, str], ReusableJob]:
    """Return by fingerprint and stage the tenant's newest completed job whose outputs still exist."""
    rows = await tx.fetch(reusable_query, {**with_ids(sorted(fingerprints)), "tenant_id": tenant_id})
    found = {(row.fingerprint, row.stage): ReusableJob(row.job_id, []) for row in rows}
    jobs = {job.job_id: job for job in found.values()}
    for row in await tx.fetch(_outputs_query, with_ids(sorted(jobs))) if jobs else ():
        file = FileRecord(**{name: row._mapping[name] for name in FileRecord.__dataclass_fields__})
        metadata = None if row.metadata is None else json_value(row.metadata)
        jobs[row.job_id].outputs.append(ReusableFile(file, metadata, row.poster_due_at is not None))
    return {key: job for key, job in found.items() if job.outputs}


@cache
def reusable_query(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    return (
        select(ai_jobs.c.fingerprint, ai_jobs.c.stage, ai_jobs.c.id.label("job_id"))
        .join(r, ai_jobs.c.fingerprint == r.c.id)
        .join(files, files.c.id == ai_jobs.c.output_file_id)
        .join(outputs, outputs.c.id == files.c.id)
        .where(
            # A job can only be reused if its cover still exists.
            outputs.c.number == 1,
            ai_jobs.c.tenant_id == bindparam("tenant_id", type_=Text()),
            ai_jobs.c.status == sql_literal(JobStatus.COMPLETED),
            files.c.tenant_id == ai_jobs.c.tenant_id,
            files.c.removing_at.is_(None),
        )
        # If there are several, the last row wins, which is the newest.
        .order_by(ai_jobs.c.id)
    )


@cache
def _outputs_query(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    return (
        select(outputs.c.job_id, *_FILE, files.c["metadata"], files.c.poster_due_at)
        .select_from(outputs)
        .join(r, r.c.id == outputs.c.job_id)
        .join(files, files.c.id == outputs.c.id)
        .where(files.c.removing_at.is_(None))
        .order_by(outputs.c.job_id, outputs.c.number)
    )
