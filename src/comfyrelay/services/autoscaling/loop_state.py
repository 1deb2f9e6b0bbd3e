"""The state of the autoscaling loop for monitoring: machines, decisions, failed launches and leadership."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from comfyrelay.domain.autoscaling.limits import pause_left
from comfyrelay.domain.autoscaling.observation import MachineState
from comfyrelay.domain.records.workers import FleetRecord
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.services.autoscaling.durations import Predictions
from comfyrelay.services.autoscaling.fleet_observation import FleetRows, WorkerLimits, observe_fleet, read_rows
from comfyrelay.services.autoscaling.leadership import Leadership
from comfyrelay.services.databases import Databases
from comfyrelay.services.timed_cache import TimedCache
from comfyrelay.store.central.autoscaling import decisions, leaders, observations

log = structlog.get_logger(__name__)

CACHE_SECONDS = 5.0


@dataclass(slots=True)
class ScalingCounts:
    """Events in this process: refused launches by kind, failed calls to providers, and jobs moved to and from the
    cloud."""

    refusals: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    provider_errors: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    bursts: Counter[tuple[str, str]] = field(default_factory=Counter)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaledFleet:
    """An autoscaled fleet. `desired` is `None` before its first decision."""

    fleet: str
    stage: str
    machines: Mapping[MachineState, int]
    desired: int | None
    failed_rounds: int
    is_launching_paused: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopState:
    """All autoscaled fleets. `has_leader` says whether any process leads, and `is_leader` whether this process
    leads."""

    fleets: Sequence[ScaledFleet] = ()
    has_leader: bool = False
    is_leader: bool = False


class LoopMonitor:
    def __init__(
        self, databases: Databases, leadership: Leadership, *, offline_seconds: float, worker_limits: WorkerLimits
    ) -> None:
        self._databases = databases
        self._leadership = leadership
        self._offline_seconds = offline_seconds
        self._worker_limits = worker_limits
        self._cache = TimedCache(self._read_if_up)
        self.counts = ScalingCounts()

    async def recent(self) -> LoopState | None:
        """Return a state that is at most a few seconds old; `None` while the central database is unreachable."""
        return await self._cache.get(seconds=CACHE_SECONDS)

    async def _read_if_up(self) -> LoopState | None:
        try:
            return await self._read()
        except DatabaseUnavailable:
            return None

    async def _read(self) -> LoopState:
        """Read machines and workers, but not the queue, which may be long."""
        async with self._databases.central.read() as tx:
            fleets = [fleet for fleet in await observations.all_fleets(tx) if fleet.is_scaled]
            rows = await read_rows(
                tx,
                fleets,
                workflows={},
                predictions=await Predictions.read(tx, set()),
                offline_seconds=self._offline_seconds,
                worker_limits=self._worker_limits,
            )
            latest = {fleet.id: await decisions.latest(tx, fleet.id) for fleet in fleets}
            leader = await leaders.current(tx, self._leadership.name)
        found = [
            observed
            for fleet in fleets
            if (observed := _observe(fleet, rows, decision.desired if (decision := latest[fleet.id]) else None))
        ]
        return LoopState(
            fleets=found,
            has_leader=leader is not None,
            is_leader=self._leadership.leader is not None,
        )


def _observe(fleet: FleetRecord, rows: FleetRows, desired: int | None) -> ScaledFleet | None:
    try:
        seen = observe_fleet(fleet, rows)
    except Exception:
        # An unreadable fleet must not affect other fleets. Its decision contains the reason.
        log.exception("autoscaling.fleet_unreadable", fleet=fleet.slug, stage=fleet.stage)
        return None
    states = Counter(machine.state for machine in seen.machines)
    return ScaledFleet(
        fleet=fleet.slug,
        stage=fleet.stage,
        machines={state: states[state] for state in MachineState},
        desired=desired,
        failed_rounds=seen.failed_boots,
        is_launching_paused=pause_left(seen) is not None,
    )
