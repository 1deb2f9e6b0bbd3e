"""Pagination that reads at most a fixed number of rows per page."""

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, Text, cast, func, select

from comfyrelay.store.database import Tx

T = TypeVar("T")

# Maximum number of rows that a page may scan for a filter without an index, which takes about 30 ms.
MAX_SCANNED = 20_000
# A page ends when its large columns reach this size, because loading and sending them blocks the event loop.
MAX_PAGE_BYTES = 2 * 1024**2

# Ids are assigned before a commit, so they are in the order of time only within this distance.
ID_OVERLAP = 1_000

# Returns conditions without an index for the columns of a list.
Conditions = Callable[[Any], Sequence[ColumnElement[bool]]]


async def page(
    tx: Tx, record: Callable[..., T], rows: Select[Any], key: ColumnElement[Any], *, after: Any, limit: int
) -> tuple[list[T], Any]:
    """Return a page of `rows`, lowest key first, and the key of the next page; `None` after the last."""
    if after is not None:
        rows = rows.where(key > after)
    return page_of((await tx.execute(rows.order_by(key).limit(limit + 1))).all(), record, key.name, limit=limit)


async def newest_page(
    tx: Tx,
    record: Callable[..., T],
    rows: Select[Any],
    key: ColumnElement[Any],
    *,
    before: Any,
    limit: int,
    unindexed: Conditions | None = None,
    max_scanned: int = MAX_SCANNED,
) -> tuple[list[T], Any]:
    """Return a page of `rows`, highest key first, and the key of the next page; `None` after the last.

    `rows` uses an index. The `unindexed` conditions are checked on at most `max_scanned` rows, so a page may be short
    or empty without being the last.
    """
    if unindexed is None:
        query = newest(rows, key, before=before, limit=limit + 1)
        return page_of((await tx.execute(query)).all(), record, key.name, limit=limit)
    window = newest(rows, key, before=before, limit=max_scanned)
    scanned = window.subquery("scanned")
    query = select(scanned).where(*unindexed(scanned.c)).order_by(scanned.c[key.name].desc()).limit(limit + 1)
    found, following = page_of((await tx.execute(query)).all(), record, key.name, limit=limit)
    if following is None:
        following = await tx.scalar(window.with_only_columns(key).offset(max_scanned - 1).limit(1))
    return found, following


async def in_period(
    tx: Tx,
    rows: Select[Any],
    key: ColumnElement[int],
    created_at: ColumnElement[datetime],
    *,
    begins: datetime | None,
    ends: datetime | None,
) -> Select[Any]:
    """Limit `rows` to the ids of a period. Rows at its ends may be outside of it, so check their times, too."""
    if begins is not None:
        rows = rows.where(key >= await _first_id_since(tx, key, created_at, begins) - ID_OVERLAP)
    if ends is not None:
        rows = rows.where(key < await _first_id_since(tx, key, created_at, ends) + ID_OVERLAP)
    return rows


async def _first_id_since(tx: Tx, key: ColumnElement[int], created_at: ColumnElement[datetime], at: datetime) -> int:
    """Find the first id since a time by bisection, because the times have no index."""
    [ends] = await tx.execute(select(func.min(key), func.max(key)))
    low, high = ends[0] or 0, (ends[1] or 0) + 1
    while low < high:
        middle = (low + high) // 2
        row = (await tx.execute(select(key, created_at).where(key >= middle).order_by(key).limit(1))).first()
        if row is None or row[1] >= at:
            high = middle
        else:
            low = row[0] + 1
    return low


async def short_page(
    tx: Tx,
    record: Callable[..., T],
    rows: Select[Any],
    large: ColumnElement[Any],
    order: Callable[[Select[Any], int], Select[Any]],
    *,
    limit: int,
) -> tuple[list[T], bool]:
    """Return up to `limit` records, and whether there are more. The page ends early at `MAX_PAGE_BYTES` of the `large`
    column, after at least one record.

    The sizes are read first, so that rows beyond the page are never loaded. `order` sorts rows and limits their number.
    """
    found = await tx.execute(order(rows.with_only_columns(func.length(cast(large, Text))), limit + 1))
    sizes: list[int] = list(found.scalars())
    totals = accumulate(sizes[:limit])
    count = sum(total <= MAX_PAGE_BYTES for total in totals)
    records = await tx.all(record, order(rows, max(1, count)))
    return records, len(sizes) > len(records)


def newest(rows: Select[Any], key: ColumnElement[Any], *, before: Any, limit: int) -> Select[Any]:
    """Limit `rows` to the highest keys below `before`, highest first."""
    if before is not None:
        rows = rows.where(key < before)
    return rows.order_by(key.desc()).limit(limit)


def page_of(found: Sequence[Any], record: Callable[..., T], key: str, *, limit: int) -> tuple[list[T], Any]:
    """Return the records of a page, and the key of the next page. The query must select one row more than `limit`."""
    following = getattr(found[limit - 1], key) if len(found) > limit else None
    return [record(**row._mapping) for row in found[:limit]], following
