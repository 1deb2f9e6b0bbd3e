"""Long lists, page by page, never looking through more rows for a page than a fixed number."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, select

from comfyrelay.store.database import Tx

# Rows that one page may look through for a filter that no index serves: some 30 ms.
MOST_SCANNED = 20_000

# Conditions over the columns of a list that no index serves.
Loose = Callable[[Any], Sequence[ColumnElement[bool]]]


async def newest_first(
    tx: Tx,
    rows: Select[Any],
    key: ColumnElement[Any],
    *,
    limit: int,
    loose: Loose | None = None,
    most: int = MOST_SCANNED,
) -> tuple[Sequence[Any], Any]:
    """A page of `rows`, highest key first, and the key to go on before; `None` when there is nothing more.

    `rows` hold what an index finds. `loose` conditions are tried on at most `most` of them, so a page
    may be short, or even empty, and still not be the last.
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
    """The rows of a page, of which one more than fits was asked for, and the key of the last if there are more."""
    if len(found) <= limit:
        return found, None
    return found[:limit], getattr(found[limit - 1], key)
