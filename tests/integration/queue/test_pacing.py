"""Calls that handle thousands of jobs let other callers run in between."""

import asyncio
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from comfyrelay import pacing
from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.domain.queue.updates import JobUpdate
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store import outbox
from tests.support.world import START, World, submit_batch

MANY = 8 * pacing.ITEMS_AT_ONCE
MAX_CALLS = 8_000
# One turn of the event loop.
TURN = asyncio.Handle._run.__code__

T = TypeVar("T")


class Turns:
    """Count Python calls by function in the busiest turn of the event loop."""

    def __init__(self) -> None:
        self.busiest: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()

    @contextmanager
    def counted(self) -> Iterator[None]:
        def on_event(frame: FrameType, event: str, _argument: object) -> None:
            if event != "call" or frame.f_code.co_flags & inspect.CO_GENERATOR or threading.get_ident() != loop:
                return
            if frame.f_code is TURN:
                self._end()
            else:
                self._calls[frame.f_code.co_qualname] += 1

        loop = threading.get_ident()
        sys.setprofile(on_event)
        try:
            yield
        finally:
            sys.setprofile(None)
            self._end()

    def _end(self) -> None:
        if self._calls.total() > self.busiest.total():
            self.busiest = self._calls
        self._calls = Counter()


async def busiest_turns(world: World, items: int) -> dict[str, Counter[str]]:
    """Submit, pause, rerun and cancel a batch; return the busiest turn of each call."""
    user, effect = await world.user(tokens=10 * items), await world.effect(cost=1)
    found: dict[str, Counter[str]] = {}

    async def call(name: str, work: Awaitable[T]) -> T:
        turns = Turns()
        with turns.counted():
            result = await work
        found[name] = turns.busiest
        return result

    control, batches = world.engine.queue.control, world.engine.jobs.batches
    batch = await call("submit", submit_batch(world, user, effect, items))
    assert await call("pause", control.pause_batch(user.tenant_id, batch.id)) == items
    await call("again", batches.run_again(user.tenant_id, batch.id, new_seeds=False))
    assert await call("cancel", control.cancel_batch(user.tenant_id, batch.id)) == items
    assert (await batches.state(user.tenant_id, batch.id)).counts == {JobStatus.CANCELED: items}
    return found


async def test_turn_of_the_loop_has_a_limited_number_of_calls(world: World) -> None:
    # the first calls compile statements
    await busiest_turns(world, 1)
    for name, turn in (await busiest_turns(world, MANY)).items():
        # measured: 5,000, or 40,000 without pauses. About three calls per item are not paced: SQLite's clock function.
        assert turn.total() < MAX_CALLS, (name, turn.most_common(5))


async def test_long_outbox_entry_is_read_in_several_turns(world: World) -> None:
    update = JobUpdate(
        tenant_id="t",
        job_id="j",
        version=1,
        event_type="job:paused",
        status=JobStatus.PAUSED,
        at=START,
        epoch=0,
        attempts=0,
        priority=0,
    )
    central, turns = world.engine.databases.central, Turns()
    [posted] = await central.run(TransactionStep.SETTLE, lambda tx: outbox.post(tx, {"main": [update] * MANY}))
    async with central.read() as tx:
        # the first call compiles the statement
        await outbox.entries_by_ids(tx, [posted.id])
        with turns.counted():
            [entry] = await outbox.entries_by_ids(tx, [posted.id])
    assert len(entry.updates) == MANY
    assert turns.busiest[JobUpdate.from_json.__qualname__] <= pacing.ITEMS_AT_ONCE


async def test_paced_loop_yields_all_items_and_pauses_after_a_few() -> None:
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    seen = [(item, others) async for item in pacing.paced(range(3 * pacing.ITEMS_AT_ONCE))]
    task.cancel()
    assert [item for item, _ in seen] == list(range(3 * pacing.ITEMS_AT_ONCE))
    assert max(Counter(turn for _, turn in seen).values()) == pacing.ITEMS_AT_ONCE
    assert [item async for item in pacing.paced([0][:0])] == []
