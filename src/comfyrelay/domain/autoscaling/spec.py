"""What the operator says of a fleet: what its machines are, and how it is to be scaled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import time
from enum import StrEnum
from typing import Any

# The last machine of a fleet stays so long without work.
LAST_IDLE_SECONDS = 900.0
MAX_MACHINES = 10
# Beyond these nothing is meant, and what is counted with them would be beyond all bounds.
MOST_MACHINES = 10_000
MOST_SLOTS = 64
MOST_MONEY = 1e9
MOST_LAUNCHES_PER_MINUTE = 100
LEAST_SPEED, MOST_SPEED = 0.001, 1000.0
MOST_BOOT_SECONDS = 86_400.0
# Midnight, as the end of a schedule is written.
END_OF_DAY = "24:00"


class Policy(StrEnum):
    """`reference` does what alarms on queue depth do; the others weigh waiting against machines."""

    REFERENCE = "reference"
    CHEAP = "cheap"
    BALANCED = "balanced"
    FAST = "fast"


class MachineProviderName(StrEnum):
    """Who makes machines: nobody (they are simply there), this host, a script, an Auto Scaling group, a cluster.
    Other packages may bring others, by names of their own."""

    STATIC = "static"
    LOCAL = "local"
    COMMAND = "command"
    AWS = "aws"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceType:
    """One kind of machine. A job of 60 s takes 30 s on one with a speed of 2."""

    name: str
    price_per_hour: float = 0.0
    speed: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """The node classes and models that machines of a fleet have."""

    node_types: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineSpec:
    provider: MachineProviderName | str = MachineProviderName.STATIC
    image: str | None = None
    # the first is the one that is preferred
    instance_types: Sequence[InstanceType] = ()
    bundle: Bundle | None = None
    # jobs that one machine runs at once
    slots: int = 1
    # what only the provider knows of: subnets, a command, …
    options: Mapping[str, Any] = field(default_factory=dict)
    # why what is stored says nothing, where that is so
    unreadable: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Never fewer than `at_least` from `begins` to `ends` on these days (Monday is 0), as clocks in `timezone` show it.
    An end that is not after the begin is on the next day."""

    days: frozenset[int]
    begins: time
    ends: time
    at_least: int
    timezone: str = "UTC"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    min_machines: int = 0
    max_machines: int = MAX_MACHINES
    launches_per_minute: int = 10
    cost_per_hour: float | None = None
    # so many launches in a row that never became a worker, and no more are tried until the pause is over
    failed_boots: int = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingSpec:
    policy: Policy = Policy.BALANCED
    limits: Limits = field(default_factory=Limits)
    schedules: Sequence[Schedule] = ()
    last_idle_seconds: float = LAST_IDLE_SECONDS
    # decided and recorded, but not done
    is_dry_run: bool = False
    is_paused: bool = False
    # why what is stored says nothing, where that is so: then it is paused
    unreadable: str | None = None
