"""Pagination that reads at most a fixed number of rows per page."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, select

from comfyrelay.store.database import Tx

# Rows that a page may scan for a filter without an index: about 30 ms.
MAX_SCANNED = 20_000

# Conditions without an index, over the columns of a list.
Loose = Callable[[Any], Sequence[ColumnElement[bool]]]


async def newest_first(
    tx: Tx,
    rows: Select[Any],
    key: ColumnElement[Any],
    *,
    limit: int,
    loose: Loose | None = None,
    most: int = MAX_SCANNED,
) -> tuple[Sequence[Any], Any]:
    """Return a page of `rows`, highest key first, and the key of the next page; `None` after the last.

    `rows` uses an index. The `loose` conditions are checked on at most `most` rows, so a page may be short or empty
    without being the last.
    """
    name = key.name
    ordered = rows.order_by(key.desc())
    if loose is None:
        return one_page((await tx.execute(ordered.limit(limit + 1))).all(), name, limit=limit)
    window = ordered.limit(most).subquery("scanned")
    query = select(window).where(*loose(window.c)).order_by(window.c[name].desc()).limit(limit + 1)
    found, after = one_page((await tx.execute(query)).all(), name, limit=limit)
    if after is None:
        last = ordered.with_only_columns(key).offset(most - 1).limit(1)
        after = await tx.scalar(last)
    return found, after


def one_page(found: Sequence[Any], key: str, *, limit: int) -> tuple[Sequence[Any], Any]:
    """Return the rows of a page and the key of the next one. The query must have selected one row more than `limit`."""
    if len(found) <= limit:
        return found, None
    return found[:limit], getattr(found[limit - 1], key)
