"""A machine provider in memory, and a fleet for tests of the autoscaling loop."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select

from comfyrelay.autoscaling.loop import ScalingLoop
from comfyrelay.autoscaling.providers.base import (
    LaunchRefused,
    LaunchResult,
    MachineOrder,
    ProviderFleet,
    ProviderMachine,
    ProviderMachineState,
)
from comfyrelay.domain.autoscaling.machines import MachineRecord, ScalingDecision
from comfyrelay.domain.autoscaling.spec import InstanceType
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.catalogue import EffectRecord
from comfyrelay.domain.records.workers import FleetRecord
from comfyrelay.store.central.autoscaling import machines
from comfyrelay.store.central.tables.workers import workers
from tests.support.world import World

MACHINES: dict[str, Any] = {"provider": "command", "options": {"boot_seconds": 100}}


async def _nothing(_orders: Sequence[MachineOrder]) -> None: ...


@dataclass
class MemoryProvider:
    """Launch one machine per key; `before` and `after` are called around every launch."""

    can_launch: bool = True
    there: dict[str, ProviderMachine] = field(default_factory=dict)
    launches: list[list[str]] = field(default_factory=list)
    totals: list[int] = field(default_factory=list)
    ends: list[list[str]] = field(default_factory=list)
    refuses: list[LaunchRefused] = field(default_factory=list)
    fails: Exception | None = None
    before: Callable[[Sequence[MachineOrder]], Awaitable[None]] = _nothing
    after: Callable[[Sequence[MachineOrder]], Awaitable[None]] = _nothing

    def get(self, _name: str, /) -> "MemoryProvider":
        return self

    async def observe(self, fleet: ProviderFleet) -> Sequence[ProviderMachine]:
        if self.fails is not None:
            raise self.fails
        return [machine for machine in self.there.values() if machine.id.startswith(f"{fleet.slug}.")]

    async def launch(self, fleet: ProviderFleet, orders: Sequence[MachineOrder], *, total: int) -> LaunchResult:
        self.launches.append([order.key for order in orders])
        self.totals.append(total)
        await self.before(orders)
        refused = [
            refuse for refuse in self.refuses if refuse.instance_type in {order.instance_type for order in orders}
        ]
        types = {refusal.instance_type for refusal in refused}
        accepted = [order for order in orders if order.instance_type not in types]
        for order in accepted:
            id_ = f"{fleet.slug}.{order.key}"
            self.there.setdefault(
                id_,
                ProviderMachine(
                    id=id_, state=ProviderMachineState.RUNNING, key=order.key, instance_type=order.instance_type
                ),
            )
        await self.after(orders)
        found = [machine for machine in self.there.values() if machine.key in {order.key for order in accepted}]
        return LaunchResult(launched=found, refused=refused)

    async def end(self, _fleet: ProviderFleet, ids: Sequence[str]) -> None:
        self.ends.append(list(ids))
        if self.fails is not None:
            raise self.fails
        for id_ in ids:
            self.there.pop(id_, None)

    async def prices(self, fleet: ProviderFleet) -> Sequence[InstanceType]:
        return fleet.spec.instance_types

    async def close(self) -> None: ...


@dataclass
class Fleets:
    """A world with a fleet and its autoscaling loop, which runs only when the test calls it."""

    world: World
    provider: MemoryProvider
    loop: ScalingLoop
    fleet: str
    effect: EffectRecord
    user: Any

    async def submit(self, jobs: int = 1) -> None:
        # use a new user, because active jobs per user are limited
        user = await self.world.user()
        for _ in range(jobs):
            await self.world.submit(user, self.effect)

    async def decide(self) -> None:
        await self.loop.decide_once()
        await self.loop.idle()

    async def look(self) -> None:
        await self.loop.observe_once()
        await self.loop.idle()

    async def round(self) -> None:
        await self.look()
        await self.decide()

    async def boot(self, fleet: str | None = None) -> list[str]:
        """Register every machine as a worker."""
        async with self.world.engine.databases.central.read() as tx:
            known = {row.worker_id for row in await tx.execute(select(workers.c.worker_id))}
        names = [machine.id for machine in self.provider.there.values() if machine.id not in known]
        for name in names:
            await self.world.worker(fleet or name.partition(".")[0], name=name)
        return names

    async def pass_time(self, seconds: float) -> None:
        """Advance the clock while workers send heartbeats."""
        await self.world.advance(seconds)
        async with self.world.engine.databases.central.read() as tx:
            names = [row.worker_id for row in await tx.execute(select(workers.c.worker_id))]
        await self.world.engine.workers.workers.record_seen(names)

    async def record(self, slug: str | None = None) -> FleetRecord:
        found = await self.world.engine.autoscaling.snapshots.fleets()
        return next(fleet for fleet in found if fleet.slug == (slug or self.fleet))

    async def present(self) -> list[MachineRecord]:
        return await self.world.engine.autoscaling.machines.present(await self.record())

    async def orders(self) -> list[MachineRecord]:
        """Return all machine orders, newest first."""
        async with self.world.engine.databases.central.read() as tx:
            return await machines.newest(tx, (await self.record()).id, limit=1000)

    async def decisions(self, slug: str | None = None) -> list[ScalingDecision]:
        views = self.world.engine.autoscaling.views
        return list((await views.decisions(Stage.PRODUCTION, slug or self.fleet, limit=100)).items)

    async def seen(self, slug: str | None = None) -> Any:
        found = await self.world.engine.autoscaling.snapshots.take(Stage.PRODUCTION)
        return next(fleet for fleet in found.snapshot.fleets if fleet.slug == (slug or self.fleet))

    async def change(self, **changes: Any) -> None:
        await self.world.engine.workers.fleets.change(stage=Stage.PRODUCTION, slug=self.fleet, changes=changes)


async def open_fleets(world: World, *, autoscaling: dict[str, Any] | None = None, **spec: Any) -> Fleets:
    workflow = await world.workflow()
    effect = await world.effect(workflow, cost=0)
    slug = await world.fleet(workflow)
    provider = MemoryProvider()
    found = Fleets(
        world=world,
        provider=provider,
        loop=ScalingLoop(world.engine, provider),
        fleet=slug,
        effect=effect,
        user=await world.user(),
    )
    # one machine for every two minutes of work; policies have their own tests
    await found.change(machines={**MACHINES, **spec}, autoscaling={"policy": "cheap", **(autoscaling or {})})
    await lead(world)
    return found


async def lead(world: World) -> None:
    """Claim leadership for the whole test."""
    world.engine.autoscaling.leadership.ttl_seconds = 1_000_000.0
    assert await world.engine.autoscaling.leadership.claim() is not None
