"""Decide the replica count of a fleet, counting pods that are still starting."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import httpx
import structlog

from comfyrelay.autoscaling.kubernetes.desired import DesiredReplicas
from comfyrelay.autoscaling.kubernetes.pods import Pod, Pods, pod_labels
from comfyrelay.domain.autoscaling.capacity import is_capacity
from comfyrelay.domain.autoscaling.decide import decide
from comfyrelay.domain.autoscaling.decision_records import describe_observation, reason_class
from comfyrelay.domain.autoscaling.learning import seconds_left
from comfyrelay.domain.autoscaling.limits import LAUNCH_WINDOW_SECONDS, preferred_type
from comfyrelay.domain.autoscaling.observation import MachineState, ObservedFleet, ObservedMachine
from comfyrelay.domain.autoscaling.plan import FleetPlan
from comfyrelay.domain.autoscaling.spec import MachineProviderName
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.workers import FleetRecord
from comfyrelay.errors import ComfyRelayError, InvalidInput, NotFound
from comfyrelay.services.autoscaling import Autoscaling

log = structlog.get_logger(__name__)


class ReplicaDecisions:
    def __init__(self, autoscaling: Autoscaling, pods: Pods | None) -> None:
        """`pods` is `None` outside a cluster, where starting pods are not counted."""
        self._snapshots = autoscaling.snapshots
        self._machines = autoscaling.machines
        self._pods = pods
        # Planned number, reported number and reason class of the last recorded decision, by fleet id.
        self._recorded: dict[int, tuple[int, int, str]] = {}
        self._last_pods: dict[tuple[Stage, str], Sequence[Pod]] = {}

    async def desired_replicas(self, stage: Stage, slug: str) -> DesiredReplicas:
        seen = await self._snapshots.take(stage, can_launch=_can_launch)
        fleet = seen.fleets.get(slug)
        if fleet is None:
            raise NotFound(f"There is no {stage} fleet {slug!r}.")
        if not _is_in_cluster(fleet):
            raise InvalidInput(
                f"The {stage} fleet {slug!r} uses the provider {fleet.machine_spec.provider}. "
                "Set `machines.provider` to `kubernetes` to scale it in a cluster."
            )
        pods = {
            scaled.slug: await self._list_pods(stage, scaled.slug)
            for scaled in seen.fleets.values()
            if _is_in_cluster(scaled)
        }
        fleets = {
            observed.slug: add_starting_pods(observed, pods.get(observed.slug) or (), seen.snapshot.now)
            for observed in seen.snapshot.fleets
        }
        snapshot = replace(seen.snapshot, fleets=list(fleets.values()))
        plan = next(plan for plan in await asyncio.to_thread(decide, snapshot) if plan.fleet == slug)
        observed = fleets[slug]
        desired = plan_replicas(plan, observed, pods[slug])
        saw = describe_observation(observed, plan, snapshot, fleet.machine_spec.instance_types)
        await self._record(fleet, plan, saw, requested=desired.count)
        return desired

    async def _record(self, fleet: FleetRecord, plan: FleetPlan, saw: Mapping[str, Any], *, requested: int) -> None:
        """Record a decision if it has changed. A failed write is only logged, because KEDA gets its answer anyway."""
        kind = (plan.desired, requested, reason_class(plan.reason))
        if self._recorded.get(fleet.id) == kind:
            return
        try:
            await self._machines.record_decision(fleet, plan, saw=saw, requested=requested)
        except ComfyRelayError as error:
            log.warning("scaler.record_failed", fleet=fleet.slug, error=str(error))
        else:
            self._recorded[fleet.id] = kind

    async def _list_pods(self, stage: Stage, slug: str) -> Sequence[Pod] | None:
        """Return the pods. After an error, return the last known pods, so that no starting pod is deleted.

        `None` means that the pods have never been listed.
        """
        if self._pods is not None:
            try:
                self._last_pods[stage, slug] = await self._pods.list(pod_labels(slug, stage))
            except (httpx.HTTPError, InvalidInput) as error:
                log.warning("scaler.pods_unknown", fleet=slug, error=str(error))
        return self._last_pods.get((stage, slug))


def plan_replicas(plan: FleetPlan, fleet: ObservedFleet, pods: Sequence[Pod] | None) -> DesiredReplicas:
    """Convert the number of machines in a plan to a replica count.

    Workers that run elsewhere, or in a pod that was just killed, count as capacity, but not as replicas.
    """
    names = None if pods is None else {pod.name for pod in pods}
    machines = [machine for machine in fleet.machines if names is None or machine.id in names]
    present = sum(is_capacity(machine) for machine in machines)
    others = sum(is_capacity(machine) for machine in fleet.machines) - present
    # A paused or dry-run fleet keeps its current pods.
    count = present if plan.is_report else max(0, plan.desired - others)
    return DesiredReplicas(count=count, reason=plan.reason, machines=machines)


def add_starting_pods(fleet: ObservedFleet, pods: Sequence[Pod], now: datetime) -> ObservedFleet:
    """Count pods without a worker as booting machines, and pods created in the last minute as launches.

    A pod gets the price of the fleet's first instance type, because a cluster has no prices.
    """
    kind = preferred_type(fleet)
    known = {machine.id for machine in fleet.machines}
    ages = {pod.name: max(0.0, (now - pod.created_at).total_seconds()) for pod in pods if not pod.is_terminating}
    starting = [
        ObservedMachine(
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
    launches = [age for age in ages.values() if age < LAUNCH_WINDOW_SECONDS]
    return replace(fleet, machines=[*fleet.machines, *starting], launches_ago=[*fleet.launches_ago, *launches])


def _can_launch(fleet: FleetRecord) -> bool:
    return fleet.machine_spec.provider != MachineProviderName.STATIC


def _is_in_cluster(fleet: FleetRecord) -> bool:
    return fleet.machine_spec.provider == MachineProviderName.KUBERNETES
