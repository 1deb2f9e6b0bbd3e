"""The replica count follows the same decisions as the autoscaling loop, and counts starting pods."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.autoscaling.kubernetes.decision import ReplicaDecisions
from comfyrelay.autoscaling.kubernetes.pods import Pod
from comfyrelay.autoscaling.kubernetes.scaler import serve_scaler
from comfyrelay.autoscaling.loop import ScalingLoop
from comfyrelay.domain.autoscaling.machines import ScalingDecision
from comfyrelay.domain.autoscaling.observation import MachineState
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.catalogue import EffectRecord
from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.services.engine import Engine
from comfyrelay.store.notify import PostgresNotifyChannel
from tests.integration.autoscaling.kubernetes.keda import connect_keda
from tests.support.world import PATIENCE_SECONDS, PostgresBackend, World, open_world, submit_many

FLEET = "gpus"


class NoProviders:
    def get(self, _name: str, /) -> None:
        return None


class FakePods:
    def __init__(self, world: World) -> None:
        self._world = world
        self.pods: list[Pod] = []

    def add(self, *names: str, age_seconds: float = 30.0, is_terminating: bool = False) -> None:
        created = self._world.clock.now - timedelta(seconds=age_seconds)
        self.pods += [Pod(name=name, created_at=created, is_terminating=is_terminating) for name in names]

    async def list(self, _labels: object) -> list[Pod]:
        return self.pods


class ClusterFleet:
    def __init__(self, world: World, effect: EffectRecord) -> None:
        self.world = world
        self.effect = effect
        self.cluster = FakePods(world)
        scaling = world.engine.autoscaling
        self.inside = ReplicaDecisions(scaling, self.cluster)  # type: ignore[arg-type]
        self.outside = ReplicaDecisions(scaling, None)

    async def enqueue(self, count: int) -> None:
        await submit_many(self.world, await self.world.user(), self.effect, count)

    async def count(self) -> int:
        return (await self.inside.desired_replicas(Stage.PRODUCTION, FLEET)).count

    async def scale(self, **scaling: Any) -> None:
        await self.world.engine.workers.fleets.change(
            stage=Stage.PRODUCTION, slug=FLEET, changes={"autoscaling": scaling}
        )


async def make_fleet(engine: Engine, workflow_slug: str) -> None:
    await engine.workers.fleets.create(
        slug=FLEET, machines={"provider": "kubernetes"}, autoscaling={"max_machines": 5}, workflow_slugs=[workflow_slug]
    )


@pytest.fixture
async def fleet(world: World) -> ClusterFleet:
    workflow = await world.workflow()
    await make_fleet(world.engine, workflow.slug)
    return ClusterFleet(world, await world.effect(workflow, cost=0))


async def test_queued_jobs_request_pods_up_to_the_limit(fleet: ClusterFleet) -> None:
    assert await fleet.count() == 0
    await fleet.enqueue(1)
    assert await fleet.count() == 1
    await fleet.enqueue(100)
    assert await fleet.count() == 5


async def test_starting_pods_are_counted(fleet: ClusterFleet) -> None:
    await fleet.enqueue(3)
    wanted = await fleet.count()
    fleet.cluster.add(*(f"pod-{number}" for number in range(wanted)))
    assert await fleet.count() == wanted
    await fleet.world.worker(FLEET, name="pod-0")
    await fleet.world.lease("pod-0")
    assert await fleet.count() == wanted


async def test_launches_per_minute_are_limited(fleet: ClusterFleet) -> None:
    await fleet.scale(launches_per_minute=2)
    await fleet.enqueue(100)
    assert await fleet.count() == 2
    fleet.cluster.add("pod-0", "pod-1")
    assert await fleet.count() == 2
    await fleet.world.advance(61)
    assert await fleet.count() == 4


@pytest.mark.parametrize("is_worker", [False, True])
async def test_pods_cost_as_much_as_the_first_type_and_the_cost_limit_applies(
    fleet: ClusterFleet, is_worker: bool
) -> None:
    machines = {"provider": "kubernetes", "instance_types": [{"name": "l4", "price_per_hour": 1.0, "speed": 2.0}]}
    await fleet.world.engine.workers.fleets.change(
        stage=Stage.PRODUCTION, slug=FLEET, changes={"machines": machines, "autoscaling": {"cost_per_hour": 2.0}}
    )
    await fleet.enqueue(100)
    for number in range(2):
        assert await fleet.count() == 2
        fleet.cluster.add(f"pod-{number}", age_seconds=90)
        if is_worker:
            await fleet.world.worker(FLEET, name=f"pod-{number}")
    desired = await fleet.inside.desired_replicas(Stage.PRODUCTION, FLEET)
    assert desired.count == 2
    assert [(machine.price_per_hour, machine.speed) for machine in desired.machines] == 2 * [(1.0, 2.0)]


async def test_idle_pod_is_dropped_and_busy_pod_stays(fleet: ClusterFleet) -> None:
    world = fleet.world
    fleet.cluster.add("busy", "idle")
    for name in ("busy", "idle"):
        await world.worker(FLEET, name=name)
    await fleet.enqueue(1)
    assert await world.lease("busy") is not None
    assert await fleet.count() == 2
    await world.advance(600)
    for name in ("busy", "idle"):
        await world.engine.workers.workers.record_seen([name])
    desired = await fleet.inside.desired_replicas(Stage.PRODUCTION, FLEET)
    assert desired.count == 1
    assert {machine.id: machine.state for machine in desired.machines} == {
        "busy": MachineState.BUSY,
        "idle": MachineState.READY,
    }


async def test_last_pod_is_dropped_after_fifteen_idle_minutes(fleet: ClusterFleet) -> None:
    world = fleet.world
    fleet.cluster.add("last")
    await world.worker(FLEET, name="last")
    for minutes, count in ((14, 1), (2, 0)):
        await world.advance(60 * minutes)
        await world.engine.workers.workers.record_seen(["last"])
        assert await fleet.count() == count


async def test_terminating_pods_are_not_capacity(fleet: ClusterFleet) -> None:
    fleet.cluster.add("ending", is_terminating=True)
    await fleet.enqueue(1)
    assert await fleet.count() == 1


async def test_worker_outside_the_cluster_counts_as_capacity_but_not_as_a_replica(fleet: ClusterFleet) -> None:
    await fleet.scale(min_machines=3)
    fleet.cluster.add("pod")
    for name in ("pod", "elsewhere"):
        await fleet.world.worker(FLEET, name=name)
    assert await fleet.count() == 2
    assert (await fleet.outside.desired_replicas(Stage.PRODUCTION, FLEET)).count == 3


@pytest.mark.parametrize("scaling", [{"is_dry_run": True}, {"is_paused": True}])
async def test_paused_or_dry_run_fleet_keeps_its_pods(fleet: ClusterFleet, scaling: dict[str, bool]) -> None:
    await fleet.scale(**scaling)
    await fleet.enqueue(10)
    assert await fleet.count() == 0
    fleet.cluster.add("one", "two")
    assert await fleet.count() == 2


async def test_each_changed_decision_is_recorded_once(fleet: ClusterFleet) -> None:
    async def recorded() -> list[ScalingDecision]:
        views = fleet.world.engine.autoscaling.views
        return list((await views.decisions(Stage.PRODUCTION, FLEET, limit=10)).items)

    await fleet.enqueue(1)
    # Another scaler, or this one after a restart, makes the same decision.
    for decisions in (fleet.inside, fleet.inside, fleet.outside):
        await decisions.desired_replicas(Stage.PRODUCTION, FLEET)
    (first,) = await recorded()
    assert (first.desired, first.outcome, first.seen["machines"]) == (1, {"requested": 1}, [])
    assert first.reason.startswith("1 job")
    fleet.cluster.add("pod")
    assert [await fleet.count() for _ in range(2)] == [1, 1]
    second, *before = await recorded()
    assert before == [first]
    assert [(machine["id"], machine["state"]) for machine in second.seen["machines"]] == [("pod", "booting")]


async def test_autoscaling_loop_records_no_decision_for_a_fleet_in_a_cluster(fleet: ClusterFleet) -> None:
    scaling = fleet.world.engine.autoscaling
    await fleet.enqueue(1)
    await scaling.leadership.claim()
    await ScalingLoop(fleet.world.engine, NoProviders()).decide_once()
    assert not (await scaling.views.decisions(Stage.PRODUCTION, FLEET, limit=1)).items


async def test_wait_reason_names_the_starting_pod_or_the_limit(
    fleet: ClusterFleet,
) -> None:
    world = fleet.world
    job = await world.submit(await world.user(), fleet.effect)

    async def why() -> str:
        await fleet.count()
        return (await world.engine.queue.wait_reasons.of_job(job.tenant_id, job.id)).text

    # The pod is requested, but not created yet.
    assert await why() == "A machine is starting and should be ready in about 3 minutes."
    await world.advance(10)
    fleet.cluster.add("pod", age_seconds=0)
    await why()
    await world.advance(120)
    assert await why() == "A machine is starting and should be ready in about 60 seconds."
    fleet.cluster.pods.clear()
    await fleet.scale(max_machines=0)
    assert "the limit is 0 machines" in await why()


async def test_fleet_of_another_provider_is_refused(world: World) -> None:
    await world.engine.workers.fleets.create(slug=FLEET, machines={"provider": "aws"})
    decisions = ReplicaDecisions(world.engine.autoscaling, None)
    with pytest.raises(InvalidInput, match="uses the provider aws"):
        await decisions.desired_replicas(Stage.PRODUCTION, FLEET)
    with pytest.raises(NotFound, match="staging fleet"):
        await decisions.desired_replicas(Stage.STAGING, FLEET)


@pytest.fixture
async def shared(real_postgres_backend: PostgresBackend, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(real_postgres_backend, tmp_path, shards=("main",)) as world:
        yield world


async def test_job_submitted_in_another_process_activates_the_fleet(shared: World) -> None:
    """The tick is longer than the test, so only the notification can cause it."""
    workflow = await shared.workflow()
    await make_fleet(shared.engine, workflow.slug)
    effect, user = await shared.effect(workflow, cost=0), await shared.user()
    async with asyncio.timeout(PATIENCE_SECONDS), listening(shared) as theirs, listening(shared) as ours:
        decisions, wakeup = ReplicaDecisions(ours.autoscaling, None), ours.notify_channel.subscribe()
        async with (
            serve_scaler(
                decisions.desired_replicas, wakeup.wait, bind="127.0.0.1:0", tick_seconds=10 * PATIENCE_SECONDS
            ) as port,
            connect_keda(port) as keda,
        ):
            stream = keda.stream(fleet=FLEET)
            assert not (await stream.read()).result
            await World(engine=theirs, clock=shared.clock, backend=shared.backend).submit(user, effect)
            assert (await stream.read()).result
            stream.cancel()


@asynccontextmanager
async def listening(world: World) -> AsyncIterator[Engine]:
    """Yield an engine with its own notification channel, as in another process."""
    async with Engine(world.engine.settings) as engine:
        assert isinstance(engine.notify_channel, PostgresNotifyChannel)
        await engine.notify_channel.start()
        await engine.notify_channel.listening.wait()
        yield engine
