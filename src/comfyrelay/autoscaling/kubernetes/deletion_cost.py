"""Which pod ends when a fleet gets smaller: the one that has had nothing to do for longest, and never a busy one while
there is another."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import httpx
import structlog

from comfyrelay.autoscaling.kubernetes.desired import DesiredOf
from comfyrelay.autoscaling.kubernetes.pods import Pods, labels_of
from comfyrelay.clock import utc_now
from comfyrelay.domain.autoscaling.observation import MachineState, SeenMachine
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import ComfyRelayError

log = structlog.get_logger(__name__)

# Costs are whole numbers of 32 bits, and 0 where nobody says anything: as for a pod that is still starting.
MOST = 2**31 - 1
LEAST = -(2**31)
# What is written to a pod costs the cluster something: less than this is no difference.
SAME_SECONDS = 10
EVERY_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetPods:
    namespace: str
    stage: Stage
    slug: str


def costs_of(machines: Sequence[SeenMachine], now: datetime) -> dict[str, int]:
    """By machine. An idle one's is the second since when it is idle, so that it need not be written again while that
    lasts, counted so that it is below that of a pod which starts."""
    found = {}
    for each in machines:
        if each.state is MachineState.BUSY:
            found[each.id] = MOST
        elif each.state is MachineState.READY:
            since = now - timedelta(seconds=each.idle_seconds)
            found[each.id] = min(LEAST + int((since - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()), -1)
    return found


class DeletionCosts:
    def __init__(self, pods: Pods) -> None:
        self._pods = pods
        self._fleets: dict[FleetPods, None] = {}

    def follow(self, fleet: FleetPods) -> None:
        """From now on; only in the namespace in which pods can be looked at."""
        if fleet.namespace == self._pods.namespace:
            self._fleets[fleet] = None

    async def run(self, desired_of: DesiredOf) -> None:
        while True:
            await self.run_once(desired_of)
            await asyncio.sleep(EVERY_SECONDS)

    async def run_once(self, desired_of: DesiredOf) -> None:
        for fleet in list(self._fleets):
            try:
                await self._write(fleet, (await desired_of(fleet.stage, fleet.slug)).machines)
            except (ComfyRelayError, httpx.HTTPError) as error:
                # pods then end in another order, and still finish their jobs
                log.warning("scaler.deletion_costs_failed", fleet=fleet.slug, error=str(error))

    async def _write(self, fleet: FleetPods, machines: Sequence[SeenMachine]) -> None:
        costs = costs_of(machines, utc_now())
        if not costs:
            return
        for pod in await self._pods.list(labels_of(fleet.slug, fleet.stage)):
            cost = costs.get(pod.name)
            if cost is not None and not pod.is_ending and not _is_same(pod.deletion_cost, cost):
                await self._pods.set_deletion_cost(pod.name, cost)


def _is_same(said: str | None, cost: int) -> bool:
    try:
        return said is not None and abs(int(said) - cost) < SAME_SECONDS
    except ValueError:
        return False
