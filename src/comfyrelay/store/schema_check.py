"""Compare the tables of a database with their definitions.

SQLAlchemy's reflection runs several queries per table, which takes half a second at every start of a desk. A few
queries of the catalogs of SQLite and PostgreSQL take milliseconds.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

from sqlalchemy import (
    CheckConstraint,
    Column,
    Connection,
    Dialect,
    ForeignKeyConstraint,
    MetaData,
    Table,
    UniqueConstraint,
    text,
)
from sqlalchemy.schema import CreateIndex

from comfyrelay.store import definitions

# A part of a schema: its table, its kind, and its name.
Part = tuple[str, str, str]
Parts = Mapping[Part, str]

# Tables of the schema itself.
OWN_TABLES = frozenset({"alembic_version", "applied_migrations"})
MAX_LISTED = 5

_COLUMN, _INDEX, _CHECK = "column", "index", "check constraint"
_NORMALISE = {_INDEX: definitions.index, _CHECK: definitions.check}
_PRIMARY_KEY, _UNIQUE, _FOREIGN_KEY = "primary key", "unique constraint", "foreign key"
# `Float` is stored as this type.
_STORED_TYPES = {"float": "double precision"}
_CHECK_START = re.compile(r'CONSTRAINT "?(\w+)"? CHECK \(')

_SQLITE_TABLES = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
_SQLITE_COLUMNS = """
SELECT t.name AS of_table, c.name, lower(c.type) AS type, c."notnull" AS is_required, c.dflt_value AS value, c.pk
  FROM sqlite_master t JOIN pragma_table_xinfo(t.name) c
 WHERE t.type = 'table' AND t.name <> 'sqlite_sequence' ORDER BY t.name, c.pk
"""
_SQLITE_UNIQUE = """
SELECT t.name AS of_table, i.name, c.name AS column_name
  FROM sqlite_master t JOIN pragma_index_list(t.name) i JOIN pragma_index_info(i.name) c
 WHERE t.type = 'table' AND i.origin = 'u' ORDER BY t.name, i.name, c.seqno
"""
_SQLITE_FOREIGN_KEYS = """
SELECT t.name AS of_table, k.id, k."from" AS column_name, k."table" AS target, k."to" AS target_column,
       k.on_update, k.on_delete
  FROM sqlite_master t JOIN pragma_foreign_key_list(t.name) k WHERE t.type = 'table' ORDER BY t.name, k.id, k.seq
"""
_POSTGRES_COLUMNS = """
SELECT t.relname AS of_table, c.attname AS name, format_type(c.atttypid, c.atttypmod) AS type,
       c.attnotnull AS is_required, pg_get_expr(d.adbin, d.adrelid) AS value,
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = t.oid AND i.indisprimary AND c.attnum = ANY (i.indkey)) AS pk
  FROM pg_class t JOIN pg_attribute c ON c.attrelid = t.oid
  LEFT JOIN pg_attrdef d ON d.adrelid = t.oid AND d.adnum = c.attnum
 WHERE t.relnamespace = current_schema()::regnamespace AND t.relkind IN ('r', 'p')
   AND c.attnum > 0 AND NOT c.attisdropped
"""
_POSTGRES_CONSTRAINTS = """
SELECT t.relname AS of_table, c.contype::text AS kind, c.conname AS name, pg_get_constraintdef(c.oid) AS definition
  FROM pg_constraint c JOIN pg_class t ON t.oid = c.conrelid
 WHERE t.relnamespace = current_schema()::regnamespace AND c.contype IN ('p', 'u', 'f', 'c')
"""
_POSTGRES_INDEXES = """
SELECT t.relname AS of_table, n.relname AS name, pg_get_indexdef(i.indexrelid) AS definition,
       i.indisvalid AS is_valid
  FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid JOIN pg_class n ON n.oid = i.indexrelid
 WHERE t.relnamespace = current_schema()::regnamespace
   AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid AND c.contype IN ('p', 'u'))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaDifferences:
    """`breaking` differences must not be ignored. `harmless` ones are additions, such as an operator's index."""

    breaking: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()


def compare(connection: Connection, metadata: MetaData) -> SchemaDifferences:
    expected, found = _expected(metadata, connection.dialect), _found(connection)
    missing_tables = {table for table, _, _ in expected} - {table for table, _, _ in found}
    breaking = [f"table {table} is missing" for table in sorted(missing_tables)]
    for part, wanted in sorted(expected.items()):
        if part[0] in missing_tables:
            continue
        if part not in found:
            breaking.append(f"{_describe(part)} is missing")
        elif (change := _change(part, found[part], wanted)) is not None:
            breaking.append(change)
    harmless: list[str] = []
    # Other tables are ignored.
    for part in sorted(part for part in found if part not in expected and part[0] in metadata.tables):
        # Rows could not be inserted without a value for this column.
        is_required = part[1] == _COLUMN and found[part].endswith(" NOT NULL") and " DEFAULT" not in found[part]
        (breaking if is_required else harmless).append(f"{_describe(part)} is not ours")
    return SchemaDifferences(breaking=tuple(breaking), harmless=tuple(harmless))


def listed(differences: tuple[str, ...]) -> str:
    more = len(differences) - MAX_LISTED
    return "; ".join(differences[:MAX_LISTED]) + (f"; and {more} more" if more > 0 else "")


def _change(part: Part, found: str, wanted: str) -> str | None:
    """Describe the difference between two definitions if their meanings differ."""
    if found != wanted and part[1] in _NORMALISE:
        found, wanted = (_NORMALISE[part[1]](definition) for definition in (found, wanted))
    return None if found == wanted else f"{_describe(part)} is {found}, not {wanted}"


def _describe(part: Part) -> str:
    table, kind, name = part
    return f"{kind} {table}.{name}" if kind == _COLUMN else f"{kind} {name} of {table}"


def _expected(metadata: MetaData, dialect: Dialect) -> Parts:
    """Return the parts of the table definitions."""
    parts: dict[Part, str] = {}
    for table in metadata.tables.values():
        parts.update(_expected_constraints(table, dialect))
        for column in table.columns:
            parts[table.name, _COLUMN, column.name] = _expected_column(column, dialect)
        for index in table.indexes:
            if index.info.get("only") in {None, dialect.name}:
                parts[table.name, _INDEX, str(index.name)] = str(CreateIndex(index).compile(dialect=dialect))
    return parts


def _expected_column(column: Column[Any], dialect: Dialect) -> str:
    type_name = column.type.compile(dialect=dialect).lower()
    value = None
    if column.server_default is not None:
        value = dialect.ddl_compiler(dialect, cast(Any, None)).get_column_default_string(column)
    elif dialect.name == "postgresql" and column is column.table.autoincrement_column:
        value = "nextval()"
    if dialect.name == "postgresql":
        type_name = _STORED_TYPES.get(type_name, type_name)
    return _column(type_name, value, is_required=not column.nullable and not column.primary_key)


def _expected_constraints(table: Table, dialect: Dialect) -> Iterator[tuple[Part, str]]:
    yield (table.name, _PRIMARY_KEY, _names(column.name for column in table.primary_key.columns)), ""
    for constraint in table.constraints:
        if isinstance(constraint, UniqueConstraint):
            yield (table.name, _UNIQUE, _names(column.name for column in constraint.columns)), ""
        elif isinstance(constraint, ForeignKeyConstraint):
            target = constraint.referred_table.name
            target_columns = [key.column.name for key in constraint.elements]
            part = _foreign_key(table.name, constraint.column_keys, target, target_columns)
            yield part, f"ON DELETE {constraint.ondelete}" if constraint.ondelete else ""
        elif isinstance(constraint, CheckConstraint):
            name = dialect.identifier_preparer.format_constraint(constraint)
            yield (table.name, _CHECK, str(name)), f"CHECK ({constraint.sqltext})"


def _found(connection: Connection) -> Parts:
    """Return the parts of the real schema."""
    read = _sqlite_parts if connection.dialect.name == "sqlite" else _postgres_parts
    return {part: definition for part, definition in read(connection) if part[0] not in OWN_TABLES}


def _sqlite_parts(connection: Connection) -> Iterator[tuple[Part, str]]:
    columns = connection.execute(text(_SQLITE_COLUMNS)).all()
    for column in columns:
        is_required = bool(column.is_required) and not column.pk
        yield (column.of_table, _COLUMN, column.name), _column(column.type, column.value, is_required=is_required)
    for table, rows in groupby(columns, itemgetter(0)):
        yield (table, _PRIMARY_KEY, _names(row.name for row in rows if row.pk)), ""
    for kind, name, table, sql in connection.execute(text(_SQLITE_TABLES)):
        if kind == "index":
            yield (table, _INDEX, name), sql
        elif kind == "table":
            for start in _CHECK_START.finditer(sql):
                inside, _ = definitions.in_parentheses(sql, start.end())
                yield (table, _CHECK, start[1]), f"CHECK ({inside})"
    for (table, _), rows in groupby(connection.execute(text(_SQLITE_UNIQUE)), itemgetter(0, 1)):
        yield (table, _UNIQUE, _names(row.column_name for row in rows)), ""
    for (table, _), grouped in groupby(connection.execute(text(_SQLITE_FOREIGN_KEYS)), itemgetter(0, 1)):
        keys = list(grouped)
        actions = {"ON UPDATE": keys[0].on_update, "ON DELETE": keys[0].on_delete}
        own, targets = [key.column_name for key in keys], [key.target_column for key in keys]
        text_of_actions = " ".join(f"{event} {action}" for event, action in actions.items() if action != "NO ACTION")
        yield _foreign_key(table, own, keys[0].target, targets), text_of_actions


def _postgres_parts(connection: Connection) -> Iterator[tuple[Part, str]]:
    columns = connection.execute(text(_POSTGRES_COLUMNS)).all()
    for column in columns:
        is_required = column.is_required and not column.pk
        yield (column.of_table, _COLUMN, column.name), _column(column.type, column.value, is_required=is_required)
    for index in connection.execute(text(_POSTGRES_INDEXES)):
        yield (index.of_table, _INDEX, index.name), index.definition if index.is_valid else "invalid"
    for constraint in connection.execute(text(_POSTGRES_CONSTRAINTS)):
        yield _postgres_constraint(constraint)


def _postgres_constraint(constraint: Any) -> tuple[Part, str]:
    table, definition = constraint.of_table, constraint.definition
    if constraint.kind == "c":
        return (table, _CHECK, constraint.name), definition
    lists = [re.findall(r"\w+", listed_columns) for listed_columns in re.findall(r"\(([^)]*)\)", definition)]
    if constraint.kind == "f":
        target = re.search(r"REFERENCES \"?(\w+)", definition)
        part = _foreign_key(table, lists[0], target[1] if target else "", lists[1])
        # The actions, and what else differs from a plain foreign key, such as `NOT VALID`.
        return part, definition.rpartition(")")[2].strip()
    return (table, _PRIMARY_KEY if constraint.kind == "p" else _UNIQUE, _names(lists[0])), ""


def _foreign_key(table: str, columns: Iterable[str], target: str, target_columns: Iterable[str]) -> Part:
    return table, _FOREIGN_KEY, f"{_names(columns)} to {target} {_names(target_columns)}"


def _column(type_name: str, value: str | None, *, is_required: bool) -> str:
    default = ""
    if value is not None:
        # PostgreSQL adds casts, and the name of the sequence.
        plain = re.sub(r"::[a-z ]+|nextval\(.*\)", "", value).strip("()'")
        default = f" DEFAULT {plain}".rstrip()
    return f"{type_name}{default}{' NOT NULL' if is_required else ''}"


def _names(columns: Iterable[str]) -> str:
    return f"({', '.join(columns)})"
