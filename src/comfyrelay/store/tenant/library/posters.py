"""Files that need a poster."""

from functools import cache

from sqlalchemy import BigInteger, Float, bindparam, select, update
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.updates import MediaFacts
from comfyrelay.domain.records.jobs import FileRecord
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant.tables import files
from comfyrelay.store.types import relay_now

_FILE = [files.c[name] for name in FileRecord.__dataclass_fields__]


async def claim(tx: Tx, *, limit: int, lease_seconds: float) -> list[FileRecord]:
    """Claim due files for a while."""
    rows = await tx.fetch(_claim, {"limit": limit, "lease_seconds": lease_seconds})
    return [FileRecord(**row._mapping) for row in rows]


@cache
def _claim(_dialect: str) -> Executable:
    due = (
        select(files.c.id)
        .where(files.c.poster_due_at <= relay_now(), files.c.removing_at.is_(None))
        .order_by(files.c.poster_due_at)
        .limit(bindparam("limit", type_=BigInteger()))
        .with_for_update(skip_locked=True)
        .cte("due")
    )
    later = relay_now(bindparam("lease_seconds", type_=Float()))
    return update(files).values(poster_due_at=later).where(files.c.id == due.c.id).returning(*_FILE)


async def record(tx: Tx, file_id: str, media: MediaFacts) -> bool:
    """Record the poster and preview of a file; false if it was deleted."""
    values = {name: getattr(media, name) for name in ("width", "height", "seconds", "poster", "preview")}
    query = update(files).values(**values, poster_due_at=None).where(files.c.id == file_id)
    return await tx.exists(query.returning(files.c.id))
