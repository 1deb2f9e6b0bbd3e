"""A workflow whose jobs may burst to Comfy Cloud if they would wait too long."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from comfyrelay.domain.autoscaling.burst import BurstDecision
from comfyrelay.domain.queue.states import Provider, Stage, WorkflowProvider
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.catalogue import EffectRecord, WorkflowRecord
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.services.queue.graph_building import LeasedDispatch
from tests.support.world import World

# The default estimate of a job is 60 s, which costs 6,000 millionths in the cloud.
PRICE = 100
EXPECTED = 6_000


@dataclass(kw_only=True)
class BurstScenario:
    """A workflow for any provider, a worker that is busy for 60 s, and a cloud worker."""

    world: World
    user: User
    workflow: WorkflowRecord
    effect: EffectRecord
    own: str
    cloud: str
    running: LeasedDispatch

    async def submit(self, count: int = 1, **values: Any) -> list[JobRecord]:
        return [await self.world.submit(self.user, self.effect, **values) for _ in range(count)]

    async def run_once(self) -> Sequence[BurstDecision]:
        decisions = await self.world.engine.autoscaling.bursting.run_once(Stage.PRODUCTION)
        await self.world.wait_for_deliveries()
        return decisions

    async def providers(self, jobs: Sequence[JobRecord]) -> list[str]:
        return [(await self.world.dispatch(job)).provider for job in jobs]

    async def lease_in_cloud(self) -> LeasedDispatch:
        leased = await self.world.lease(self.cloud, providers=[Provider.CLOUD])
        assert leased is not None
        return leased

    async def wait_reason(self, job: JobRecord) -> str:
        return (await self.world.engine.queue.wait_reasons.of_job(job.tenant_id, job.id)).text


async def cloud_worker(world: World, fleet: str, *, name: str = "cloud", slots: int = 10) -> str:
    await world.engine.workers.workers.register(
        worker_id=name,
        fleet_slug=fleet,
        stage=Stage.PRODUCTION,
        max_concurrency=slots,
        capabilities={"providers": ["cloud"]},
    )
    return name


async def burst_scenario(world: World, *, limit: int | None = 1_000_000, **values: Any) -> BurstScenario:
    workflow = await world.workflow(
        provider=WorkflowProvider.ANY,
        cloud_micros_per_second=PRICE,
        self_hosted_micros_per_second=10,
        burst_micros_per_hour=limit,
    )
    effect = await world.effect(workflow, **values)
    fleet = await world.fleet(workflow)
    user = await world.user()
    own = await world.worker(fleet, name="own")
    await world.submit(user, effect)
    running = await world.lease(own)
    assert running is not None
    return BurstScenario(
        world=world,
        user=user,
        workflow=workflow,
        effect=effect,
        own=own,
        cloud=await cloud_worker(world, fleet),
        running=running,
    )
