"""Write the outbox row of submitted jobs. `store.outbox` reads and removes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from sqlalchemy import select
from sqlalchemy.sql import Executable
from sqlalchemy.sql.dml import ReturningInsert

from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import columns_of, insert_selected, rows_table, with_rows
from comfyrelay.store.tenant.tables import outbox
from comfyrelay.store.types import relay_now


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingSubmission:
    """Jobs of one shard that are not in the queue yet."""

    id: int
    job_ids: Sequence[str]


async def submit(tx: Tx, job_ids: Sequence[str]) -> PendingSubmission:
    (row,) = await tx.fetch(_submit, with_rows([{"job_ids": list(job_ids)}]))
    return PendingSubmission(id=row.id, job_ids=job_ids)


@cache
def _submit(dialect: str) -> Executable:
    return submission_query(dialect)


def submission_query(dialect: str, *, parameter: str = "rows") -> ReturningInsert[int]:
    rows = rows_table(dialect, columns_of(outbox, "job_ids"), parameter=parameter, alias="s")
    query = insert_selected(dialect, outbox, ["job_ids", "created_at"], select(rows.c.job_ids, relay_now()))
    return query.returning(outbox.c.id)
