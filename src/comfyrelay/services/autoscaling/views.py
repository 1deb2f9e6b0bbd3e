"""Autoscaling status for operators, and the pause switch."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from comfyrelay.domain.autoscaling.decide import decide
from comfyrelay.domain.autoscaling.limits import cost_per_hour
from comfyrelay.domain.autoscaling.machines import Leader, ScalingDecision
from comfyrelay.domain.autoscaling.observation import MachineState, ObservedFleet, ObservedMachine
from comfyrelay.domain.autoscaling.plan import FleetPlan
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.workers import FleetRecord
from comfyrelay.errors import NotFound
from comfyrelay.services.autoscaling.leadership import Leadership
from comfyrelay.services.autoscaling.observations import Observations, StageObservation
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import ResultPage
from comfyrelay.services.workers.fleets import Fleets
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.autoscaling import decisions


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingView:
    fleet: FleetRecord
    seen: ObservedFleet
    queued_jobs: int
    queued_seconds: float
    leader: Leader | None
    decision: ScalingDecision | None

    @property
    def machines(self) -> Sequence[ObservedMachine]:
        return self.seen.machines

    @property
    def by_state(self) -> Mapping[MachineState, int]:
        found = Counter(machine.state for machine in self.machines)
        return {state: found[state] for state in MachineState}

    @property
    def spent_per_hour(self) -> float:
        return cost_per_hour(self.seen)


class ScalingViews:
    def __init__(self, databases: Databases, snapshots: Observations, leadership: Leadership, fleets: Fleets) -> None:
        self._databases = databases
        self._snapshots = snapshots
        self._leadership = leadership
        self._fleets = fleets

    async def all(self) -> list[ScalingView]:
        """Return the status of every fleet with machine or autoscaling settings."""
        fleets = await self._snapshots.fleets()
        views = []
        for stage in sorted({fleet.stage for fleet in fleets if fleet.is_scaled}):
            seen = await self._snapshots.take(stage)
            views += [await self._view(fleet, seen) for fleet in seen.fleets.values() if fleet.is_scaled]
        return views

    async def get(self, stage: Stage, slug: str) -> ScalingView:
        seen = await self._observe(stage, slug)
        return await self._view(seen.fleets[slug], seen)

    async def desired(self, stage: Stage, slug: str) -> FleetPlan:
        """Return the current plan for an external autoscaler. Nothing is recorded."""
        seen = await self._observe(stage, slug)
        return next(plan for plan in await asyncio.to_thread(decide, seen.snapshot) if plan.fleet == slug)

    async def decisions(
        self, stage: Stage, slug: str, *, cursor: int | None = None, limit: int
    ) -> ResultPage[ScalingDecision]:
        """Return the decisions about a fleet, newest first."""
        async with self._databases.central.read() as tx:
            fleet = await catalogue.fleet(tx, stage=stage, slug=slug)
            if fleet is None:
                raise NotFound(f"There is no {stage} fleet {slug!r}.")
            found, before = await decisions.page(tx, fleet.id, before_id=cursor, limit=limit)
        return ResultPage(items=found, next_cursor=None if before is None else str(before))

    async def set_paused(self, stage: Stage, slug: str, *, is_paused: bool) -> FleetRecord:
        """Pause or resume autoscaling. During a pause no machine is launched or terminated; jobs and workers
        continue."""
        return await self._fleets.change(stage=stage, slug=slug, changes={"autoscaling": {"is_paused": is_paused}})

    async def _observe(self, stage: Stage, slug: str) -> StageObservation:
        seen = await self._snapshots.take(stage)
        if slug not in seen.fleets:
            raise NotFound(f"There is no {stage} fleet {slug!r}.")
        return seen

    async def _view(self, fleet: FleetRecord, seen: StageObservation) -> ScalingView:
        snapshot = seen.snapshot
        observed = next(observed for observed in snapshot.fleets if observed.slug == fleet.slug)
        queued = [work for work in snapshot.work if work.workflow in observed.workflows]
        async with self._databases.central.read() as tx:
            decision = await decisions.latest(tx, fleet.id)
        return ScalingView(
            fleet=fleet,
            seen=observed,
            queued_jobs=sum(work.jobs for work in queued),
            queued_seconds=sum(work.seconds for work in queued),
            leader=await self._leadership.current(),
            decision=decision,
        )
