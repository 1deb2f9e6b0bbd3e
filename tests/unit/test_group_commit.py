"""Concurrent calls are committed together, and each has its own answer."""

import asyncio
from collections.abc import Sequence

import pytest

from comfyrelay.errors import LeaseLost
from comfyrelay.group_commit import Deferral, GroupCommit

LONG = 60.0


class Handler:
    """Record the batches; each batch waits until the test releases it."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Semaphore(0)

    async def __call__(self, numbers: Sequence[int]) -> Sequence[int | Exception]:
        self.batches.append(list(numbers))
        await self.gate.acquire()
        return [LeaseLost() if number < 0 else 10 * number for number in numbers]

    def release_batches(self, batches: int) -> None:
        for _ in range(batches):
            self.gate.release()


async def test_calls_during_a_batch_share_the_next_one() -> None:
    handler = Handler()
    group = GroupCommit(handler)
    first = group.add(1)
    await asyncio.sleep(0)
    others = [group.add(2), group.add(3)]
    handler.release_batches(2)
    assert [await first, *[await other for other in others]] == [10, 20, 30]
    assert handler.batches == [[1], [2, 3]]


async def test_each_call_has_its_own_answer() -> None:
    handler = Handler()
    group = GroupCommit(handler)
    good, bad = group.add(1), group.add(-1)
    handler.release_batches(1)
    assert await good == 10
    with pytest.raises(LeaseLost):
        await bad


async def test_batch_is_full_when_the_sizes_reach_the_maximum() -> None:
    handler = Handler()
    group = GroupCommit(handler, max_size=5, size_of=lambda number: number)
    calls = [group.add(each) for each in (4, 4, 9, 1)]
    handler.release_batches(3)
    await asyncio.gather(*calls)
    assert handler.batches == [[4, 4], [9], [1]]


async def test_unawaited_writes_are_batched_until_a_caller_waits() -> None:
    handler, patience = Handler(), Deferral()
    handler.release_batches(1)
    group = GroupCommit(handler, pause=lambda: patience.delay(10 * LONG))
    calls = [group.add(1)]
    await asyncio.sleep(0)
    calls.append(group.add(2))
    assert handler.batches == []
    async with asyncio.timeout(LONG):
        with patience.waiting():
            await asyncio.gather(*calls)
    assert handler.batches == [[1, 2]]
