"""Finding jobs that are done and equal to others."""

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
from comfyrelay.store.types import json_value, word

_FILE = [files.c[name] for name in FileRecord.__dataclass_fields__]


class ReusableJob(NamedTuple):
    """A job that is done, and its output."""

    job_id: str
    file: FileRecord
    metadata: Any
    # nobody has made a poster of it yet, and somebody will
    is_undrawn: bool


async def made(tx: Tx, tenant_id: str, fingerprints: Collection[str]) -> dict[tuple[str, str], ReusableJob]:
    """By fingerprint and stage, the newest completed job of the tenant's that has them and whose output is still
    there."""
    rows = await tx.fetch(made_query, {**with_ids(sorted(fingerprints)), "tenant_id": tenant_id})
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
def made_query(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    job = (ai_jobs.c.fingerprint, ai_jobs.c.stage, ai_jobs.c.id.label("job_id"))
    return (
        select(*job, *_FILE, files.c["metadata"], files.c.poster_due_at)
        .join(r, ai_jobs.c.fingerprint == r.c.id)
        .join(files, files.c.id == ai_jobs.c.output_file_id)
        .where(
            ai_jobs.c.tenant_id == bindparam("tenant_id", type_=Text()),
            ai_jobs.c.status == word(JobStatus.COMPLETED),
            files.c.tenant_id == ai_jobs.c.tenant_id,
            files.c.removing_at.is_(None),
        )
        # the newest of several counts
        .order_by(ai_jobs.c.id)
    )
