"""Snapshots for tests of the decision: small ones by hand, and any at all by hypothesis."""

from collections.abc import Sequence
from datetime import UTC, datetime, time
from typing import Any

from hypothesis import strategies as st

from comfyrelay.domain.autoscaling.decide import decide
from comfyrelay.domain.autoscaling.observation import MachineState, QueuedWork, SeenFleet, SeenMachine, Snapshot
from comfyrelay.domain.autoscaling.plan import FleetPlan
from comfyrelay.domain.autoscaling.spec import InstanceType, Limits, Policy, ScalingSpec, Schedule

# a Wednesday
NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
OURS = (Policy.CHEAP, Policy.BALANCED, Policy.FAST)


def waiting(jobs: int, *, workflow: int = 1, seconds_each: float = 30.0, **more: Any) -> QueuedWork:
    """Arrivals are seen for an hour already, unless it is said."""
    more = {"arrivals_seconds": 3600.0, **more}
    return QueuedWork(workflow=workflow, jobs=jobs, seconds=jobs * seconds_each, seconds_per_job=seconds_each, **more)


def ready(name: str = "ready", *, idle: float = 0.0, **more: Any) -> SeenMachine:
    return SeenMachine(id=name, state=MachineState.READY, idle_seconds=idle, **more)


def busy(name: str = "busy", *, left: float = 10.0, **more: Any) -> SeenMachine:
    return SeenMachine(id=name, state=MachineState.BUSY, leases=1, busy_seconds_left=left, **more)


def booting(name: str = "booting", *, left: float = 100.0, **more: Any) -> SeenMachine:
    return SeenMachine(id=name, state=MachineState.BOOTING, boot_seconds_left=left, **more)


def draining(name: str = "draining", **more: Any) -> SeenMachine:
    return SeenMachine(id=name, state=MachineState.DRAINING, **more)


def fleet(*machines: SeenMachine, slug: str = "fleet", workflows: Sequence[int] = (1,), **more: Any) -> SeenFleet:
    scaling = {each: more.pop(each) for each in tuple(more) if each in ScalingSpec.__dataclass_fields__}
    limits = {each: more.pop(each) for each in tuple(more) if each in _LIMITS}
    return SeenFleet(
        slug=slug,
        workflows=frozenset(workflows),
        machines=machines,
        scaling=ScalingSpec(**{"limits": Limits(**{_LIMITS[key]: value for key, value in limits.items()}), **scaling}),
        **more,
    )


# `failed_boots` is also what a fleet has seen
_LIMITS = {each: each for each in Limits.__dataclass_fields__ if each != "failed_boots"} | {
    "allowed_failed_boots": "failed_boots"
}


def plans(work: Sequence[QueuedWork], *fleets: SeenFleet, now: datetime = NOW) -> Sequence[FleetPlan]:
    return decide(Snapshot(now=now, work=work, fleets=fleets))


def plan(work: Sequence[QueuedWork], seen: SeenFleet, *, now: datetime = NOW) -> FleetPlan:
    return plans(work, seen, now=now)[0]


def launched(plan: FleetPlan) -> int:
    return sum(each.count for each in plan.launch)


seconds = st.floats(0, 4000, allow_nan=False).map(lambda each: round(each, 1))
prices = st.sampled_from((0.0, 0.16, 0.5, 1.0, 2.5))
speeds = st.sampled_from((0.5, 1.0, 2.0))
instance_types = st.builds(InstanceType, name=st.sampled_from("abc"), price_per_hour=prices, speed=speeds)
works = st.lists(
    st.builds(
        QueuedWork,
        workflow=st.integers(1, 4),
        jobs=st.integers(0, 60),
        seconds_per_job=seconds,
        seconds=st.just(0.0),
        jobs_per_second=st.floats(0, 0.5),
        arrivals_seconds=st.sampled_from((0.0, 100.0, 3600.0)),
    ),
    max_size=4,
    unique_by=lambda each: each.workflow,
)


@st.composite
def any_machines(draw: st.DrawFn) -> tuple[SeenMachine, ...]:
    found = []
    for number in range(draw(st.integers(0, 6))):
        state = draw(st.sampled_from(MachineState))
        found.append(
            SeenMachine(
                id=f"m{number}",
                state=state,
                price_per_hour=draw(prices),
                speed=draw(speeds),
                slots=2,
                leases=draw(st.integers(1, 2)) if state is MachineState.BUSY else 0,
                boot_seconds_left=draw(seconds) if state is MachineState.BOOTING else 0.0,
                idle_seconds=draw(seconds) if state is MachineState.READY else 0.0,
                busy_seconds_left=draw(seconds) if state is MachineState.BUSY else 0.0,
            )
        )
    return tuple(found)


schedules = st.lists(
    st.builds(
        Schedule,
        days=st.frozensets(st.integers(0, 6)),
        begins=st.sampled_from((time(9), time(22))),
        ends=st.sampled_from((time(18), time(6))),
        at_least=st.integers(0, 5),
        timezone=st.sampled_from(("UTC", "Europe/Berlin")),
    ),
    max_size=2,
)


@st.composite
def any_fleet(draw: st.DrawFn, slug: str = "fleet") -> SeenFleet:
    return SeenFleet(
        slug=slug,
        workflows=draw(st.frozensets(st.integers(1, 4), min_size=1)),
        machines=tuple(draw(any_machines())),
        instance_types=draw(
            st.lists(
                st.builds(InstanceType, name=st.sampled_from("abc"), price_per_hour=prices, speed=speeds), max_size=2
            )
        ),
        all_refused=draw(st.booleans()) and draw(st.booleans()),
        slots=draw(st.integers(1, 2)),
        boot_seconds=draw(st.sampled_from((20.0, 180.0))),
        following_jobs=draw(st.sampled_from((0.0, 0.5, 6.0, 40.0))),
        launches_ago=draw(st.lists(st.floats(0, 120), max_size=4)),
        failed_boots=draw(st.sampled_from((0, 0, 1, 3, 5))),
        failed_boot_seconds_ago=draw(st.sampled_from((None, 0.0, 500.0, 5000.0))),
        idle_seconds=draw(st.none() | seconds),
        low_seconds=draw(st.none() | seconds),
        scaling=ScalingSpec(
            policy=draw(st.sampled_from(Policy)),
            limits=Limits(
                min_machines=draw(st.integers(0, 2)),
                max_machines=draw(st.integers(0, 8)),
                launches_per_minute=draw(st.integers(0, 6)),
                cost_per_hour=draw(st.none() | st.sampled_from((0.0, 0.9, 3.0))),
            ),
            schedules=draw(schedules),
            is_dry_run=draw(st.booleans()) and draw(st.booleans()),
            is_paused=draw(st.booleans()) and draw(st.booleans()),
        ),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    return Snapshot(
        now=NOW,
        work=draw(works),
        fleets=[draw(any_fleet(slug=f"fleet{number}")) for number in range(draw(st.integers(1, 3)))],
    )
