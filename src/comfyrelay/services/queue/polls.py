"""One polls per process serves every waiting poll: idle workers cost no database queries.

It looks for work when a poll comes in, when it is woken, and at a tick while somebody waits, should every wake-up be
lost. When many wait, it looks first what is queued and who could take it, and asks for those only.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import structlog

from comfyrelay.errors import ComfyRelayError, LeaseLost
from comfyrelay.services.queue.leasing import QUEUED_AT_ONCE, LeasedJob, LeaseRequest, Leasing
from comfyrelay.services.queue.settle import Settle
from comfyrelay.store.central.demand import Queued
from comfyrelay.store.wakeup import Wakeup

log = structlog.get_logger(__name__)

TICK_SECONDS = 1.0
# So many are asked for without finding out first who could take something: it would cost more than it saves.
FEW = 16
# A poll that follows one which was not answered looks for itself within so many ticks, together with others; until then
# it waits like all that are parked.
AGAIN_TICKS = 10
# So many are looked at first when only some can take what is queued.
LOOK_AT = 64


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Poll:
    request: LeaseRequest
    answer: "asyncio.Future[list[LeasedJob]]"
    waits: bool


class Polls:
    def __init__(
        self,
        leasing: Leasing,
        settle: Settle,
        wakeup: Wakeup,
        *,
        on_recall: Callable[[], None] = lambda: None,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        """`on_recall` is told when a worker was asked to give something back."""
        self._on_recall = on_recall
        self._leasing = leasing
        self._settle = settle
        self._wakeup = wakeup
        self._tick_seconds = tick_seconds
        self._new: list[_Poll] = []
        self._parked: dict[_Poll, None] = {}
        # Polls of workers whose last one has just gone unanswered: they look together, after a few ticks.
        self._again: list[_Poll] = []
        self._left_at: dict[str, float] = {}
        # Dispatches that nobody who waits here can take; they are tried again at the next tick.
        self._unplaced: set[int] = set()
        self._task: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._look = asyncio.Event()
        self._hinted = False
        self._tick_at = self._again_at = 0.0
        self._may_recall = False
        self._stopping = False

    @property
    def parked(self) -> int:
        return len(self._parked)

    async def poll(self, request: LeaseRequest, *, wait_seconds: float = 0.0) -> list[LeasedJob]:
        """Leases for the request; with `wait_seconds`, wait that long for one to come."""
        poll = _Poll(request=request, answer=asyncio.get_running_loop().create_future(), waits=wait_seconds > 0)
        self._add(poll, wait_seconds)
        try:
            if not poll.waits:
                return await poll.answer
            async with asyncio.timeout(wait_seconds):
                return await asyncio.shield(poll.answer)
        except TimeoutError:
            return await self._leave(poll)
        except asyncio.CancelledError:
            # The caller hung up. If a lease was on its way, nobody will ever know of it: give it back.
            poll.answer.add_done_callback(self._give_back)
            self._withdraw(poll)
            raise

    async def stop(self) -> None:
        """Answer every parked poll with nothing, and stop. Leases that are being granted are still handed over."""
        self._stopping = True
        self._look.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])
        self._task = self._watcher = None
        self._stopping = False
        for poll in self._forget_all():
            poll.answer.set_result([])

    def _add(self, poll: _Poll, wait_seconds: float) -> None:
        left_at = self._left_at.pop(poll.request.worker_id, None)
        just_left = left_at is not None and _now() - left_at < self._tick_seconds
        if just_left and wait_seconds > AGAIN_TICKS * self._tick_seconds:
            # Whatever was queued since then has given a hint, or is found at the tick.
            self._parked[poll] = None
            self._again.append(poll)
        else:
            self._new.append(poll)
            self._look.set()
        if self._task is None or self._task.done():
            self._look.set()
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._after_run)

    def _after_run(self, task: asyncio.Task[None]) -> None:
        """A polls that fails must say so: those who wait would wait for ever."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("polls.died", error=repr(error))
            for poll in self._forget_all():
                poll.answer.set_exception(error)

    def _forget_all(self) -> list[_Poll]:
        """Everybody who waits for an answer; from now on nobody does."""
        waiting = [each for each in (*self._new, *self._parked) if not each.answer.done()]
        self._new.clear()
        self._parked.clear()
        self._again.clear()
        return waiting

    async def _run(self) -> None:
        self._tick_at = _now() + self._tick_seconds
        while (self._new or self._parked) and not self._stopping:
            self._look.clear()
            await self._serve()
            if self._parked and not self._new and not self._stopping:
                await self._wait()

    async def _wait(self) -> None:
        """Until a new poll, a hint, or the tick."""
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch())
        await self._look.wait()

    async def _watch(self) -> None:
        if await self._wakeup.wait(max(0.0, self._tick_at - _now())):
            self._hinted = True
        self._look.set()

    async def _serve(self) -> None:
        """New polls look for themselves; those that wait look again only when there may be something new.

        A poll that would prefetch looks together with all that wait: whoever is idle goes first."""
        new, self._new = self._new, []
        self._parked.update(dict.fromkeys(new))
        hinted, self._hinted = self._hinted, False
        if ticked := _now() >= self._tick_at:
            self._tick(new)
        together = hinted or any(each.request.prefetch for each in new)
        try:
            if together and len(self._parked) <= FEW:
                await self._ask(list(self._parked))
            else:
                await self._ask(new, may_prefetch=False)
                if together or ticked:
                    await self._place()
                    await self._ask(each for each in new if each.request.prefetch)
        except Exception as error:
            self._fail(new, error)
        for poll in new:
            if not poll.waits and not poll.answer.done():
                self._answer(poll, [])

    def _tick(self, new: list[_Poll]) -> None:
        """What was put off until now."""
        self._tick_at = _now() + self._tick_seconds
        if _now() >= self._again_at:
            self._again_at = _now() + AGAIN_TICKS * self._tick_seconds
            new += self._again
            self._again = []
            self._may_recall = True
        self._unplaced.clear()
        self._left_at = {worker: at for worker, at in self._left_at.items() if _now() - at < self._tick_seconds}

    async def _place(self) -> None:
        """Bring what is queued to those who wait; whoever is idle then may have what a busy one only holds."""
        if queued := await self._queued():
            await self._bring(queued)
        if self._may_recall:
            self._may_recall = False
            await self._recall()

    async def _recall(self) -> None:
        prefetched = await self._leasing.prefetched()
        idle = [each.request for each in self._parked if not each.answer.done()]
        # not all each time: nearly always anybody would do, or nobody
        some = random.sample(idle, min(len(idle), LOOK_AT))
        if prefetched and some and await self._leasing.recall(prefetched, some):
            self._on_recall()

    async def _bring(self, queued: list[Queued]) -> None:
        """Offer it to those who wait, asking for no more of them than are needed."""
        busy: list[_Poll] = []
        async for free, others in self._able(queued):
            busy += others
            queued = await self._offer(queued, free, may_prefetch=False)
            if not queued:
                return
        # Only now is it known that nobody idle is left.
        queued = await self._offer(queued, busy, may_prefetch=True)
        self._unplaced.update(each.id for each in queued)

    async def _queued(self) -> list[Queued]:
        return [each for each in await self._leasing.queued() if each.id not in self._unplaced]

    async def _able(self, queued: Sequence[Queued]) -> AsyncIterator[tuple[list[_Poll], list[_Poll]]]:
        """Those who may run some of it: with a free slot, and without one but ready to prefetch. Warm ones first, then
        those who have waited longest. Ever more are looked at, because mostly the first can take it."""
        providers, hashes = {each.provider for each in queued}, {each.workflow_hash for each in queued}
        polls = [each for each in self._parked if not providers.isdisjoint(each.request.providers)]
        polls.sort(key=lambda each: each.request.warm_workflow_hashes.isdisjoint(hashes))
        start, size = 0, LOOK_AT
        while start < len(polls):
            some, start, size = polls[start : start + size], start + size, 2 * size
            free = await self._leasing.able([each.request.worker_id for each in some], queued)
            found = [each for each in some if each.request.worker_id in free]
            yield (
                [each for each in found if free[each.request.worker_id] > 0],
                [each for each in found if free[each.request.worker_id] <= 0 and each.request.prefetch],
            )

    async def _offer(self, queued: list[Queued], polls: Sequence[_Poll], *, may_prefetch: bool) -> list[Queued]:
        """Ask for these, ever more of them, until nothing is left; what is left."""
        start, size = 0, len(queued) + FEW
        while queued and start < len(polls):
            some, start, size = polls[start : start + size], start + size, 2 * size
            served = await self._ask(some, may_prefetch=may_prefetch)
            # What was queued since then has given a hint of its own.
            queued = await self._queued() if served < len(queued) or len(queued) >= QUEUED_AT_ONCE else []
        return queued

    async def _ask(self, polls: Iterable[_Poll], *, may_prefetch: bool = True) -> int:
        """Ask for these; how many of them were given something."""
        asked = [each for each in polls if not each.answer.done()]
        if not asked:
            return 0
        requests = [each.request if may_prefetch else _without_prefetch(each.request) for each in asked]
        answers = await self._leasing.lease_many(requests)
        for poll, answer in zip(asked, answers, strict=True):
            if answer or answer is None:
                self._answer(poll, answer or [])
        return sum(1 for each in answers if isinstance(each, list) and each)

    def _answer(self, poll: _Poll, answer: list[LeasedJob] | ComfyRelayError) -> None:
        self._parked.pop(poll, None)
        if isinstance(answer, ComfyRelayError):
            if not poll.answer.done():
                poll.answer.set_exception(answer)
        elif not poll.answer.done():
            poll.answer.set_result(answer)
        elif answer:
            asyncio.get_running_loop().create_task(self._release(answer))

    def _fail(self, polls: Iterable[_Poll], error: Exception) -> None:
        """Polls that wait go on waiting through a failure; the next tick tries again."""
        log.warning("polls.failed", error=repr(error))
        self._again_at = 0.0
        for poll in polls:
            if poll.waits:
                self._again.append(poll)
            elif not poll.answer.done():
                self._parked.pop(poll, None)
                poll.answer.set_exception(error)

    async def _leave(self, poll: _Poll) -> list[LeasedJob]:
        """Time is up. A lease that was granted this very moment is still handed over."""
        if poll.answer.done():
            return poll.answer.result()
        self._withdraw(poll)
        self._left_at[poll.request.worker_id] = _now()
        return []

    def _withdraw(self, poll: _Poll) -> None:
        self._parked.pop(poll, None)
        if not poll.answer.done():
            poll.answer.cancel()

    def _give_back(self, answer: "asyncio.Future[list[LeasedJob]]") -> None:
        if not answer.cancelled() and answer.exception() is None and answer.result():
            asyncio.get_running_loop().create_task(self._release(answer.result()))

    async def _release(self, leased: list[LeasedJob]) -> None:
        for each in leased:
            with contextlib.suppress(LeaseLost):
                await self._settle.requeue(each.dispatch_id, each.lease_token, reason="client_disconnected")


def _now() -> float:
    return asyncio.get_running_loop().time()


def _without_prefetch(request: LeaseRequest) -> LeaseRequest:
    return replace(request, prefetch=0) if request.prefetch else request
