"""The time of this machine. What decides about jobs is the database's time, never this."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    return datetime.now(UTC)
