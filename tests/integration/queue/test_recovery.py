"""Steps interrupted by a crash are finished, and one that cannot be finished does not block others."""

from typing import Any

import pytest
from sqlalchemy import select

from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import tables as central
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import tables as tenant
from tests.integration.crashes.test_reconciler import interrupted, undelivered
from tests.support.world import World


@pytest.mark.parametrize("spoilt", [{"status": "no such status"}, {"of_another_version": 1}])
async def test_failing_update_blocks_neither_its_neighbours_nor_other_shards(
    world: World, spoilt: dict[str, Any]
) -> None:
    desk = await world.desk(concurrency=9)
    first = await desk.submit()
    others = [await world.submit(await world.user(shard=shard), desk.effect) for shard in ("a", "a", "b")]
    for _ in range(4):
        await undelivered(world, lambda: world.leases(desk.worker, 1))

    async def spoil(tx: Tx) -> int:
        entry = (await tx.execute(select(central.queue.outbox).order_by(central.queue.outbox.c.id).limit(1))).one()
        updates = [{**update, **spoilt} for update in entry.updates]
        await tx.execute(
            central.queue.outbox.update().values(updates=updates).where(central.queue.outbox.c.id == entry.id)
        )
        return int(entry.id)

    bad = await world.engine.databases.central.run("test", spoil)
    for _ in range(2):
        await world.relay()
        assert [(await world.job(each)).status for each in [first, *others]] == ["queued", *["processing"] * 3]
        async with world.engine.databases.central.read() as tx:
            assert await tx.scalars(select(central.queue.outbox.c.id)) == [bad]


async def test_submission_that_cannot_be_enqueued_holds_up_no_other(world: World) -> None:
    desk = await world.desk(concurrency=9)
    for _ in range(3):
        await interrupted(world, TransactionStep.SUBMIT_ENQUEUE, desk.submit)
    shard = await world.engine.databases.shard_of(desk.user.tenant_id)

    async def spoil(tx: Tx) -> None:
        box = tenant.outbox
        [first] = await tx.scalars(select(box.c.id).order_by(box.c.id).limit(1))
        await tx.execute(box.update().values(job_ids=[{"of": "another version"}]).where(box.c.id == first))

    await shard.run("test", spoil)
    await world.relay()
    assert len(await world.leases(desk.worker, 9)) == 2
