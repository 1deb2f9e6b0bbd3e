"""Serve all waiting polls of a process together, so that idle workers cost no database queries.

The queue is read when a poll arrives, on a wakeup, and at every tick while polls are parked, because wakeups may be
lost. If many polls are parked, only polls that could take a queued dispatch try to lease.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace

import structlog

from comfyrelay.domain.queue.routing import QueuedDispatch
from comfyrelay.errors import ComfyRelayError, LeaseLost
from comfyrelay.services.queue.demand import QUEUED_AT_ONCE, Demand
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.leasing import LeaseRequest, Leasing
from comfyrelay.services.queue.settle import SettleService
from comfyrelay.store.notify import NotifyChannel
from comfyrelay.wakeup import Wakeup

log = structlog.get_logger(__name__)

TICK_SECONDS = 1.0
# Up to this many polls try to lease without a check whether they could: the check would cost more than it saves.
FEW = 16
# A worker that polls again right after a timeout is parked, and tried together with others after this many ticks.
REPOLL_TICKS = 10
# Size of the first group of parked polls to check; later groups are twice as large.
CHECKED_FIRST = 64
# A worker counts as waiting for this long after an empty answer, so also between two polls.
UNSERVED_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Poll:
    request: LeaseRequest
    answer: "asyncio.Future[list[LeasedDispatch]]"
    waits: bool


class Polls:
    def __init__(
        self,
        leasing: Leasing,
        demand: Demand,
        settle: SettleService,
        notify_channel: NotifyChannel,
        *,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        self._leasing = leasing
        self._demand = demand
        self._settle = settle
        self._notify_channel = notify_channel
        self._tick_seconds = tick_seconds
        self._new: list[_Poll] = []
        self._parked: dict[_Poll, None] = {}
        # Parked polls of workers whose last poll has just timed out.
        self._repolls: list[_Poll] = []
        self._timed_out_at: dict[str, float] = {}
        # By worker, its last poll and the time of the empty answer.
        self._unserved: dict[str, tuple[LeaseRequest, float]] = {}
        # Dispatches that no parked poll could take; they are offered again at the next tick.
        self._unplaced: set[int] = set()
        self._task: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        # Notified by a new poll, a wakeup or a tick.
        self._due = Wakeup()
        self._is_woken = False
        self._tick_at = self._repolls_at = 0.0
        self._may_recall = False
        self._is_stopping = False

    @property
    def parked(self) -> int:
        return len(self._parked)

    def waiting(self) -> list[LeaseRequest]:
        """The last request of each worker that waits for a job in this process."""
        oldest = _now() - UNSERVED_SECONDS
        self._unserved = {worker: (request, at) for worker, (request, at) in self._unserved.items() if at > oldest}
        parked = {each.request.worker_id: each.request for each in self._parked if not each.answer.done()}
        return list(({worker: request for worker, (request, _) in self._unserved.items()} | parked).values())

    async def poll(self, request: LeaseRequest, *, wait_seconds: float = 0.0) -> list[LeasedDispatch]:
        """Lease dispatches for the request; wait up to `wait_seconds` for the first."""
        poll = _Poll(request=request, answer=asyncio.get_running_loop().create_future(), waits=wait_seconds > 0)
        self._add(poll, wait_seconds)
        try:
            if not poll.waits:
                return await poll.answer
            async with asyncio.timeout(wait_seconds):
                return await asyncio.shield(poll.answer)
        except TimeoutError:
            return self._time_out(poll)
        except asyncio.CancelledError:
            # The client disconnected. Requeue a lease that is being granted, because no worker will know of it.
            poll.answer.add_done_callback(self._requeue_answer)
            self._withdraw(poll)
            raise

    def release_poll(self, worker_id: str) -> None:
        """Answer a worker's parked polls with nothing, because the response has another message for it."""
        for poll in [each for each in self._parked if each.waits and each.request.worker_id == worker_id]:
            self._answer(poll, [])

    async def stop(self) -> None:
        """Answer every parked poll with nothing, and stop. Leases that are being granted are still delivered."""
        self._is_stopping = True
        self._due.notify()
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])
        self._task = self._watcher = None
        self._is_stopping = False
        for poll in self._drop_all():
            poll.answer.set_result([])

    def _add(self, poll: _Poll, wait_seconds: float) -> None:
        self._unserved.pop(poll.request.worker_id, None)
        if self._is_repoll(poll) and wait_seconds > REPOLL_TICKS * self._tick_seconds:
            # A job queued since the timeout sent a wakeup, or is found at the tick.
            self._parked[poll] = None
            self._repolls.append(poll)
        else:
            self._new.append(poll)
            self._due.notify()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._after_run)

    def _is_repoll(self, poll: _Poll) -> bool:
        timed_out_at = self._timed_out_at.pop(poll.request.worker_id, None)
        return timed_out_at is not None and _now() - timed_out_at < self._tick_seconds

    def _after_run(self, task: asyncio.Task[None]) -> None:
        """Fail all polls if the loop failed, so that they do not wait forever."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("polls.crashed", error=repr(error))
            for poll in self._drop_all():
                poll.answer.set_exception(error)

    def _drop_all(self) -> list[_Poll]:
        """Remove and return all unanswered polls."""
        waiting = [each for each in (*self._new, *self._parked) if not each.answer.done()]
        self._new.clear()
        self._parked.clear()
        self._repolls.clear()
        return waiting

    async def _run(self) -> None:
        self._tick_at = _now() + self._tick_seconds
        while (self._new or self._parked) and not self._is_stopping:
            await self._serve()
            if self._parked and not self._new and not self._is_stopping:
                await self._wait()

    async def _wait(self) -> None:
        """Wait for a new poll, a wakeup or the tick."""
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch())
        await self._due.wait()

    async def _watch(self) -> None:
        if await self._notify_channel.wait(max(0.0, self._tick_at - _now())):
            self._is_woken = True
        self._due.notify()

    async def _serve(self) -> None:
        """Try new polls, and parked polls if there may be new work.

        A poll with prefetch is tried together with all parked polls, so that idle workers go first.
        """
        new, self._new = self._new, []
        self._parked.update(dict.fromkeys(new))
        is_woken, self._is_woken = self._is_woken, False
        if is_tick := _now() >= self._tick_at:
            self._tick(new)
        together = is_woken or any(each.request.prefetch for each in new)
        try:
            if together and len(self._parked) <= FEW:
                await self._lease(list(self._parked))
            else:
                await self._lease(new, may_prefetch=False)
                if together or is_tick:
                    await self._place()
                    await self._lease(each for each in new if each.request.prefetch)
        except Exception as error:
            self._fail(new, error)
        for poll in new:
            if not poll.waits and not poll.answer.done():
                self._unserved[poll.request.worker_id] = (poll.request, _now())
                self._answer(poll, [])

    def _tick(self, new: list[_Poll]) -> None:
        """Reset the per-tick state and release the postponed polls."""
        self._tick_at = _now() + self._tick_seconds
        if _now() >= self._repolls_at:
            self._repolls_at = _now() + REPOLL_TICKS * self._tick_seconds
            new += self._repolls
            self._repolls = []
            self._may_recall = True
        self._unplaced.clear()
        self._timed_out_at = {
            worker: at for worker, at in self._timed_out_at.items() if _now() - at < self._tick_seconds
        }

    async def _place(self) -> None:
        """Offer queued dispatches to parked polls, then reclaim prefetched ones for workers that stay idle."""
        if queued := await self._queued():
            await self._offer_to_able(queued)
        if self._may_recall:
            self._may_recall = False
            await self._recall()

    async def _recall(self) -> None:
        prefetched = await self._demand.prefetched()
        idle = [each.request for each in self._parked if not each.answer.done()]
        # a sample is enough: usually either every idle worker could run them, or none
        some = random.sample(idle, min(len(idle), CHECKED_FIRST))
        if prefetched and some:
            await self._demand.recall(prefetched, some)

    async def _offer_to_able(self, queued: list[QueuedDispatch]) -> None:
        """Offer dispatches to as few parked polls as needed."""
        busy: list[_Poll] = []
        async for free, others in self._able(queued):
            busy += others
            queued = await self._offer(queued, free, may_prefetch=False)
            if not queued:
                return
        # No idle worker is left, so busy ones may prefetch.
        queued = await self._offer(queued, busy, may_prefetch=True)
        self._unplaced.update(each.id for each in queued)

    async def _queued(self) -> list[QueuedDispatch]:
        queued = [each for each in await self._demand.queued() if each.id not in self._unplaced]
        if not any(each.only_worker for each in queued):
            return queued
        here = {each.request.worker_id for each in self._parked}
        return [each for each in queued if each.only_worker is None or each.only_worker in here]

    async def _able(self, queued: Sequence[QueuedDispatch]) -> AsyncIterator[tuple[list[_Poll], list[_Poll]]]:
        """Yield groups of polls that may run some of `queued`: with a free slot, and only for prefetch.

        Warm workers come first, then the longest waiting. Groups grow, because usually the first one suffices.
        """
        providers, hashes = {each.provider for each in queued}, {each.workflow_hash for each in queued}
        polls = [each for each in self._parked if not providers.isdisjoint(each.request.providers)]
        polls.sort(key=lambda poll: poll.request.warm_workflow_hashes.isdisjoint(hashes))
        start, size = 0, CHECKED_FIRST
        while start < len(polls):
            some, start, size = polls[start : start + size], start + size, 2 * size
            free = await self._demand.free_slots([each.request for each in some], queued)
            found = [each for each in some if each.request.worker_id in free]
            yield (
                [each for each in found if free[each.request.worker_id] > 0],
                [each for each in found if free[each.request.worker_id] <= 0 and each.request.prefetch],
            )

    async def _offer(
        self, queued: list[QueuedDispatch], polls: Sequence[_Poll], *, may_prefetch: bool
    ) -> list[QueuedDispatch]:
        """Lease for growing groups of polls until nothing is queued; return what remains."""
        start, size = 0, len(queued) + FEW
        while queued and start < len(polls):
            some, start, size = polls[start : start + size], start + size, 2 * size
            served = await self._lease(some, may_prefetch=may_prefetch)
            # Jobs queued in the meantime have sent their own wakeup.
            queued = await self._queued() if served < len(queued) or len(queued) >= QUEUED_AT_ONCE else []
        return queued

    async def _lease(self, polls: Iterable[_Poll], *, may_prefetch: bool = True) -> int:
        """Lease for these polls; return how many got a lease."""
        open_ = [each for each in polls if not each.answer.done()]
        if not open_:
            return 0
        requests = [each.request if may_prefetch else _without_prefetch(each.request) for each in open_]
        answers = await self._leasing.lease_many(requests)
        for poll, answer in zip(open_, answers, strict=True):
            if answer or answer is None:
                self._answer(poll, answer or [])
        return sum(1 for each in answers if isinstance(each, list) and each)

    def _answer(self, poll: _Poll, answer: list[LeasedDispatch] | ComfyRelayError) -> None:
        self._parked.pop(poll, None)
        if isinstance(answer, ComfyRelayError):
            if not poll.answer.done():
                poll.answer.set_exception(answer)
        elif not poll.answer.done():
            poll.answer.set_result(answer)
        elif answer:
            asyncio.get_running_loop().create_task(self._release(answer))

    def _fail(self, polls: Iterable[_Poll], error: Exception) -> None:
        """Keep waiting polls parked until the next tick; fail the others."""
        log.warning("polls.failed", error=repr(error))
        self._repolls_at = 0.0
        for poll in polls:
            if poll.waits:
                self._repolls.append(poll)
            elif not poll.answer.done():
                self._parked.pop(poll, None)
                poll.answer.set_exception(error)

    def _time_out(self, poll: _Poll) -> list[LeasedDispatch]:
        """Withdraw the poll, unless a lease was granted at the last moment."""
        if poll.answer.done():
            return poll.answer.result()
        self._withdraw(poll)
        self._timed_out_at[poll.request.worker_id] = _now()
        self._unserved[poll.request.worker_id] = (poll.request, _now())
        return []

    def _withdraw(self, poll: _Poll) -> None:
        self._parked.pop(poll, None)
        if not poll.answer.done():
            poll.answer.cancel()

    def _requeue_answer(self, answer: "asyncio.Future[list[LeasedDispatch]]") -> None:
        if not answer.cancelled() and answer.exception() is None and answer.result():
            asyncio.get_running_loop().create_task(self._release(answer.result()))

    async def _release(self, leased: list[LeasedDispatch]) -> None:
        for each in leased:
            with contextlib.suppress(LeaseLost):
                await self._settle.requeue(each.dispatch_id, each.lease_token, reason="client_disconnected")


def _now() -> float:
    return asyncio.get_running_loop().time()


def _without_prefetch(request: LeaseRequest) -> LeaseRequest:
    return replace(request, prefetch=0) if request.prefetch else request
