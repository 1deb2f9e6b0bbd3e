"""Which pod ends first is told to the cluster: the one that was idle for longest, a busy one last."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest

from comfyrelay.autoscaling.kubernetes.deletion_cost import LEAST, MOST, DeletionCosts, FleetPods, costs_of
from comfyrelay.autoscaling.kubernetes.desired import Desired
from comfyrelay.autoscaling.kubernetes.pods import Pods, pods_of_this_cluster
from comfyrelay.autoscaling.kubernetes.scaler import serving
from comfyrelay.domain.autoscaling.observation import MachineState, SeenMachine
from comfyrelay.domain.queue.states import Stage
from comfyrelay.wakeup import Wakeup
from tests.integration.autoscaling.kubernetes.cluster_api import ADDRESS, NAMESPACE, Cluster
from tests.integration.autoscaling.kubernetes.keda import keda, wire

__all__ = ["wire"]

FLEET = FleetPods(namespace=NAMESPACE, stage=Stage.PRODUCTION, slug="gpus")


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.fixture
async def pods(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pods]:
    async with cluster.serve() as port:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", ADDRESS)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
        found = pods_of_this_cluster(cluster.account)
        assert found is not None
        yield found
        await found.close()


class Machines:
    def __init__(self, *machines: SeenMachine) -> None:
        self.machines = machines

    async def desired_of(self, stage: Stage, slug: str) -> Desired:
        assert (stage, slug) == (FLEET.stage, FLEET.slug)
        return Desired(count=len(self.machines), reason="", machines=self.machines)


def busy(name: str) -> SeenMachine:
    return SeenMachine(id=name, state=MachineState.BUSY, leases=1)


def idle(name: str, seconds: float) -> SeenMachine:
    return SeenMachine(id=name, state=MachineState.READY, idle_seconds=seconds)


def test_idle_pods_cost_least_the_longest_idle_first_and_busy_ones_most() -> None:
    machines = [busy("a"), idle("b", 10), idle("c", 900), SeenMachine(id="d", state=MachineState.BOOTING)]
    costs = costs_of(machines, datetime.now(UTC))
    # nobody says anything of one that starts, which is 0
    assert sorted([*costs, "d"], key=lambda each: costs.get(each, 0)) == ["c", "b", "d", "a"]


@pytest.mark.parametrize("years", [0, 20, 60, 500])
def test_a_cost_fits_into_what_kubernetes_takes(years: int) -> None:
    costs = costs_of([busy("a"), idle("b", 0)], datetime.now(UTC) + timedelta(days=365 * years))
    assert LEAST <= costs["b"] < 0 < costs["a"] <= MOST


async def test_the_costs_of_a_fleet_are_written_to_its_pods(cluster: Cluster, pods: Pods) -> None:
    for name in ("a", "b", "c"):
        cluster.add(name, fleet="gpus")
    costs = DeletionCosts(pods)
    costs.follow(FLEET)
    await costs.run_once(Machines(busy("a"), idle("b", 10), idle("c", 900)).desired_of)
    assert cluster.cost("c") < cluster.cost("b") < 0 < cluster.cost("a")


async def test_a_pod_is_written_to_when_its_worker_begins_or_ends_and_not_in_between(
    cluster: Cluster, pods: Pods
) -> None:
    cluster.add("a", fleet="gpus")
    costs = DeletionCosts(pods)
    costs.follow(FLEET)
    for machine in (idle("a", 10), idle("a", 10.5), busy("a"), busy("a"), idle("a", 0)):
        await costs.run_once(Machines(machine).desired_of)
    assert [int(cost) == MOST for _, cost in cluster.patches] == [False, True, False]


async def test_pods_of_others_and_those_that_end_are_left_alone(cluster: Cluster, pods: Pods) -> None:
    cluster.add("other", fleet="others")
    cluster.add("staged", fleet="gpus", stage="staging")
    cluster.add("ending", fleet="gpus")["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    costs = DeletionCosts(pods)
    costs.follow(FLEET)
    await costs.run_once(Machines(*(busy(each) for each in cluster.pods)).desired_of)
    assert cluster.patches == []


async def test_only_pods_of_its_own_namespace_are_followed(cluster: Cluster, pods: Pods) -> None:
    cluster.add("a", fleet="gpus")
    costs = DeletionCosts(pods)
    costs.follow(FleetPods(namespace="elsewhere", stage=FLEET.stage, slug=FLEET.slug))
    await costs.run_once(Machines(busy("a")).desired_of)
    assert cluster.patches == []


async def test_a_token_that_was_renewed_is_used(cluster: Cluster, pods: Pods) -> None:
    cluster.add("a", fleet="gpus")
    cluster.token = "second"
    await pods.set_deletion_cost("a", 5)
    assert cluster.cost("a") == 5


async def test_a_pod_that_is_gone_meanwhile_is_no_error(cluster: Cluster, pods: Pods) -> None:
    await pods.set_deletion_cost("gone", 5)
    assert cluster.patches == []


async def test_a_cluster_that_refuses_ends_nothing_and_is_asked_again(cluster: Cluster, pods: Pods) -> None:
    cluster.add("a", fleet="gpus")
    costs = DeletionCosts(pods)
    costs.follow(FLEET)
    cluster.is_forbidden = True
    await costs.run_once(Machines(busy("a")).desired_of)
    cluster.is_forbidden = False
    await costs.run_once(Machines(busy("a")).desired_of)
    assert cluster.cost("a") == MOST


async def test_the_fleets_that_keda_scales_are_those_whose_pods_are_followed(
    cluster: Cluster, pods: Pods, wire: ModuleType
) -> None:
    cluster.add("a", fleet="gpus")
    machines, costs = Machines(busy("a")), DeletionCosts(pods)
    async with serving(machines.desired_of, Wakeup().wait, bind="127.0.0.1:0") as port, keda(wire, port) as asking:
        assert await asking.is_active(fleet="gpus")
    await costs.run_once(machines.desired_of)
    assert cluster.patches == []
    async with (
        serving(machines.desired_of, Wakeup().wait, bind="127.0.0.1:0", costs=costs) as port,
        keda(wire, port) as asking,
    ):
        assert await asking.is_active(fleet="gpus")
    await costs.run_once(machines.desired_of)
    assert cluster.cost("a") == MOST


def test_outside_of_a_cluster_there_are_no_pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert pods_of_this_cluster(tmp_path) is None
