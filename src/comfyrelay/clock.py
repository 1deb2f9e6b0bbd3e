"""The clock of this machine. Decisions about jobs use the database clock instead."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    return datetime.now(UTC)
