"""The operator's settings of a fleet: its machines and its autoscaling."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta, tzinfo
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from comfyrelay.errors import InvalidInput

# After this long without work, the next job begins a burst.
LAST_IDLE_SECONDS = 900.0
DEFAULT_MAX_MACHINES = 10
# Sanity limits: larger values are mistakes and would overflow.
MAX_MACHINES = 10_000
MAX_SLOTS = 64
MAX_MONEY = 1e9
MAX_LAUNCHES_PER_MINUTE = 100
MIN_SPEED, MAX_SPEED = 0.001, 1000.0
MAX_BOOT_SECONDS = 86_400.0
# Midnight as the end of a schedule.
END_OF_DAY = "24:00"


class Policy(StrEnum):
    """`reference` emulates alarms on queue depth. The others weigh waiting time against the cost of machines."""

    REFERENCE = "reference"
    CHEAP = "cheap"
    BALANCED = "balanced"
    FAST = "fast"


class MachineProviderName(StrEnum):
    """Built-in providers. Other packages may add more."""

    # Existing machines.
    STATIC = "static"
    # Processes on this host.
    LOCAL = "local"
    # An operator's script.
    COMMAND = "command"
    # EC2 Auto Scaling groups.
    AWS = "aws"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceType:
    """A machine type. A job of 60 s takes 30 s at a speed of 2."""

    name: str
    price_per_hour: float = 0.0
    speed: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """Node classes and models on the machines of a fleet."""

    node_types: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineSpec:
    """`instance_types` starts with the preferred type. A machine runs `slots` jobs at once.

    `options` are only for the provider. `unreadable` says why the stored settings cannot be read.
    """

    provider: MachineProviderName | str = MachineProviderName.STATIC
    image: str | None = None
    instance_types: Sequence[InstanceType] = ()
    bundle: Bundle | None = None
    slots: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    unreadable: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """At least `at_least` machines from `begins` to `ends` on these days (Monday is 0) in `timezone`.

    If `ends` is earlier than `begins`, it is on the next day.
    """

    days: frozenset[int]
    begins: time
    ends: time
    at_least: int
    timezone: str = "UTC"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Launching pauses after `failed_boots` consecutive rounds of launches without a worker."""

    min_machines: int = 0
    max_machines: int = DEFAULT_MAX_MACHINES
    launches_per_minute: int = 10
    cost_per_hour: float | None = None
    failed_boots: int = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingSpec:
    """A dry run decides and records, but takes no action.
    The last machine stays idle for `last_idle_seconds`, or by default for a learnt time.
    If the stored settings cannot be read, `unreadable` says why, and the fleet is paused.
    """

    policy: Policy = Policy.BALANCED
    limits: Limits = field(default_factory=Limits)
    schedules: Sequence[Schedule] = ()
    last_idle_seconds: float | None = None
    is_dry_run: bool = False
    is_paused: bool = False
    unreadable: str | None = None


def time_zone(name: str) -> tzinfo:
    if name == "UTC":
        # UTC works even without time zone data.
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
    # After midnight, a schedule still belongs to the day on which it started.
    return clock < schedule.ends and (local - timedelta(days=1)).weekday() in schedule.days
