"""A cluster is told the number that everybody else would act on, and counts its own pods with it."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from comfyrelay.autoscaling.kubernetes.decision import Deciding
from comfyrelay.autoscaling.kubernetes.pods import Pod
from comfyrelay.autoscaling.kubernetes.scaler import serving
from comfyrelay.autoscaling.loop import ScalingLoop
from comfyrelay.domain.autoscaling.machines import ScalingDecision
from comfyrelay.domain.autoscaling.observation import MachineState
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.catalogue import Effect
from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.services.engine import Engine
from comfyrelay.store.notify import PostgresNotifyChannel
from tests.integration.autoscaling.kubernetes.keda import keda, wire
from tests.support.commands import start
from tests.support.world import PATIENCE_SECONDS, PostgresBackend, World, open_world, submit_many

__all__ = ["wire"]

FLEET = "gpus"


class Nobody:
    """Nobody makes machines."""

    def get(self, _name: str, /) -> None:
        return None


class KnownPods:
    """The pods of a cluster, as the test says it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.pods: list[Pod] = []

    def add(self, *names: str, age_seconds: float = 30.0, is_ending: bool = False) -> None:
        created = self._world.clock.now - timedelta(seconds=age_seconds)
        self.pods += [Pod(name=each, created_at=created, is_ending=is_ending) for each in names]

    async def list(self, _labels: object) -> list[Pod]:
        return self.pods


class Staffed:
    """A world with a fleet in a cluster, and somebody who decides for it."""

    def __init__(self, world: World, effect: Effect) -> None:
        self.world = world
        self.effect = effect
        self.cluster = KnownPods(world)
        scaling = world.engine.scaling
        self.inside = Deciding(scaling, self.cluster)  # type: ignore[arg-type]
        self.outside = Deciding(scaling, None)

    async def enqueue(self, count: int) -> None:
        await submit_many(self.world, await self.world.user(), self.effect, count)

    async def count(self) -> int:
        return (await self.inside.desired_of(Stage.PRODUCTION, FLEET)).count

    async def scale(self, **scaling: Any) -> None:
        await self.world.engine.fleet.fleets.change(stage=Stage.PRODUCTION, slug=FLEET, changes={"scaling": scaling})


async def make_fleet(engine: Engine, workflow_slug: str) -> None:
    await engine.fleet.fleets.create(
        slug=FLEET, machines={"provider": "kubernetes"}, scaling={"max_machines": 5}, workflow_slugs=[workflow_slug]
    )


@pytest.fixture
async def staffed(world: World) -> Staffed:
    workflow = await world.workflow()
    await make_fleet(world.engine, workflow.slug)
    return Staffed(world, await world.effect(workflow, cost=0))


async def test_what_waits_wants_pods_and_limits_hold(staffed: Staffed) -> None:
    assert await staffed.count() == 0
    await staffed.enqueue(1)
    assert await staffed.count() == 1
    await staffed.enqueue(100)
    assert await staffed.count() == 5


async def test_pods_that_start_are_counted_and_not_ordered_again(staffed: Staffed) -> None:
    await staffed.enqueue(3)
    wanted = await staffed.count()
    staffed.cluster.add(*(f"pod-{each}" for each in range(wanted)))
    assert await staffed.count() == wanted
    # the first is a worker now, and takes a job
    await staffed.world.worker(FLEET, name="pod-0")
    await staffed.world.lease("pod-0")
    assert await staffed.count() == wanted


async def test_no_more_pods_are_launched_in_a_minute_than_the_limits_say(staffed: Staffed) -> None:
    await staffed.scale(launches_per_minute=2)
    await staffed.enqueue(100)
    assert await staffed.count() == 2
    staffed.cluster.add("pod-0", "pod-1")
    assert await staffed.count() == 2
    await staffed.world.advance(61)
    assert await staffed.count() == 4


@pytest.mark.parametrize("is_worker", [False, True])
async def test_pods_cost_what_the_fleet_says_of_its_type_and_no_more_are_asked_for_than_the_money_allows(
    staffed: Staffed, is_worker: bool
) -> None:
    machines = {"provider": "kubernetes", "instance_types": [{"name": "l4", "price_per_hour": 1.0, "speed": 2.0}]}
    await staffed.world.engine.fleet.fleets.change(
        stage=Stage.PRODUCTION, slug=FLEET, changes={"machines": machines, "scaling": {"cost_per_hour": 2.0}}
    )
    await staffed.enqueue(100)
    for number in range(2):
        assert await staffed.count() == 2
        staffed.cluster.add(f"pod-{number}", age_seconds=90)
        if is_worker:
            await staffed.world.worker(FLEET, name=f"pod-{number}")
    desired = await staffed.inside.desired_of(Stage.PRODUCTION, FLEET)
    assert desired.count == 2
    assert [(each.price_per_hour, each.speed) for each in desired.machines] == 2 * [(1.0, 2.0)]


async def test_a_busy_pod_stays_and_an_idle_one_goes_by_its_own_time(staffed: Staffed) -> None:
    world = staffed.world
    staffed.cluster.add("busy", "idle")
    for name in ("busy", "idle"):
        await world.worker(FLEET, name=name)
    await staffed.enqueue(1)
    assert await world.lease("busy") is not None
    assert await staffed.count() == 2
    await world.advance(600)
    for name in ("busy", "idle"):
        await world.engine.fleet.workers.record_seen([name])
    desired = await staffed.inside.desired_of(Stage.PRODUCTION, FLEET)
    assert desired.count == 1
    # which of the two is told by their states
    assert {each.id: each.state for each in desired.machines} == {
        "busy": MachineState.BUSY,
        "idle": MachineState.READY,
    }


async def test_the_last_pod_goes_after_fifteen_idle_minutes(staffed: Staffed) -> None:
    world = staffed.world
    staffed.cluster.add("last")
    await world.worker(FLEET, name="last")
    for minutes, count in ((14, 1), (2, 0)):
        await world.advance(60 * minutes)
        await world.engine.fleet.workers.record_seen(["last"])
        assert await staffed.count() == count


async def test_pods_that_end_are_no_capacity(staffed: Staffed) -> None:
    staffed.cluster.add("ending", is_ending=True)
    await staffed.enqueue(1)
    assert await staffed.count() == 1


async def test_a_worker_that_is_no_pod_is_capacity_and_not_counted_as_one(staffed: Staffed) -> None:
    await staffed.scale(min_machines=3)
    staffed.cluster.add("pod")
    for name in ("pod", "elsewhere"):
        await staffed.world.worker(FLEET, name=name)
    # three are wanted, and one of them is there that the cluster need not make
    assert await staffed.count() == 2
    assert (await staffed.outside.desired_of(Stage.PRODUCTION, FLEET)).count == 3


@pytest.mark.parametrize("scaling", [{"is_dry_run": True}, {"is_paused": True}])
async def test_while_nothing_is_to_be_done_a_cluster_is_told_what_it_has(
    staffed: Staffed, scaling: dict[str, bool]
) -> None:
    await staffed.scale(**scaling)
    await staffed.enqueue(10)
    assert await staffed.count() == 0
    staffed.cluster.add("one", "two")
    assert await staffed.count() == 2


async def test_what_a_cluster_is_told_is_written_down_with_its_reason_once_for_each_change(staffed: Staffed) -> None:
    async def recorded() -> list[ScalingDecision]:
        views = staffed.world.engine.scaling.views
        return list((await views.decisions(Stage.PRODUCTION, FLEET, limit=10)).items)

    await staffed.enqueue(1)
    # another scaler, or this one after a restart, tells the same
    for deciding in (staffed.inside, staffed.inside, staffed.outside):
        await deciding.desired_of(Stage.PRODUCTION, FLEET)
    (first,) = await recorded()
    assert (first.desired, first.outcome, first.seen["machines"]) == (1, {"told": 1}, [])
    assert first.reason.startswith("1 job")
    staffed.cluster.add("pod")
    assert [await staffed.count() for _ in range(2)] == [1, 1]
    second, *before = await recorded()
    assert before == [first]
    assert [(each["id"], each["state"]) for each in second.seen["machines"]] == [("pod", "booting")]


async def test_whoever_leads_writes_down_nothing_of_a_fleet_whose_pods_it_does_not_see(staffed: Staffed) -> None:
    scaling = staffed.world.engine.scaling
    await staffed.enqueue(1)
    await scaling.leadership.claim()
    await ScalingLoop(staffed.world.engine, Nobody()).decide_once()
    assert not (await scaling.views.decisions(Stage.PRODUCTION, FLEET, limit=1)).items


async def test_a_job_that_waits_for_a_pod_is_told_that_one_starts_and_which_limit_lets_none_start(
    staffed: Staffed,
) -> None:
    world = staffed.world
    job = await world.submit(await world.user(), staffed.effect)

    async def why() -> str:
        await staffed.count()
        return (await world.engine.queue.waiting.of_job(job.tenant_id, job.id)).text

    # the cluster was told of one, and has not made it yet
    assert await why() == "A machine is starting, about 3 minutes."
    await world.advance(10)
    staffed.cluster.add("pod", age_seconds=0)
    await why()
    await world.advance(120)
    assert await why() == "A machine is starting, about 60 seconds."
    staffed.cluster.pods.clear()
    await staffed.scale(max_machines=0)
    assert "the limit is 0 machines" in await why()


async def test_a_fleet_that_another_provider_makes_is_refused(world: World) -> None:
    await world.engine.fleet.fleets.create(slug=FLEET, machines={"provider": "aws"})
    deciding = Deciding(world.engine.scaling, None)
    with pytest.raises(InvalidInput, match="made by aws"):
        await deciding.desired_of(Stage.PRODUCTION, FLEET)
    with pytest.raises(NotFound, match="staging fleet"):
        await deciding.desired_of(Stage.STAGING, FLEET)


@pytest.fixture
async def shared(real_postgres_backend: PostgresBackend, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(real_postgres_backend, tmp_path, shards=("main",)) as world:
        yield world


async def test_a_job_that_another_process_takes_in_activates_the_fleet_by_its_notification(
    shared: World, wire: ModuleType
) -> None:
    """No tick comes within the patience of the test."""
    workflow = await shared.workflow()
    await make_fleet(shared.engine, workflow.slug)
    effect, user = await shared.effect(workflow, cost=0), await shared.user()
    async with asyncio.timeout(PATIENCE_SECONDS), listening(shared) as theirs, listening(shared) as ours:
        deciding, wakeup = Deciding(ours.scaling, None), ours.notify_channel.subscribe()
        async with (
            serving(deciding.desired_of, wakeup.wait, bind="127.0.0.1:0", tick_seconds=10 * PATIENCE_SECONDS) as port,
            keda(wire, port) as asking,
        ):
            stream = asking.stream(fleet=FLEET)
            assert not (await stream.read()).result
            await World(engine=theirs, clock=shared.clock, backend=shared.backend).submit(user, effect)
            assert (await stream.read()).result
            stream.cancel()


@asynccontextmanager
async def listening(world: World) -> AsyncIterator[Engine]:
    """An engine as another process has it: the same databases, and notifications of its own."""
    async with Engine(world.engine.settings) as engine:
        assert isinstance(engine.notify_channel, PostgresNotifyChannel)
        await engine.notify_channel.start()
        await engine.notify_channel.listening.wait()
        yield engine


async def test_the_command_answers_keda_until_it_is_told_to_stop(
    shared: World, wire: ModuleType, tmp_path: Path
) -> None:
    workflow = await shared.workflow()
    await make_fleet(shared.engine, workflow.slug)
    await shared.submit(await shared.user(), await shared.effect(workflow, cost=0))
    settings = shared.engine.settings
    env = {
        "PATH": "/usr/bin:/bin",
        "COMFYRELAY_DATA_DIR": str(tmp_path / "scaler"),
        "COMFYRELAY_DATABASE_URL": settings.central_url,
        "COMFYRELAY_SHARDS": f'{{"main": "{settings.shard_urls["main"]}"}}',
    }
    scaler = await start("fleet", "scaler", "--bind", "127.0.0.1:0", env=env)
    async with asyncio.timeout(PATIENCE_SECONDS):
        found = re.search(r":(\d+)", (await scaler.err.readline()).decode())
        assert found is not None
        async with keda(wire, int(found[1])) as asking:
            assert await asking.is_active(fleet=FLEET)
            assert (await asking.metric(fleet=FLEET))[1] == 1
    scaler.process.send_signal(signal.SIGTERM)
    assert (await scaler.ended()).code == 0
