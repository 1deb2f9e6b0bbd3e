"""Set the deletion cost of pods, so that a shrinking fleet loses its longest idle pod first and busy pods last."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import httpx
import structlog

from comfyrelay.autoscaling.kubernetes.desired import GetDesired
from comfyrelay.autoscaling.kubernetes.pods import Pods, pod_labels
from comfyrelay.clock import utc_now
from comfyrelay.domain.autoscaling.observation import MachineState, ObservedMachine
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import ComfyRelayError

log = structlog.get_logger(__name__)

# Costs are 32-bit integers. A pod without a cost, such as a starting pod, counts as 0.
MAX_COST = 2**31 - 1
MIN_COST = -(2**31)
# Smaller changes are not written, because each write is a call to the cluster's API.
TOLERANCE_SECONDS = 10
INTERVAL_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaledFleet:
    namespace: str
    stage: Stage
    slug: str


def deletion_costs(machines: Sequence[ObservedMachine], now: datetime) -> dict[str, int]:
    """Return the cost by machine id.

    The cost of an idle machine is the start time of its idle period, so it does not change while the machine is idle.
    It is shifted below 0, which is the cost of a starting pod.
    """
    costs = {}
    for machine in machines:
        if machine.state is MachineState.BUSY:
            costs[machine.id] = MAX_COST
        elif machine.state is MachineState.READY:
            since = now - timedelta(seconds=machine.idle_seconds)
            costs[machine.id] = min(MIN_COST + int((since - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()), -1)
    return costs


class DeletionCosts:
    def __init__(self, pods: Pods) -> None:
        self._pods = pods
        self._fleets: dict[ScaledFleet, None] = {}

    def track(self, fleet: ScaledFleet) -> None:
        """Track a fleet. Ignore fleets of other namespaces, because the service account cannot read their pods."""
        if fleet.namespace == self._pods.namespace:
            self._fleets[fleet] = None

    async def run(self, get_desired: GetDesired) -> None:
        while True:
            await self.run_once(get_desired)
            await asyncio.sleep(INTERVAL_SECONDS)

    async def run_once(self, get_desired: GetDesired) -> None:
        for fleet in list(self._fleets):
            try:
                await self._write(fleet, (await get_desired(fleet.stage, fleet.slug)).machines)
            except (ComfyRelayError, httpx.HTTPError) as error:
                # Without costs, pods are deleted in another order, but still finish their jobs.
                log.warning("scaler.deletion_costs_failed", fleet=fleet.slug, error=str(error))

    async def _write(self, fleet: ScaledFleet, machines: Sequence[ObservedMachine]) -> None:
        costs = deletion_costs(machines, utc_now())
        if not costs:
            return
        for pod in await self._pods.list(pod_labels(fleet.slug, fleet.stage)):
            cost = costs.get(pod.name)
            if cost is not None and not pod.is_terminating and not _is_current(pod.deletion_cost, cost):
                await self._pods.set_deletion_cost(pod.name, cost)


def _is_current(annotation: str | None, cost: int) -> bool:
    try:
        return annotation is not None and abs(int(annotation) - cost) < TOLERANCE_SECONDS
    except ValueError:
        return False
