"""Minimum numbers of machines at certain hours, in a time zone."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from comfyrelay.domain.autoscaling.spec import Schedule
from comfyrelay.errors import InvalidInput


def time_zone(name: str) -> tzinfo:
    if name == "UTC":
        # UTC works without time zone data.
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput(f"There is no time zone {name!r}. Use a name such as Europe/Berlin.") from None


def scheduled_minimum(schedules: Sequence[Schedule], now: datetime) -> int:
    """Return the largest minimum of the schedules at `now`."""
    return max((schedule.at_least for schedule in schedules if _covers(schedule, now)), default=0)


def _covers(schedule: Schedule, now: datetime) -> bool:
    local = now.astimezone(time_zone(schedule.timezone))
    clock = local.time()
    if schedule.begins < schedule.ends:
        return local.weekday() in schedule.days and schedule.begins <= clock < schedule.ends
    if clock >= schedule.begins:
        return local.weekday() in schedule.days
    # After midnight a schedule still belongs to the day on which it started.
    return clock < schedule.ends and (local - timedelta(days=1)).weekday() in schedule.days
