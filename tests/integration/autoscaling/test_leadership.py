"""Leader election: a dead leader is replaced, there are never two, and writes of a former leader are refused."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from comfyrelay.errors import LeadershipLost
from comfyrelay.services.autoscaling.leadership import Leadership
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.autoscaling import cursors
from comfyrelay.store.database import Tx
from tests.support.world import World

pytestmark = pytest.mark.both_databases

TTL = 10.0


@pytest.fixture
async def other_databases(world: World) -> AsyncIterator[Databases]:
    """Yield the databases as a second process opens them."""
    found = Databases.from_settings(world.engine.settings, clock=lambda: world.clock.now)
    yield found
    await found.close()


@pytest.fixture
def leaderships(world: World, other_databases: Databases) -> tuple[Leadership, Leadership]:
    return (
        Leadership(world.engine.databases, "test", holder="first"),
        Leadership(other_databases, "test", holder="second"),
    )


def ignore_own_clock(leadership: Leadership) -> None:
    """Make the process ignore its own clock, so that only the database decides."""
    leadership._until = float("inf")


async def write(leadership: Leadership, value: int) -> None:
    ignore_own_clock(leadership)
    await leadership.run(TransactionStep.LEARN, lambda tx: cursors.move(tx, "test", value))


async def stored_value(world: World) -> int | None:
    async with world.engine.databases.central.read() as tx:
        return await cursors.position(tx, "test")


async def test_second_claim_waits_for_the_leader(world: World, leaderships: tuple[Leadership, Leadership]) -> None:
    first, second = leaderships
    assert await first.claim() is not None
    assert await second.claim() is None
    assert second.leader is None
    current = await second.current()
    assert current is not None
    assert (current.holder, current.term) == ("first", 1)
    with pytest.raises(LeadershipLost):
        await second.run(TransactionStep.LEARN, lambda tx: cursors.move(tx, "test", 1))
    assert await stored_value(world) is None


async def test_renewing_leader_keeps_its_term(world: World, leaderships: tuple[Leadership, Leadership]) -> None:
    first, second = leaderships
    for _ in range(5):
        renewed = await first.claim()
        assert renewed is not None
        assert renewed.term == 1
        assert await second.claim() is None
        await world.advance(TTL / 3)


async def test_dead_leader_is_replaced_exactly_when_its_term_ends(
    world: World, leaderships: tuple[Leadership, Leadership]
) -> None:
    first, second = leaderships
    await first.claim()
    await world.advance(TTL - 1)
    assert await second.claim() is None
    await world.advance(1)
    taken = await second.claim()
    assert taken is not None
    assert taken.term == 2


async def test_write_of_a_former_leader_is_refused(world: World, leaderships: tuple[Leadership, Leadership]) -> None:
    first, second = leaderships
    await first.claim()
    await write(first, 1)
    await world.advance(TTL)
    await second.claim()
    with pytest.raises(LeadershipLost):
        await write(first, 2)
    assert await stored_value(world) == 1
    assert first.leader is None
    await write(second, 3)
    assert await stored_value(world) == 3


async def test_expired_leader_cannot_write_even_without_a_successor(
    world: World, leaderships: tuple[Leadership, Leadership]
) -> None:
    first, _ = leaderships
    await first.claim()
    await world.advance(TTL)
    with pytest.raises(LeadershipLost):
        await write(first, 2)
    again = await first.claim()
    assert again is not None
    assert again.term == 2


async def test_resigning_leader_is_replaced_at_once(leaderships: tuple[Leadership, Leadership]) -> None:
    first, second = leaderships
    await first.claim()
    await first.resign()
    assert first.leader is None
    assert await second.claim() is not None
    assert await first.claim() is None


async def test_concurrent_claims_elect_one_leader(world: World, leaderships: tuple[Leadership, Leadership]) -> None:
    first, second = leaderships
    for _ in range(2):
        found = await asyncio.gather(*(candidate.claim() for candidate in (first, second, second, first)))
        assert len({leader.holder for leader in found if leader is not None}) == 1
        await world.advance(TTL)


async def test_leadership_is_not_claimed_during_a_write_of_the_leader(
    world: World, leaderships: tuple[Leadership, Leadership]
) -> None:
    first, second = leaderships
    await first.claim()
    ignore_own_clock(first)
    order: list[str] = []
    is_writing = asyncio.Event()

    async def claim() -> None:
        await is_writing.wait()
        await world.advance(TTL)
        assert await second.claim() is not None
        order.append("claimed")

    async def slow(tx: Tx) -> None:
        is_writing.set()
        # The claim waits for this transaction.
        for _ in range(100):
            await asyncio.sleep(0)
        await cursors.move(tx, "test", 1)
        order.append("written")

    await asyncio.gather(first.run(TransactionStep.LEARN, slow), claim())
    assert order == ["written", "claimed"]
