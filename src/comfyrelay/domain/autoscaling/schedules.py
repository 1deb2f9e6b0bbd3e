"""Never fewer than so many, at these hours: as the clocks of a place show them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from comfyrelay.domain.autoscaling.spec import Schedule
from comfyrelay.errors import InvalidInput


def zone(name: str) -> tzinfo:
    if name == "UTC":
        # known even where no time zones are installed
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput(f"There is no time zone {name!r}. Name one as in Europe/Berlin.") from None


def at_least(schedules: Sequence[Schedule], now: datetime) -> int:
    """How many machines the schedules ask for at `now`: the most that any of them does."""
    return max((each.at_least for each in schedules if _covers(each, now)), default=0)


def _covers(schedule: Schedule, now: datetime) -> bool:
    here = now.astimezone(zone(schedule.timezone))
    clock = here.time()
    if schedule.begins < schedule.ends:
        return here.weekday() in schedule.days and schedule.begins <= clock < schedule.ends
    if clock >= schedule.begins:
        return here.weekday() in schedule.days
    # past midnight it is still the day on which it began
    return clock < schedule.ends and (here - timedelta(days=1)).weekday() in schedule.days
