"""Autoscaling status for operators, and the pause switch."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from comfyrelay.domain.autoscaling.decide import decide
from comfyrelay.domain.autoscaling.limits import cost_per_hour, pause_left
from comfyrelay.domain.autoscaling.machines import EndedMachine, Leader, MachineRecord, ScalingDecision
from comfyrelay.domain.autoscaling.observation import MachineState, ObservedFleet, ObservedMachine
from comfyrelay.domain.autoscaling.plan import FleetPlan
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.workers import FleetRecord
from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.services.autoscaling.leadership import Leadership
from comfyrelay.services.autoscaling.observations import Observations, StageObservation
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import ResultPage, make_page
from comfyrelay.services.workers.fleets import Fleets
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.autoscaling import decisions, machines
from comfyrelay.wakeup import Wakeup


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

    @property
    def launch_pause_seconds(self) -> float | None:
        """The rest of the pause after failed launches; `None` if launching is not paused."""
        return pause_left(self.seen)


class ScalingViews:
    def __init__(
        self,
        databases: Databases,
        snapshots: Observations,
        leadership: Leadership,
        fleets: Fleets,
        *,
        wakeup: Wakeup,
    ) -> None:
        """`wakeup` is notified when there is something to decide."""
        self._databases = databases
        self._wakeup = wakeup
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

    async def failing(self) -> list[str]:
        """Return the fleets that stopped launching because their last machines did not become workers."""
        return [
            f"{view.fleet.stage}/{view.fleet.slug}"
            for view in await self.all()
            if view.seen.failed_boots and view.seen.failed_boots >= view.seen.scaling.limits.failed_boots
        ]

    async def get(self, stage: Stage, slug: str) -> ScalingView:
        seen = await self._observe(stage, slug)
        return await self._view(seen.fleets[slug], seen)

    async def desired(self, stage: Stage, slug: str) -> FleetPlan:
        """Return the current plan for an external autoscaler, without recording it."""
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

    async def ended_machines(
        self, stage: Stage, slug: str, *, cursor: str | None = None, limit: int
    ) -> ResultPage[EndedMachine]:
        """Return the ended machines of a fleet, newest orders first."""
        async with self._databases.central.read() as tx:
            fleet = await catalogue.fleet(tx, stage=stage, slug=slug)
            if fleet is None:
                raise NotFound(f"There is no {stage} fleet {slug!r}.")
            found = await machines.ended_page(tx, fleet.id, before=_parse_cursor(cursor), limit=limit)
            jobs = await machines.completed_jobs(tx, {machine.worker for machine in found})
        prices = {type_.name: type_.price_per_hour for type_ in fleet.machine_spec.instance_types}
        ended = [
            EndedMachine(
                machine=machine,
                jobs=jobs.get(machine.worker, 0),
                cost=_cost(machine, machine.price_per_hour or prices.get(machine.instance_type or "")),
            )
            for machine in found
        ]
        return make_page(ended, limit=limit, key=_cursor)

    async def set_paused(self, stage: Stage, slug: str, *, is_paused: bool) -> FleetRecord:
        """Pause or resume autoscaling. During a pause, no machine is launched or terminated; jobs and workers
        continue."""
        return await self._fleets.change(stage=stage, slug=slug, changes={"autoscaling": {"is_paused": is_paused}})

    async def reset_launches(self, stage: Stage, slug: str) -> FleetRecord:
        """Allow a fleet to launch again immediately after failed or refused launches."""
        fleet = await self._fleets.reset_launches(stage=stage, slug=slug)
        self._wakeup.notify()
        return fleet

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


def _cost(machine: MachineRecord, price_per_hour: float | None) -> float | None:
    """Return the cost of an ended machine, which is billed from order to end; `None` without a price."""
    if not price_per_hour or machine.ended_at is None:
        return None
    return (machine.ended_at - machine.ordered_at).total_seconds() * price_per_hour / 3600


def _cursor(ended: EndedMachine) -> str:
    return f"{ended.machine.ordered_at.isoformat()} {ended.machine.key}"


def _parse_cursor(text: str | None) -> tuple[datetime, str] | None:
    if text is None:
        return None
    at, _, key = text.partition(" ")
    try:
        found = datetime.fromisoformat(at)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None or not key:
        raise InvalidInput(errors={"cursor": "This is not a cursor of this list. Use `next_cursor` of the last page."})
    return found, key
