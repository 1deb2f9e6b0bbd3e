"""Find completed jobs whose output an equal job can reuse."""

from collections.abc import Collection
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Text, bindparam, select
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.domain.records.jobs import FileRecord
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import ids_table, with_ids
from comfyrelay.store.tenant.tables import ai_jobs, files
from comfyrelay.store.types import json_value, sql_literal

_FILE = [files.c[name] for name in FileRecord.__dataclass_fields__]


class ReusableJob(NamedTuple):
    """A completed job and its output."""

    job_id: str
    file: FileRecord
    metadata: Any
    is_poster_due: bool


async def reusable_jobs(tx: Tx, tenant_id: str, fingerprints: Collection[str]) -> dict[tuple[str, str], ReusableJob]:
    """Return by fingerprint and stage the tenant's newest completed job whose output still exists."""
    rows = await tx.fetch(reusable_query, {**with_ids(sorted(fingerprints)), "tenant_id": tenant_id})
    return {
        (row.fingerprint, row.stage): ReusableJob(
            row.job_id,
            FileRecord(**{name: row._mapping[name] for name in FileRecord.__dataclass_fields__}),
            None if row.metadata is None else json_value(row.metadata),
            row.poster_due_at is not None,
        )
        for row in rows
    }


@cache
def reusable_query(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    of_job = (ai_jobs.c.fingerprint, ai_jobs.c.stage, ai_jobs.c.id.label("job_id"))
    return (
        select(*of_job, *_FILE, files.c["metadata"], files.c.poster_due_at)
        .join(r, ai_jobs.c.fingerprint == r.c.id)
        .join(files, files.c.id == ai_jobs.c.output_file_id)
        .where(
            ai_jobs.c.tenant_id == bindparam("tenant_id", type_=Text()),
            ai_jobs.c.status == sql_literal(JobStatus.COMPLETED),
            files.c.tenant_id == ai_jobs.c.tenant_id,
            files.c.removing_at.is_(None),
        )
        # If there are several, the last row wins, which is the newest.
        .order_by(ai_jobs.c.id)
    )
