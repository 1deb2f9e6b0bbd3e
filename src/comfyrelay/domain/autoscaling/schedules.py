"""Minimum numbers of machines at certain hours, in a time zone."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from comfyrelay.domain.autoscaling.spec import Schedule
from comfyrelay.errors import InvalidInput


def zone(name: str) -> tzinfo:
    if name == "UTC":
        # known even without time zone data
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput(f"There is no time zone {name!r}. Name one as in Europe/Berlin.") from None


def at_least(schedules: Sequence[Schedule], now: datetime) -> int:
    """The largest minimum of the schedules at `now`."""
    return max((schedule.at_least for schedule in schedules if _covers(schedule, now)), default=0)


def _covers(schedule: Schedule, now: datetime) -> bool:
    here = now.astimezone(zone(schedule.timezone))
    clock = here.time()
    if schedule.begins < schedule.ends:
        return here.weekday() in schedule.days and schedule.begins <= clock < schedule.ends
    if clock >= schedule.begins:
        return here.weekday() in schedule.days
    # after midnight it still belongs to the day on which it started
    return clock < schedule.ends and (here - timedelta(days=1)).weekday() in schedule.days
