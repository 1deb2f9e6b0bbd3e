"""The admin API: machines of fleets, and autoscaling."""

from collections import Counter
from datetime import datetime, time
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from comfyrelay.domain.autoscaling.observation import MachineState
from comfyrelay.domain.autoscaling.spec import (
    END_OF_DAY,
    MAX_BOOT_SECONDS,
    MAX_LAUNCHES_PER_MINUTE,
    MAX_MACHINES,
    MAX_MONEY,
    MAX_SLOTS,
    MAX_SPEED,
    MIN_SPEED,
    MachineProviderName,
    Policy,
    time_zone,
)
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import InvalidInput
from comfyrelay.protocol.base import AnswerBody, Request
from comfyrelay.protocol.fields import Json, Line, OpenEnum, Reported, StrictInt
from comfyrelay.protocol.records import InstanceType


def _known_timezone(name: str) -> str:
    try:
        time_zone(name)
    except InvalidInput as error:
        raise ValueError(error.detail) from None
    return name


def _time_of_day(text: str) -> str:
    try:
        found = time.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time of day. Write it like 09:00.") from None
    if found.tzinfo is not None:
        raise ValueError(f"{text!r} has an offset. Write only the time, like 09:00, and set `timezone`.")
    return f"{found:%H:%M}"


def _end_time(text: str) -> str:
    return text if text == END_OF_DAY else _time_of_day(text)


Money = Annotated[float, Field(strict=True, ge=0, le=MAX_MONEY, allow_inf_nan=False)]
Machines = Annotated[StrictInt, Field(ge=0, le=MAX_MACHINES)]
TimeOfDay = Annotated[str, Field(max_length=20), AfterValidator(_time_of_day)]
EndTime = Annotated[str, Field(max_length=20), AfterValidator(_end_time)]
Timezone = Annotated[str, Field(max_length=100), AfterValidator(_known_timezone)]
Names = Annotated[list[Line], Field(max_length=20_000)]


class InstanceTypeBody(Request):
    """An instance type. With a `speed` of 2, a job of 60 s takes 30 s."""

    name: Line
    price_per_hour: Money = 0.0
    speed: Annotated[float, Field(strict=True, ge=MIN_SPEED, le=MAX_SPEED, allow_inf_nan=False)] = 1.0


class BundleBody(Request):
    """The node types and models that every machine of the fleet has."""

    node_types: Names = Field(default_factory=list)
    models: Names = Field(default_factory=list)


class FleetMachines(Request):
    """The machines of a fleet. Absent fields keep their value; null restores the default."""

    provider: Line | None = None
    image: Line | None = None
    instance_types: Annotated[list[InstanceTypeBody], Field(max_length=50)] | None = None
    bundle: BundleBody | None = None
    slots: Annotated[StrictInt, Field(ge=1, le=MAX_SLOTS)] | None = None
    options: Annotated[Json | None, Field(description="options for the machine provider")] = None

    @model_validator(mode="after")
    def _boot_seconds_in_range(self) -> Self:
        seconds = (self.options or {}).get("boot_seconds")
        if isinstance(seconds, int | float) and not 0 <= seconds <= MAX_BOOT_SECONDS:
            raise ValueError(
                f"options.boot_seconds is {seconds}. It must be between 0 and {MAX_BOOT_SECONDS:g} (one day)."
            )
        return self

    @model_validator(mode="after")
    def _unique_types(self) -> Self:
        counts = Counter(instance_type.name for instance_type in self.instance_types or ())
        if repeated := sorted(name for name, count in counts.items() if count > 1):
            raise ValueError(f"List each instance type once. These are repeated: {', '.join(repeated)}.")
        return self


class ScheduleBody(Request):
    """A minimum number of machines on these days (0 is Monday) between these times. An `ends` before `begins` is on the
    next day. 24:00 is the end of a day."""

    days: Annotated[list[Annotated[StrictInt, Field(ge=0, le=6)]], Field(min_length=1, max_length=7)]
    begins: TimeOfDay
    ends: EndTime
    at_least: Machines
    timezone: Timezone = "UTC"

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.begins == self.ends:
            raise ValueError(f"It begins and ends at {self.begins}. For a whole day write 00:00 to 24:00.")
        return self


class FleetAutoscaling(Request):
    """The autoscaling of a fleet. Absent fields keep their value; null restores the default."""

    policy: Policy | None = None
    min_machines: Machines | None = None
    max_machines: Machines | None = None
    launches_per_minute: Annotated[StrictInt, Field(ge=1, le=MAX_LAUNCHES_PER_MINUTE)] | None = None
    cost_per_hour: Money | None = None
    failed_boots: Annotated[StrictInt, Field(ge=1, le=1000)] | None = None
    schedules: Annotated[list[ScheduleBody], Field(max_length=50)] | None = None
    last_idle_seconds: Annotated[float, Field(strict=True, ge=0, le=1e7, allow_inf_nan=False)] | None = None
    is_dry_run: bool | None = None
    is_paused: bool | None = None


class BundleDetails(AnswerBody):
    node_types: list[str]
    models: list[str]


class FleetMachinesDetails(AnswerBody):
    provider: OpenEnum[MachineProviderName]
    image: str | None
    instance_types: list[InstanceType]
    bundle: BundleDetails | None
    slots: int
    options: dict[str, Any]


class ScheduleDetails(AnswerBody):
    days: list[int]
    begins: str
    ends: str
    at_least: int
    timezone: str


class FleetAutoscalingDetails(AnswerBody):
    policy: OpenEnum[Policy]
    min_machines: int
    max_machines: int
    launches_per_minute: int
    cost_per_hour: float | None
    failed_boots: int
    schedules: list[ScheduleDetails]
    last_idle_seconds: float | None
    is_dry_run: bool
    is_paused: bool


class Machine(AnswerBody):
    """A machine of a fleet. `busy_seconds_left` is the expected remaining time of its jobs."""

    id: str
    state: OpenEnum[MachineState]
    instance_type: str | None
    price_per_hour: float
    slots: int
    leases: int
    boot_seconds_left: float
    idle_seconds: float
    busy_seconds_left: float
    age_seconds: float


class MachineInHistory(AnswerBody):
    """A machine that has ended. It was ready when its worker registered. `jobs` is the number of jobs that it
    completed. `cost` covers its time from order to end; it is null without a price."""

    id: str
    worker_id: str | None
    instance_type: str | None
    ordered_at: datetime
    launched_at: datetime | None
    registered_at: datetime | None
    ended_at: datetime
    reason: str | None
    jobs: int
    price_per_hour: float | None
    cost: float | None


class Decision(AnswerBody):
    """An autoscaling decision. `desired` is the number of machines. `launch` and `end` are the planned changes,
    `outcome` their results, and `seen` is the observation that led to them."""

    id: int
    created_at: datetime
    policy: OpenEnum[Policy]
    desired: int
    reason: str
    launch: Annotated[list[dict[str, Any]], Reported]
    end: list[str]
    outcome: Annotated[dict[str, Any], Reported]
    seen: Annotated[dict[str, Any], Reported]


class DesiredMachines(AnswerBody):
    """The number of machines that the fleet should have now, and the reason."""

    desired: int
    reason: str


class FleetAutoscalingStatus(AnswerBody):
    """The autoscaling status of a fleet. `failed_boots` counts the last rounds of launches that produced no worker.
    `launch_pause_seconds` is the length of the launch pause that they caused; null if launching is not paused. `leader`
    is the process that decides; null if there is none. `decision` is the last decision."""

    slug: str
    stage: OpenEnum[Stage]
    provider: OpenEnum[MachineProviderName]
    policy: OpenEnum[Policy]
    is_paused: bool
    is_dry_run: bool
    min_machines: int
    max_machines: int
    cost_per_hour: float | None
    spent_per_hour: float
    machines: list[Machine]
    by_state: dict[OpenEnum[MachineState], int]
    queued_jobs: int
    queued_seconds: float
    boot_seconds: float
    failed_boots: int
    launch_pause_seconds: float | None
    leader: str | None
    decision: Decision | None
