"""Transactions: everything or nothing, in as few round trips as possible."""

import pytest

from comfyrelay.store import outbox
from comfyrelay.store.database import Database, Tx
from comfyrelay.store.tenant.submissions import submit
from tests.support.statements import count_statements
from tests.support.world import World

pytestmark = pytest.mark.both_databases

STEP = "test"


class Stopped(Exception):
    """Raised by a test in the middle of a transaction."""


@pytest.fixture
def shard(world: World) -> Database:
    return next(iter(world.engine.databases.shards.values()))


async def pending(shard: Database) -> list[list[str]]:
    async with shard.read() as tx:
        return [list(submission.job_ids) for submission in await outbox.submissions(tx, limit=10)]


async def test_failed_transaction_writes_nothing(shard: Database) -> None:
    async def work(tx: Tx) -> None:
        await submit(tx, ["job"])
        raise Stopped

    with pytest.raises(Stopped):
        await shard.run(STEP, work)
    assert await pending(shard) == []


async def test_statements_of_a_transaction_see_each_other(shard: Database) -> None:
    async def work(tx: Tx) -> int:
        first = await submit(tx, ["first"])
        await outbox.remove_submissions(tx, [first.id])
        await submit(tx, ["second"])
        return len(await outbox.submissions(tx, limit=10))

    assert await shard.run(STEP, work) == 1
    assert await pending(shard) == [["second"]]


async def test_deferred_writes_alone_take_one_round_trip(world: World, shard: Database) -> None:
    await shard.run(STEP, lambda tx: submit(tx, ["job"]))
    async with count_statements(world) as counted:
        await shard.run(STEP, lambda tx: outbox.remove_submissions(tx, range(10)))
    # SQLite begins every transaction, and its COMMIT is not counted.
    assert counted == {shard.name: 1 if world.backend == "postgresql" else 2}
    assert await pending(shard) == []


async def test_single_statement_takes_one_round_trip(world: World, shard: Database) -> None:
    async with count_statements(world) as counted:
        await shard.run(STEP, lambda tx: submit(tx, ["job"]), is_single=True)
    assert counted == {shard.name: 1 if world.backend == "postgresql" else 2}
    assert await pending(shard) == [["job"]]


async def test_transaction_without_statements_takes_no_round_trip(world: World, shard: Database) -> None:
    async def work(_tx: Tx) -> None:
        return None

    async with count_statements(world) as counted:
        await shard.run(STEP, work)
    assert counted == ({} if world.backend == "postgresql" else {shard.name: 1})
