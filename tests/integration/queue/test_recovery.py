"""Recovery finishes steps interrupted by a crash; a step that cannot be finished does not block others."""

from typing import Any

import pytest
from sqlalchemy import select

from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import tables as central
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import tables as tenant
from tests.support.crashes import interrupt, interrupt_delivery
from tests.support.world import World

pytestmark = pytest.mark.both_databases


@pytest.mark.parametrize("invalid", [{"status": "no such status"}, {"unknown_field": 1}])
async def test_failing_update_blocks_no_other_update(world: World, invalid: dict[str, Any]) -> None:
    desk = await world.desk(concurrency=9)
    first = await desk.submit()
    others = [await world.submit(await world.user(shard=shard), desk.effect) for shard in ("a", "a", "b")]
    for _ in range(4):
        await interrupt_delivery(world, lambda: world.leases(desk.worker, 1))

    async def corrupt(tx: Tx) -> int:
        entry = (await tx.execute(select(central.queue.outbox).order_by(central.queue.outbox.c.id).limit(1))).one()
        updates = [{**update, **invalid} for update in entry.updates]
        await tx.execute(
            central.queue.outbox.update().values(updates=updates).where(central.queue.outbox.c.id == entry.id)
        )
        return int(entry.id)

    entry_id = await world.engine.databases.central.run("test", corrupt)
    for _ in range(2):
        await world.relay()
        assert [(await world.job(job)).status for job in [first, *others]] == ["queued", *["processing"] * 3]
        async with world.engine.databases.central.read() as tx:
            assert await tx.scalars(select(central.queue.outbox.c.id)) == [entry_id]


async def test_failing_submission_blocks_no_other_submission(world: World) -> None:
    desk = await world.desk(concurrency=9)
    for _ in range(3):
        await interrupt(world, TransactionStep.SUBMIT_ENQUEUE, desk.submit)
    shard = await world.engine.databases.shard_of(desk.user.tenant_id)

    async def corrupt(tx: Tx) -> None:
        box = tenant.outbox
        [first] = await tx.scalars(select(box.c.id).order_by(box.c.id).limit(1))
        await tx.execute(box.update().values(job_ids=[{"unknown": "format"}]).where(box.c.id == first))

    await shard.run("test", corrupt)
    await world.relay()
    assert len(await world.leases(desk.worker, 9)) == 2
