"""The gallery: filter and mark outputs, collections, and downloads of several outputs."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    Text,
    bindparam,
    case,
    cast,
    delete,
    func,
    insert,
    literal,
    literal_column,
    null,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql import Executable

from comfyrelay.domain.gallery import GalleryFilter, GalleryOutput, GallerySort, GridItem, Mark, MarkChange, MarkFilter
from comfyrelay.store.database import Tx, conflict_on_violation
from comfyrelay.store.row_parameters import (
    columns_of,
    ids_table,
    insert_into,
    insert_selected,
    rows_table,
    with_ids,
    with_rows,
)
from comfyrelay.store.tenant.job_list import contains_text, input_values, without
from comfyrelay.store.tenant.jobs import listed_payload
from comfyrelay.store.tenant.tables import ai_jobs, batches, collection_items, collections, files, outputs, zips
from comfyrelay.store.types import UtcTime, json_value, relay_now, sql_literal

# A value may be a whole file, so only its beginning is searched.
_MAX_TEXT_LENGTH = 2000
# Outputs of jobs with longer values have no prompt when they are grouped, because all of them are read at once.
_MAX_GROUPED_LENGTH = 8 * 1024
# Time zones differ by multiples of 15 minutes.
SLOT_SECONDS = 900
_NEW = ("id", "job_id", "number", "kind")
_OF_JOB = ("tenant_id", "batch_id", "item_no", "workflow_id", "label")
_OUTPUT_NAMES = ("id", "tenant_id", "job_id", "number", "batch_id", "item_no", "workflow_id", "label", "mark", "note")
_FILE_NAMES = ("path", "mime_type", "size", "width", "height", "seconds", "poster", "preview")
_OUTPUT = [
    *(outputs.c[name] for name in (*_OUTPUT_NAMES, "created_at")),
    *(files.c[name] for name in _FILE_NAMES),
    batches.c.label.label("batch_label"),
    listed_payload().label("payload"),
]
_FROM = (
    outputs.join(files, files.c.id == outputs.c.id)
    .join(ai_jobs, ai_jobs.c.id == outputs.c.job_id)
    .outerjoin(batches, batches.c.id == outputs.c.batch_id)
)
_GRID_ITEM = [
    *(outputs.c[name] for name in ("id", "created_at", "batch_id", "workflow_id")),
    files.c.width,
    files.c.height,
]
# Few files are marked for deletion, and they have an index.
_IS_KEPT = outputs.c.id.not_in(select(files.c.id).where(files.c.removing_at.is_not(None)))


class CollectionRow(NamedTuple):
    """A collection, its number of outputs, and its newest output with a poster, if any."""

    id: str
    name: str
    created_at: datetime
    outputs: int
    cover_id: str | None


async def write(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """Record new outputs of jobs. The other fields come from the jobs."""
    await tx.write(_write, with_rows(rows))


@cache
def _write(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(outputs, *_NEW))
    values = (*(r.c[name] for name in _NEW), *(ai_jobs.c[name] for name in _OF_JOB), _texts(dialect), relay_now())
    rows = select(*values).join(ai_jobs, ai_jobs.c.id == r.c.job_id)
    return insert_selected(dialect, outputs, [*_NEW, *_OF_JOB, "texts", "created_at"], rows).on_conflict_do_nothing()


def _texts(dialect: str) -> ColumnElement[str]:
    """Return the input values of a job, one per line."""
    join, newline = (func.group_concat, "char(10)") if dialect == "sqlite" else (func.string_agg, "chr(10)")
    values = input_values(dialect)
    line = func.substr(values.c.value, literal_column("1"), literal_column(str(_MAX_TEXT_LENGTH)))
    return select(join(line, literal_column(newline, Text()))).select_from(values).scalar_subquery()


def list_query(
    tenant_id: str,
    wanted: GalleryFilter,
    *,
    sort: GallerySort = GallerySort.NEWEST,
    after: tuple[datetime, str] | None = None,
    limit: int = 50,
    dialect: str = "postgresql",
) -> Select[Any]:
    """Select a tenant's outputs in order of creation. `after` is the end of the previous page."""
    query = select(*_OUTPUT).select_from(_FROM).where(*_conditions(tenant_id, wanted, dialect)).limit(limit)
    return _sorted(query, sort=sort, after=after)


def grid_query(
    tenant_id: str,
    wanted: GalleryFilter,
    *,
    sort: GallerySort = GallerySort.NEWEST,
    with_payload: bool = False,
    limit: int,
    dialect: str = "postgresql",
) -> Select[Any]:
    """Select many outputs in order of creation, with only the fields that the layout needs."""
    found = outputs.join(files, files.c.id == outputs.c.id)
    if with_payload:
        found = found.join(ai_jobs, ai_jobs.c.id == outputs.c.job_id)
    payload = listed_payload(_MAX_GROUPED_LENGTH) if with_payload else null()
    query = select(*_GRID_ITEM, payload.label("payload"))
    query = query.select_from(found).where(*_conditions(tenant_id, wanted, dialect)).limit(limit)
    return _sorted(query, sort=sort)


def _sorted(query: Select[Any], *, sort: GallerySort, after: tuple[datetime, str] | None = None) -> Select[Any]:
    created_at, id_ = outputs.c.created_at, outputs.c.id
    if after is not None:
        place, end = tuple_(created_at, id_), tuple_(literal(after[0], UtcTime()), literal(after[1], Text()))
        query = query.where(place < end if sort is GallerySort.NEWEST else place > end)
    if sort is GallerySort.NEWEST:
        return query.order_by(created_at.desc(), id_.desc())
    return query.order_by(created_at, id_)


def count_query(tenant_id: str, wanted: GalleryFilter, *, dialect: str = "postgresql") -> Select[Any]:
    return select(func.count()).select_from(outputs).where(*_conditions(tenant_id, wanted, dialect))


def slots_query(tenant_id: str, wanted: GalleryFilter, *, dialect: str = "postgresql") -> Select[Any]:
    """Count outputs per 15 minutes since 1970."""
    seconds = (
        cast(func.strftime("%s", outputs.c.created_at), Integer)
        if dialect == "sqlite"
        else cast(func.floor(func.extract("epoch", outputs.c.created_at)), BigInteger)
    )
    slot = seconds.op("/")(literal_column(str(SLOT_SECONDS)))
    counted = select(slot.label("slot"), func.count().label("outputs")).select_from(outputs)
    return counted.where(*_conditions(tenant_id, wanted, dialect)).group_by(slot)


def _conditions(tenant_id: str, wanted: GalleryFilter, dialect: str) -> list[ColumnElement[bool]]:
    found = [outputs.c.tenant_id == tenant_id, _IS_KEPT]
    if wanted.workflow_ids is not None:
        found.append(outputs.c.workflow_id.in_(sorted(wanted.workflow_ids)))
    if wanted.batch_id is not None:
        found.append(outputs.c.batch_id == wanted.batch_id)
    if wanted.kind is not None:
        found.append(outputs.c.kind == wanted.kind)
    if wanted.mark is MarkFilter.UNMARKED:
        found.append(outputs.c.mark.is_(None))
    elif wanted.mark is not None:
        found.append(outputs.c.mark == wanted.mark)
    if wanted.collection_id is not None:
        i = collection_items.c
        in_collection = select(i.output_id).where(i.collection_id == wanted.collection_id, i.tenant_id == tenant_id)
        found.append(outputs.c.id.in_(in_collection))
    if wanted.since is not None:
        found.append(outputs.c.created_at >= wanted.since)
    if wanted.until is not None:
        found.append(outputs.c.created_at < wanted.until)
    for term in wanted.terms:
        contains = contains_text(term.text, dialect)
        # The subquery is evaluated once, not per output.
        of_label = select(batches.c.id).where(batches.c.tenant_id == tenant_id, contains(batches.c.label))
        is_match = or_(
            *(contains(column) for column in (outputs.c.label, outputs.c.texts, outputs.c.note)),
            outputs.c.batch_id.in_(of_label),
            outputs.c.workflow_id.in_(sorted(term.workflow_ids)),
        )
        found.append(without(is_match) if term.is_excluded else is_match)
    return found


async def page(tx: Tx, tenant_id: str, wanted: GalleryFilter, **options: Any) -> list[GalleryOutput]:
    return await tx.all(GalleryOutput, list_query(tenant_id, wanted, **options, dialect=tx.dialect))


async def grid_items(tx: Tx, tenant_id: str, wanted: GalleryFilter, **options: Any) -> list[GridItem]:
    query = grid_query(tenant_id, wanted, **options, dialect=tx.dialect)
    # Fetched at once and read by position: for thousands of rows, anything else takes longer than the query.
    return [GridItem._make(row) for row in (await tx.execute(query)).all()]


async def count(tx: Tx, tenant_id: str, wanted: GalleryFilter) -> int:
    return int(await tx.scalar(count_query(tenant_id, wanted, dialect=tx.dialect)))


async def slots(tx: Tx, tenant_id: str, wanted: GalleryFilter) -> list[tuple[int, int]]:
    query = slots_query(tenant_id, wanted, dialect=tx.dialect)
    return [(int(row.slot), row.outputs) for row in await tx.execute(query)]


async def by_ids(tx: Tx, tenant_id: str, ids: Iterable[str]) -> dict[str, GalleryOutput]:
    """Return the existing outputs of the tenant."""
    rows = await tx.fetch(_by_ids, {**with_ids(ids), "tenant_id": tenant_id})
    return {row.id: GalleryOutput(**{**row._mapping, "payload": json_value(row.payload)}) for row in rows}


@cache
def _by_ids(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    # Look up each id. SQLite would otherwise scan all outputs of the tenant.
    own = outputs.c.tenant_id.concat("") == bindparam("tenant_id", type_=Text())
    found = _FROM.join(r, r.c.id == outputs.c.id)
    return select(*_OUTPUT).select_from(found).where(own, files.c.removing_at.is_(None))


async def of_jobs(tx: Tx, tenant_id: str, job_ids: Collection[str]) -> dict[str, dict[str, int]]:
    """Return the outputs of jobs: job id → output id → number, in order."""
    query = of_jobs_query(tenant_id, job_ids, outputs.c.job_id, outputs.c.id, outputs.c.number)
    found: dict[str, dict[str, int]] = {}
    for row in await tx.execute(query.order_by(outputs.c.job_id, outputs.c.number)):
        found.setdefault(row.job_id, {})[row.id] = row.number
    return found


async def count_of_jobs(tx: Tx, tenant_id: str, job_ids: Collection[str]) -> dict[str, tuple[int, int]]:
    """Return the number of the first output of each job, and how many outputs it has."""
    columns = (outputs.c.job_id, func.min(outputs.c.number).label("first"), func.count().label("outputs"))
    rows = await tx.execute(of_jobs_query(tenant_id, job_ids, *columns).group_by(outputs.c.job_id))
    return {row.job_id: (row.first, row.outputs) for row in rows}


def of_jobs_query(tenant_id: str, job_ids: Collection[str], *columns: ColumnElement[Any]) -> Select[Any]:
    # Look up each job. SQLite would otherwise scan all outputs of the tenant.
    own = outputs.c.tenant_id.concat("") == tenant_id
    return select(*columns).select_from(outputs).where(own, outputs.c.job_id.in_(job_ids), _IS_KEPT)


async def mark(tx: Tx, tenant_id: str, ids: Iterable[str], change: MarkChange) -> None:
    values: dict[str, Any] = {}
    if change.note is not None:
        values["note"] = change.note or None
    switches = {Mark.STARRED: change.starred, Mark.REJECTED: change.rejected}
    cleared = [sql_literal(mark) for mark, is_on in switches.items() if is_on is False]
    if change.starred or change.rejected:
        values["mark"] = Mark.STARRED if change.starred else Mark.REJECTED
    elif cleared:
        values["mark"] = case((outputs.c.mark.in_(cleared), null()), else_=outputs.c.mark)
    if values:
        own = (outputs.c.tenant_id == tenant_id) & outputs.c.id.in_(list(ids))
        await tx.execute(update(outputs).where(own).values(values))


async def create_collection(tx: Tx, *, id_: str, tenant_id: str, name: str) -> None:
    with conflict_on_violation(f"There is already a collection {name!r}."):
        values = {"id": id_, "tenant_id": tenant_id, "name": name}
        await tx.execute(insert(collections).values(**values, created_at=relay_now()))


async def rename_collection(tx: Tx, tenant_id: str, collection_id: str, name: str) -> bool:
    """Rename a collection; false if it does not exist."""
    query = update(collections).where(*_own_collection(tenant_id, collection_id)).values(name=name)
    with conflict_on_violation(f"There is already a collection {name!r}."):
        return await tx.exists(query.returning(collections.c.id))


async def remove_collection(tx: Tx, tenant_id: str, collection_id: str) -> bool:
    """Delete a collection, but not its outputs; false if it does not exist."""
    query = delete(collections).where(*_own_collection(tenant_id, collection_id))
    return await tx.exists(query.returning(collections.c.id))


async def lock_collection(tx: Tx, tenant_id: str, collection_id: str) -> bool:
    """Lock a collection until the transaction ends; false if it does not exist."""
    query = select(collections.c.id).where(*_own_collection(tenant_id, collection_id))
    return await tx.exists(query.with_for_update(read=True, key_share=True))


def _own_collection(tenant_id: str, collection_id: str) -> tuple[ColumnElement[bool], ...]:
    return collections.c.tenant_id == tenant_id, collections.c.id == collection_id


async def count_collections(tx: Tx, tenant_id: str) -> int:
    return int(await tx.scalar(select(func.count()).where(collections.c.tenant_id == tenant_id)))


async def all_collections(tx: Tx, tenant_id: str, *, id_: str | None = None) -> list[CollectionRow]:
    """Return all collections by name, or one."""
    i, c = collection_items.c, collections.c
    # The cover is the newest output with a poster. Audio and text would leave the cover empty.
    order = (files.c.poster.is_(None), outputs.c.created_at.desc(), outputs.c.id.desc())
    place = func.row_number().over(partition_by=i.collection_id, order_by=order).label("place")
    size = func.count().over(partition_by=i.collection_id).label("size")
    items = (
        select(i.collection_id, i.output_id, place, size)
        .join(outputs, outputs.c.id == i.output_id)
        .join(files, files.c.id == outputs.c.id)
        .where(i.tenant_id == tenant_id, _IS_KEPT)
        .subquery()
    )
    query = (
        select(c.id, c.name, c.created_at, func.coalesce(items.c.size, 0), items.c.output_id)
        .outerjoin(items, (items.c.collection_id == c.id) & (items.c.place == 1))
        .where(c.tenant_id == tenant_id)
        .order_by(func.lower(c.name), c.id)
    )
    if id_ is not None:
        query = query.where(c.id == id_)
    return [CollectionRow._make(row) for row in await tx.execute(query)]


async def add_to(tx: Tx, tenant_id: str, collection_id: str, ids: Iterable[str]) -> None:
    rows = select(literal(collection_id), outputs.c.id, outputs.c.tenant_id)
    rows = rows.where(outputs.c.tenant_id == tenant_id, outputs.c.id.in_(list(ids)))
    query = insert_into(tx.dialect, collection_items).from_select(["collection_id", "output_id", "tenant_id"], rows)
    await tx.execute(query.on_conflict_do_nothing())


async def remove_from(tx: Tx, tenant_id: str, collection_id: str, ids: Iterable[str]) -> None:
    i = collection_items.c
    is_given = (i.tenant_id == tenant_id) & (i.collection_id == collection_id) & i.output_id.in_(list(ids))
    await tx.execute(delete(collection_items).where(is_given))


async def collections_of(tx: Tx, ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the collections of outputs by output."""
    c = collection_items.c
    query = select(c.output_id, c.collection_id).where(c.output_id.in_(ids)).order_by(c.collection_id)
    found: dict[str, list[str]] = {}
    for row in await tx.execute(query):
        found.setdefault(row.output_id, []).append(row.collection_id)
    return found


async def create_zip(
    tx: Tx, *, id_: str, tenant_id: str, user_id: str, output_ids: Sequence[str], ttl_seconds: float
) -> None:
    """Create a download of several outputs, and delete expired ones."""
    await tx.execute(delete(zips).where(zips.c.expires_at <= relay_now()))
    values = {"id": id_, "tenant_id": tenant_id, "user_id": user_id, "output_ids": list(output_ids)}
    await tx.execute(insert(zips).values(**values, expires_at=relay_now(ttl_seconds)))


async def zip_of(tx: Tx, tenant_id: str, user_id: str, zip_id: str) -> list[str] | None:
    """Return the outputs of a download; `None` if it has expired or belongs to another user."""
    z = zips.c
    query = select(z.output_ids).where(z.id == zip_id, z.tenant_id == tenant_id, z.user_id == user_id)
    found: list[str] | None = await tx.scalar(query.where(z.expires_at > relay_now()))
    return found
