"""Column types and SQL functions that behave the same on SQLite and PostgreSQL."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
from sqlalchemy import JSON, ColumnElement, DateTime, Dialect, Float, Text, cast, func, literal, literal_column
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeDecorator

from comfyrelay.text import storable


class UtcTime(TypeDecorator[datetime]):
    """A time. PostgreSQL: `timestamptz`. SQLite: fixed-width UTC text, which sorts by time."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        if dialect.name == "sqlite":
            return dialect.type_descriptor(Text())
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None or dialect.name != "sqlite":
            return value
        return time_text(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None or dialect.name != "sqlite":
            return value  # type: ignore[no-any-return]
        return datetime.fromisoformat(f"{value}+00:00")


class JsonText(TypeDecorator[Any]):
    """A JSON value that is read and written whole, never searched."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.JSON(none_as_null=True))
        return dialect.type_descriptor(JSON(none_as_null=True))


def relay_now(seconds: float | ColumnElement[Any] = 0.0) -> ColumnElement[datetime]:
    """The database clock plus `seconds`: the only source of time for jobs. Tests replace the SQL function."""
    offset = seconds if isinstance(seconds, ColumnElement) else literal(float(seconds), Float())
    return func.relay_now(cast(offset, Float(53)), type_=UtcTime())


def sql_literal(value: str) -> ColumnElement[str]:
    """Return a constant as an SQL literal. With a parameter, the planner could not use a partial index."""
    return literal_column(f"'{value}'", Text())


def time_text(value: datetime) -> str:
    # strftime takes four times as long, and a settlement writes a dozen times
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def json_value(stored: Any) -> Any:
    """Return the value of a JSON column, which PostgreSQL's driver returns as text."""
    return orjson.loads(stored) if isinstance(stored, str) else stored


def json_text(value: Any, dialect: str) -> str:
    """Encode rows as JSON, with times in the format of the database and without characters that it cannot store."""
    # PostgreSQL parses orjson's times; SQLite needs a fixed width, so that times sort as text
    option = orjson.OPT_PASSTHROUGH_DATETIME if dialect == "sqlite" else None
    try:
        text = orjson.dumps(value, default=_encode, option=option)
    except TypeError:
        text = orjson.dumps(storable(value), default=_encode, option=option)
    if b"\\u0000" in text:
        text = orjson.dumps(storable(value), default=_encode, option=option)
    return text.decode()


def _encode(value: Any) -> Any:
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be encoded as a row value")
