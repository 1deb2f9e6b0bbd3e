"""The machine's clock. Decisions about jobs use the database's clock instead."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    return datetime.now(UTC)
