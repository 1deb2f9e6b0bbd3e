"""Pass many rows as one parameter: a JSON array that a statement reads as a table.

On both databases, one statement writes one row or five thousand in one round trip with one plan. In this package, the
table of these rows is called `r`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    FromClause,
    Select,
    Table,
    Text,
    Update,
    and_,
    bindparam,
    cast,
    column,
    func,
    select,
    text,
    type_coerce,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.types import TypeEngine

from comfyrelay.store.types import JsonText

ColumnType = TypeEngine[Any] | type[TypeEngine[Any]]
Insert = postgresql.Insert | sqlite.Insert


def rows_table(
    dialect: str, columns: Mapping[str, ColumnType], *, parameter: str = "rows", alias: str = "r"
) -> FromClause:
    """Return the JSON array bound to `parameter` as a table with these columns."""
    bound = bindparam(parameter, type_=Text())
    if dialect == "postgresql":
        typed = [column(name, type_) for name, type_ in columns.items()]
        records = func.json_to_recordset(cast(bound, JSON)).table_valued(*typed, name=alias)
        return records.render_derived(name=alias, with_types=True)
    rows = func.json_each(bound).table_valued("value")
    return select(*(_sqlite_field(rows.c.value, name, type_) for name, type_ in columns.items())).subquery(alias)


def _sqlite_field(value: Any, name: str, type_: ColumnType) -> Any:
    if isinstance(type_, JsonText) or type_ is JsonText:
        field = func.nullif(value.op("->")(f"$.{name}"), "null")
    else:
        field = value.op("->>")(f"$.{name}")
    return type_coerce(field, type_).label(name)


def columns_of(table: Table, *names: str) -> dict[str, ColumnType]:
    """Return the named columns of a table with their types, for `rows_table`."""
    return {name: table.c[name].type for name in names}


def ids_table(dialect: str, type_: ColumnType = BigInteger) -> FromClause:
    return rows_table(dialect, {"id": type_})


def with_rows(rows: Iterable[object], parameter: str = "rows") -> dict[str, Any]:
    """Return the parameter of a statement that uses `rows_table`. The rows are read when it runs."""
    return {parameter: iter(rows)}


def with_ids(ids: Iterable[Any]) -> dict[str, Any]:
    """Return the parameter of a statement that uses `ids_table`."""
    return {"rows": ({"id": id_} for id_ in ids)}


def as_rows(objects: Iterable[Any], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the named attributes of each object. Not needed for dataclasses whose fields are the columns."""
    values = attrgetter(*names)
    return (dict(zip(names, values(object_), strict=True)) for object_ in objects)


def select_by_ids(dialect: str, key: Column[Any], *columns: Any) -> Select[Any]:
    """Return a SELECT of the rows whose key is one of the bound ids."""
    r = ids_table(dialect, key.type)
    return select(*columns).join(r, key == r.c.id)


def select_by_rows(dialect: str, table: Table, names: Sequence[str], *columns: Any) -> Select[Any]:
    """Return a SELECT of the rows whose named columns match a bound row."""
    r = rows_table(dialect, columns_of(table, *names))
    return select(*columns).join(r, and_(*(table.c[name] == r.c[name] for name in names)))


def insert_into(dialect: str, table: Table) -> Insert:
    """Return an INSERT that supports `ON CONFLICT`."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def insert_rows(dialect: str, table: Table, *names: str, **computed: ColumnElement[Any]) -> Insert:
    """Return an INSERT of the bound rows, with computed columns in addition. It supports `ON CONFLICT`."""
    r = rows_table(dialect, columns_of(table, *names))
    rows = select(*(r.c[name] for name in names), *computed.values())
    return insert_selected(dialect, table, [*names, *computed], rows)


def insert_selected(dialect: str, table: Table, names: Sequence[str], rows: Select[Any]) -> Insert:
    """Return an `INSERT … SELECT` that supports `ON CONFLICT`."""
    if dialect == "sqlite":
        # Without a WHERE, SQLite parses the ON of ON CONFLICT as part of a join.
        rows = rows.where(text("true"))
    return insert_into(dialect, table).from_select(names, rows)


def update_rows(dialect: str, table: Table, key: str, *names: str, **computed: Any) -> Update:
    """Return an UPDATE that copies the named columns of the bound rows, matched by `key`, and sets computed columns."""
    r = rows_table(dialect, columns_of(table, key, *names))
    return update(table).values({name: r.c[name] for name in names} | computed).where(table.c[key] == r.c[key])
