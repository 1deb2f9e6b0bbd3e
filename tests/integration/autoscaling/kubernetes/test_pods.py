"""Deletion costs order pods: the longest idle first, busy ones last."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from comfyrelay.autoscaling.kubernetes.deletion_cost import (
    MAX_COST,
    MIN_COST,
    DeletionCosts,
    ScaledFleet,
    deletion_costs,
)
from comfyrelay.autoscaling.kubernetes.desired import DesiredReplicas
from comfyrelay.autoscaling.kubernetes.pods import Pods, connect_to_cluster
from comfyrelay.autoscaling.kubernetes.scaler import serve_scaler
from comfyrelay.domain.autoscaling.observation import MachineState, ObservedMachine
from comfyrelay.domain.queue.states import Stage
from comfyrelay.wakeup import Wakeup
from tests.integration.autoscaling.kubernetes.cluster_api import ADDRESS, NAMESPACE, Cluster
from tests.integration.autoscaling.kubernetes.keda import connect_keda

FLEET = ScaledFleet(namespace=NAMESPACE, stage=Stage.PRODUCTION, slug="gpus")


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.fixture
async def pods(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pods]:
    async with cluster.serve() as port:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", ADDRESS)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
        found = connect_to_cluster(cluster.account)
        assert found is not None
        yield found
        await found.close()


class Machines:
    def __init__(self, *machines: ObservedMachine) -> None:
        self.machines = machines

    async def desired_replicas(self, stage: Stage, slug: str) -> DesiredReplicas:
        assert (stage, slug) == (FLEET.stage, FLEET.slug)
        return DesiredReplicas(count=len(self.machines), reason="", machines=self.machines)


def busy(name: str) -> ObservedMachine:
    return ObservedMachine(id=name, state=MachineState.BUSY, leases=1)


def idle(name: str, seconds: float) -> ObservedMachine:
    return ObservedMachine(id=name, state=MachineState.READY, idle_seconds=seconds)


def test_longest_idle_pod_costs_least_and_busy_pods_most() -> None:
    machines = [busy("a"), idle("b", 10), idle("c", 900), ObservedMachine(id="d", state=MachineState.BOOTING)]
    costs = deletion_costs(machines, datetime.now(UTC))
    # A starting pod has no cost, which counts as 0.
    assert sorted([*costs, "d"], key=lambda cost: costs.get(cost, 0)) == ["c", "b", "d", "a"]


@pytest.mark.parametrize("years", [0, 20, 60, 500])
def test_cost_is_a_32_bit_integer(years: int) -> None:
    costs = deletion_costs([busy("a"), idle("b", 0)], datetime.now(UTC) + timedelta(days=365 * years))
    assert MIN_COST <= costs["b"] < 0 < costs["a"] <= MAX_COST


async def test_costs_are_written_to_the_pods_of_the_fleet(cluster: Cluster, pods: Pods) -> None:
    for name in ("a", "b", "c"):
        cluster.add(name, fleet="gpus")
    costs = DeletionCosts(pods)
    costs.track(FLEET)
    await costs.run_once(Machines(busy("a"), idle("b", 10), idle("c", 900)).desired_replicas)
    assert cluster.cost("c") < cluster.cost("b") < 0 < cluster.cost("a")


async def test_cost_is_written_only_when_a_job_starts_or_ends(cluster: Cluster, pods: Pods) -> None:
    cluster.add("a", fleet="gpus")
    costs = DeletionCosts(pods)
    costs.track(FLEET)
    for machine in (idle("a", 10), idle("a", 10.5), busy("a"), busy("a"), idle("a", 0)):
        await costs.run_once(Machines(machine).desired_replicas)
    assert [int(cost) == MAX_COST for _, cost in cluster.patches] == [False, True, False]


async def test_other_fleets_and_terminating_pods_are_not_annotated(cluster: Cluster, pods: Pods) -> None:
    cluster.add("other", fleet="others")
    cluster.add("staged", fleet="gpus", stage="staging")
    cluster.add("ending", fleet="gpus")["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    costs = DeletionCosts(pods)
    costs.track(FLEET)
    await costs.run_once(Machines(*(busy(pod) for pod in cluster.pods)).desired_replicas)
    assert cluster.patches == []


async def test_fleets_of_other_namespaces_are_not_tracked(cluster: Cluster, pods: Pods) -> None:
    cluster.add("a", fleet="gpus")
    costs = DeletionCosts(pods)
    costs.track(ScaledFleet(namespace="elsewhere", stage=FLEET.stage, slug=FLEET.slug))
    await costs.run_once(Machines(busy("a")).desired_replicas)
    assert cluster.patches == []


async def test_renewed_token_is_used(cluster: Cluster, pods: Pods) -> None:
    cluster.add("a", fleet="gpus")
    cluster.token = "second"
    await pods.set_deletion_cost("a", 5)
    assert cluster.cost("a") == 5


async def test_missing_pod_is_not_an_error(cluster: Cluster, pods: Pods) -> None:
    await pods.set_deletion_cost("gone", 5)
    assert cluster.patches == []


async def test_refused_write_is_retried(cluster: Cluster, pods: Pods) -> None:
    cluster.add("a", fleet="gpus")
    costs = DeletionCosts(pods)
    costs.track(FLEET)
    cluster.is_forbidden = True
    await costs.run_once(Machines(busy("a")).desired_replicas)
    cluster.is_forbidden = False
    await costs.run_once(Machines(busy("a")).desired_replicas)
    assert cluster.cost("a") == MAX_COST


async def test_fleets_that_keda_scales_are_tracked(cluster: Cluster, pods: Pods) -> None:
    cluster.add("a", fleet="gpus")
    machines, costs = Machines(busy("a")), DeletionCosts(pods)
    async with (
        serve_scaler(machines.desired_replicas, Wakeup().wait, bind="127.0.0.1:0") as port,
        connect_keda(port) as keda,
    ):
        assert await keda.is_active(fleet="gpus")
    await costs.run_once(machines.desired_replicas)
    assert cluster.patches == []
    async with (
        serve_scaler(machines.desired_replicas, Wakeup().wait, bind="127.0.0.1:0", costs=costs) as port,
        connect_keda(port) as keda,
    ):
        assert await keda.is_active(fleet="gpus")
    await costs.run_once(machines.desired_replicas)
    assert cluster.cost("a") == MAX_COST


def test_no_pods_are_found_outside_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert connect_to_cluster(tmp_path) is None
