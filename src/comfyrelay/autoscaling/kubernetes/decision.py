"""The number that a cluster is told: what is decided for a fleet when the pods that are starting are seen, too."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import httpx
import structlog

from comfyrelay.autoscaling.kubernetes.desired import Desired
from comfyrelay.autoscaling.kubernetes.pods import Pod, Pods, labels_of
from comfyrelay.domain.autoscaling.decide import decide
from comfyrelay.domain.autoscaling.decision_records import reason_class, what_was_seen
from comfyrelay.domain.autoscaling.learning import seconds_left
from comfyrelay.domain.autoscaling.limits import preferred_type
from comfyrelay.domain.autoscaling.observation import MachineState, SeenFleet, SeenMachine
from comfyrelay.domain.autoscaling.plan import FleetPlan
from comfyrelay.domain.autoscaling.spec import MachineProviderName
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.workers import Fleet
from comfyrelay.errors import ComfyRelayError, InvalidInput, NotFound
from comfyrelay.services.autoscaling import Scaling

log = structlog.get_logger(__name__)

# Launches are limited by the minute.
LAUNCH_SECONDS = 60.0


class Deciding:
    def __init__(self, scaling: Scaling, pods: Pods | None) -> None:
        """Without `pods`, outside of a cluster, those that start are not seen."""
        self._snapshots = scaling.snapshots
        self._machines = scaling.machines
        self._pods = pods
        # of each fleet what was told last, and why
        self._told: dict[int, tuple[int, int, str]] = {}
        self._last_pods: dict[tuple[Stage, str], Sequence[Pod]] = {}

    async def desired_of(self, stage: Stage, slug: str) -> Desired:
        seen = await self._snapshots.take(stage, can_launch=_can_launch)
        fleet = seen.fleets.get(slug)
        if fleet is None:
            raise NotFound(f"There is no {stage} fleet {slug!r}.")
        if not _is_in_cluster(fleet):
            raise InvalidInput(
                f"The machines of the {stage} fleet {slug!r} are made by {fleet.machine_spec.provider}. "
                "Set `machines.provider` to `kubernetes` for a cluster to scale it."
            )
        in_cluster = {each.slug for each in seen.fleets.values() if _is_in_cluster(each)}
        pods = {each: await self._pods_of(stage, each) for each in in_cluster}
        fleets = [with_pods(each, pods.get(each.slug) or (), seen.snapshot.now) for each in seen.snapshot.fleets]
        snapshot = replace(seen.snapshot, fleets=fleets)
        plan = next(each for each in await asyncio.to_thread(decide, snapshot) if each.fleet == slug)
        found = next(each for each in fleets if each.slug == slug)
        desired = desired_by(plan, found, pods[slug])
        await self._record(
            fleet, plan, what_was_seen(found, plan, snapshot, fleet.machine_spec.instance_types), told=desired.count
        )
        return desired

    async def _record(self, fleet: Fleet, plan: FleetPlan, saw: Mapping[str, Any], *, told: int) -> None:
        """When it changes. The cluster is answered, whether it can be written down or not."""
        kind = (plan.desired, told, reason_class(plan.reason))
        if self._told.get(fleet.id) == kind:
            return
        try:
            await self._machines.record_decision(fleet, plan, saw=saw, told=told)
        except ComfyRelayError as error:
            log.warning("scaler.record_failed", fleet=fleet.slug, error=str(error))
        else:
            self._told[fleet.id] = kind

    async def _pods_of(self, stage: Stage, slug: str) -> Sequence[Pod] | None:
        """`None` when they cannot be known. With those of the last time, nothing that starts is ended for not being
        seen."""
        if self._pods is not None:
            try:
                self._last_pods[stage, slug] = await self._pods.list(labels_of(slug, stage))
            except (httpx.HTTPError, InvalidInput) as error:
                log.warning("scaler.pods_unknown", fleet=slug, error=str(error))
        return self._last_pods.get((stage, slug))


def desired_by(plan: FleetPlan, fleet: SeenFleet, pods: Sequence[Pod] | None) -> Desired:
    """A cluster counts its pods: workers that run elsewhere, or were killed and are still thought to be there, are
    capacity to the decision, and no pods."""
    names = None if pods is None else {each.name for each in pods}
    machines = [each for each in fleet.machines if names is None or each.id in names]
    present = sum(each.state is not MachineState.DRAINING for each in machines)
    others = sum(each.state is not MachineState.DRAINING for each in fleet.machines) - present
    # a cluster does what it is told: while nothing is to be done, it is told what it has
    count = present if plan.is_report else max(0, plan.desired - others)
    return Desired(count=count, reason=plan.reason, machines=machines)


def with_pods(fleet: SeenFleet, pods: Sequence[Pod], now: datetime) -> SeenFleet:
    """The pods without a worker are starting; those that were made within the minute are its launches. What one costs
    is what the fleet says of its first type, for a cluster knows no prices."""
    kind = preferred_type(fleet)
    known = {each.id for each in fleet.machines}
    ages = {each.name: max(0.0, (now - each.created_at).total_seconds()) for each in pods if not each.is_ending}
    starting = [
        SeenMachine(
            id=name,
            state=MachineState.BOOTING,
            price_per_hour=kind.price_per_hour,
            speed=kind.speed,
            slots=fleet.slots,
            boot_seconds_left=seconds_left(fleet.boot_seconds, age),
            age_seconds=age,
        )
        for name, age in ages.items()
        if name not in known
    ]
    launches = [age for age in ages.values() if age < LAUNCH_SECONDS]
    return replace(fleet, machines=[*fleet.machines, *starting], launches_ago=[*fleet.launches_ago, *launches])


def _can_launch(fleet: Fleet) -> bool:
    return fleet.machine_spec.provider is not MachineProviderName.STATIC


def _is_in_cluster(fleet: Fleet) -> bool:
    return fleet.machine_spec.provider is MachineProviderName.KUBERNETES
