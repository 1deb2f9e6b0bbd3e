"""Column types and SQL functions that behave the same on SQLite and PostgreSQL."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import orjson
from sqlalchemy import (
    JSON,
    ColumnElement,
    DateTime,
    Dialect,
    Float,
    Text,
    case,
    cast,
    func,
    literal,
    literal_column,
    type_coerce,
)
from sqlalchemy.types import TypeDecorator

from comfyrelay.text import storable


class UtcTime(TypeDecorator[datetime]):
    """A time: `timestamptz` on PostgreSQL, and fixed-width UTC text on SQLite, which sorts by time."""

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


def relay_now(seconds: float | ColumnElement[Any] = 0.0) -> ColumnElement[datetime]:
    """Return the time of the database clock plus `seconds`. Jobs use no other clock. Tests replace the SQL function."""
    offset = seconds if isinstance(seconds, ColumnElement) else literal(float(seconds), Float())
    return func.relay_now(cast(offset, Float(53)), type_=UtcTime())


def relay_later(seconds: ColumnElement[Any], dialect: str) -> ColumnElement[datetime]:
    """Return the time of the database clock plus the seconds of each row.

    SQLite would call `relay_now` for each row, in Python and with a different time. So it is called once per statement,
    and SQLite adds the seconds, rounded to the millisecond.
    """
    if dialect != "sqlite":
        return relay_now(seconds)
    text = func.strftime("%Y-%m-%d %H:%M:%f000", relay_now(), cast(seconds, Text) + " seconds")
    return case((seconds == 0, relay_now()), else_=type_coerce(text, UtcTime()))


def sql_literal(value: str) -> ColumnElement[str]:
    """Return a constant as an SQL literal. With a parameter, the planner could not use a partial index."""
    return literal_column(f"'{value}'", Text())


def time_text(value: datetime) -> str:
    # `strftime` takes four times as long, and a settlement writes a dozen times.
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def json_value(value: Any) -> Any:
    """Decode the value of a JSON column, which PostgreSQL's driver returns as text."""
    return orjson.loads(value) if isinstance(value, str) else value


def json_text(value: Any, dialect: str) -> str:
    """Encode rows as JSON, with times in the format of the database and without characters that it cannot store."""
    # PostgreSQL parses orjson's times. SQLite needs a fixed width, so that times sort as text.
    option = orjson.OPT_PASSTHROUGH_DATETIME if dialect == "sqlite" else None
    with suppress(TypeError):
        encoded = orjson.dumps(value, default=_encode, option=option)
        if b"\\u0000" not in encoded:
            return encoded.decode()
    return orjson.dumps(storable(value), default=_encode, option=option).decode()


def _encode(value: Any) -> Any:
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be encoded as a row value")
