"""Serve all waiting polls of a process together, so that idle workers cost no database queries.

The queue is read when a poll arrives, on a wakeup, and at every tick while polls are parked, because wakeups may get
lost. If many polls are parked, only polls that could take a queued dispatch try to lease.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import structlog

from comfyrelay.domain.queue.offers import OfferOrder, WaitingWorker
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
# Up to this many polls try to lease without checking whether they can, because the check would cost more than it saves.
MAX_UNCHECKED = 16
# A worker that polls again right after a timeout is parked, and served together with others after this many ticks.
REPOLL_TICKS = 10
# Size of the first group of parked polls to check. Each further group is twice as large.
FIRST_GROUP_SIZE = 64
# A worker counts as waiting for this long after an empty answer, to bridge the time between two polls.
UNSERVED_SECONDS = 30.0
# The scaled fleets are read again after this time.
FLEETS_SECONDS = 30.0
# A worker that had no job for this long is forgotten.
MAX_IDLE_SECONDS = 86_400.0


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
        self._parked: OfferOrder[_Poll] = OfferOrder()
        # New polls of workers whose last poll has just timed out.
        self._repolls: list[_Poll] = []
        self._timed_out_at: dict[str, float] = {}
        # The last request of each worker with an empty answer, and the time of the answer.
        self._unserved: dict[str, tuple[LeaseRequest, float]] = {}
        # The time when each worker last had a job, and the workers whose last answer was a lease.
        self._busy_at: dict[str, float] = {}
        self._leased: set[str] = set()
        self._scaled_fleets: frozenset[int] = frozenset()
        self._fleets_read_at = -FLEETS_SECONDS
        # Dispatches that no parked poll could take. They are offered again at the next tick.
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
        """Return the last request of each worker that waits for a job in this process."""
        oldest = _now() - UNSERVED_SECONDS
        self._unserved = {worker: (request, at) for worker, (request, at) in self._unserved.items() if at > oldest}
        waiting = {worker: request for worker, (request, _) in self._unserved.items()}
        waiting |= {poll.request.worker_id: poll.request for poll in self._parked if not poll.answer.done()}
        return list(waiting.values())

    async def poll(self, request: LeaseRequest, *, wait_seconds: float = 0.0) -> list[LeasedDispatch]:
        """Lease dispatches for the request. Waits up to `wait_seconds` for the first dispatch."""
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
            # The client disconnected. Requeue leases that are just being granted, because no worker will know of them.
            poll.answer.add_done_callback(self._requeue_answer)
            self._withdraw(poll)
            raise

    def give_back(self, leased: list[LeasedDispatch]) -> None:
        """Requeue leases in the background, because their worker will not know of them."""
        asyncio.get_running_loop().create_task(self._release(leased))

    def release_poll(self, worker_id: str) -> None:
        """Answer a worker's parked polls without a lease, because the response has another message for the worker."""
        for poll in [poll for poll in self._parked if poll.waits and poll.request.worker_id == worker_id]:
            self._answer(poll, [])

    async def stop(self) -> None:
        """Answer every parked poll without a lease, and stop. Leases that are just being granted are still
        delivered."""
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
        if poll.request.worker_id in self._leased or poll.request.current_load:
            self._leased.discard(poll.request.worker_id)
            self._busy_at[poll.request.worker_id] = _now()
        self._unserved.pop(poll.request.worker_id, None)
        timed_out_at = self._timed_out_at.pop(poll.request.worker_id, None)
        is_repoll = timed_out_at is not None and _now() - timed_out_at < self._tick_seconds
        if is_repoll and wait_seconds > REPOLL_TICKS * self._tick_seconds:
            # A job queued since the timeout has sent a wakeup, or is found at the tick.
            self._park(poll)
            self._repolls.append(poll)
        else:
            self._new.append(poll)
            self._due.notify()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._after_run)

    def _after_run(self, task: asyncio.Task[None]) -> None:
        """If the loop has failed, fail all polls, so that they do not wait forever."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("polls.crashed", error=repr(error))
            for poll in self._drop_all():
                poll.answer.set_exception(error)

    def _drop_all(self) -> list[_Poll]:
        """Remove and return all unanswered polls."""
        unanswered = [poll for poll in (*self._new, *self._parked) if not poll.answer.done()]
        self._new.clear()
        self._parked.clear()
        self._repolls.clear()
        return unanswered

    async def _run(self) -> None:
        self._tick_at = _now() + self._tick_seconds
        while (self._new or self._parked) and not self._is_stopping:
            await self._serve()
            if self._parked and not self._new and not self._is_stopping:
                if self._watcher is None or self._watcher.done():
                    self._watcher = asyncio.create_task(self._watch())
                await self._due.wait()

    async def _watch(self) -> None:
        if await self._notify_channel.wait(max(0.0, self._tick_at - _now())):
            self._is_woken = True
        self._due.notify()

    async def _serve(self) -> None:
        """Lease for new polls, and for parked polls if there may be new work.

        A poll with prefetch is served together with all parked polls, so that idle workers go first.
        """
        # A client may have disconnected in the meantime.
        new, self._new = [poll for poll in self._new if not poll.answer.done()], []
        for poll in new:
            self._park(poll)
        is_woken, self._is_woken = self._is_woken, False
        if is_tick := _now() >= self._tick_at:
            self._tick(new)
        together = is_woken or any(poll.request.prefetch for poll in new)
        try:
            if together and len(self._parked) <= MAX_UNCHECKED:
                await self._read_scaled_fleets()
                await self._lease(self._parked)
            else:
                await self._lease(new, may_prefetch=False)
                if together or is_tick:
                    await self._place()
                    await self._lease(poll for poll in new if poll.request.prefetch)
        except Exception as error:
            self._fail(new, error)
        for poll in new:
            if not poll.waits and not poll.answer.done():
                self._unserved[poll.request.worker_id] = (poll.request, _now())
                self._answer(poll, [])

    def _tick(self, new: list[_Poll]) -> None:
        """Reset the state of a tick, and add the postponed polls to the new ones."""
        self._tick_at = _now() + self._tick_seconds
        if _now() >= self._repolls_at:
            self._repolls_at = _now() + REPOLL_TICKS * self._tick_seconds
            new += self._repolls
            self._repolls = []
            self._may_recall = True
            oldest = _now() - MAX_IDLE_SECONDS
            self._busy_at = {worker: at for worker, at in self._busy_at.items() if at > oldest}
            self._leased &= self._busy_at.keys()
        self._unplaced.clear()
        self._timed_out_at = {
            worker: at for worker, at in self._timed_out_at.items() if _now() - at < self._tick_seconds
        }

    async def _place(self) -> None:
        """Offer queued dispatches to parked polls, then reclaim prefetched dispatches for workers that are still
        idle."""
        if queued := await self._read_queued():
            await self._offer_to_able(queued)
        if self._may_recall:
            self._may_recall = False
            await self._recall()

    async def _recall(self) -> None:
        prefetched = await self._demand.prefetched()
        idle = [poll.request for poll in self._parked if not poll.answer.done()]
        # A sample is enough, because usually either all or none of the idle workers can run the jobs.
        sample = random.sample(idle, min(len(idle), FIRST_GROUP_SIZE))
        if prefetched and sample:
            await self._demand.recall(prefetched, sample)

    async def _offer_to_able(self, queued: list[QueuedDispatch]) -> None:
        """Offer dispatches to as few parked polls as needed."""
        busy: list[_Poll] = []
        async for free, prefetching in self._find_able(queued):
            busy += prefetching
            queued = await self._offer(queued, free, may_prefetch=False)
            if not queued:
                return
        # No other worker is idle, so busy workers may prefetch.
        queued = await self._offer(queued, busy, may_prefetch=True)
        self._unplaced.update(dispatch.id for dispatch in queued)

    async def _read_queued(self) -> list[QueuedDispatch]:
        queued = [dispatch for dispatch in await self._demand.queued() if dispatch.id not in self._unplaced]
        if not any(dispatch.only_worker for dispatch in queued):
            return queued
        workers = {None, *(poll.request.worker_id for poll in self._parked)}
        return [dispatch for dispatch in queued if dispatch.only_worker in workers]

    async def _find_able(self, queued: Sequence[QueuedDispatch]) -> AsyncIterator[tuple[list[_Poll], list[_Poll]]]:
        """Yield groups of polls that may run any of `queued`: polls with a free slot, and polls that may only prefetch.

        Warm workers come first. Groups grow, because usually the first group suffices.
        """
        providers = {dispatch.provider for dispatch in queued}
        hashes = {dispatch.workflow_hash for dispatch in queued}
        await self._read_scaled_fleets()
        polls = (poll for poll in self._parked.first(hashes) if not providers.isdisjoint(poll.request.providers))
        for group in _growing_groups(polls, FIRST_GROUP_SIZE):
            free = await self._demand.free_slots([poll.request for poll in group], queued)
            able = [poll for poll in group if poll.request.worker_id in free]
            yield (
                [poll for poll in able if free[poll.request.worker_id] > 0],
                [poll for poll in able if free[poll.request.worker_id] <= 0 and poll.request.prefetch],
            )

    def _park(self, poll: _Poll) -> None:
        """Rank the poll by the knowledge of this process. Another server may have served the worker more recently."""
        worker = WaitingWorker(
            is_scaled=poll.request.fleet_id in self._scaled_fleets,
            load=poll.request.current_load,
            busy_at=self._busy_at.get(poll.request.worker_id, 0.0),
            warm_hashes=poll.request.warm_workflow_hashes,
        )
        self._parked.add(poll, worker)

    async def _read_scaled_fleets(self) -> None:
        """Rank the parked polls again if a fleet has become autoscaled or is no longer autoscaled."""
        if len(self._parked) <= 1 or _now() < self._fleets_read_at + FLEETS_SECONDS:
            return
        scaled, self._fleets_read_at = await self._demand.scaled_fleets(), _now()
        if scaled != self._scaled_fleets:
            self._scaled_fleets = scaled
            for poll in self._parked:
                self._park(poll)

    async def _offer(
        self, queued: list[QueuedDispatch], polls: Sequence[_Poll], *, may_prefetch: bool
    ) -> list[QueuedDispatch]:
        """Lease for growing groups of polls until nothing is queued, and return the remaining dispatches."""
        for group in _growing_groups(polls, len(queued) + MAX_UNCHECKED):
            if not queued:
                break
            served = await self._lease(group, may_prefetch=may_prefetch)
            # Jobs queued in the meantime have sent their own wakeup.
            queued = await self._read_queued() if served < len(queued) or len(queued) >= QUEUED_AT_ONCE else []
        return queued

    async def _lease(self, polls: Iterable[_Poll], *, may_prefetch: bool = True) -> int:
        """Lease for these polls, and return the number of polls that got a lease."""
        unanswered = [poll for poll in polls if not poll.answer.done()]
        if not unanswered:
            return 0
        requests = [poll.request if may_prefetch else _without_prefetch(poll.request) for poll in unanswered]
        answers = await self._leasing.lease_many(requests)
        for poll, answer in zip(unanswered, answers, strict=True):
            if answer or answer is None:
                self._answer(poll, answer or [])
        return sum(1 for answer in answers if isinstance(answer, list) and answer)

    def _answer(self, poll: _Poll, answer: list[LeasedDispatch] | ComfyRelayError) -> None:
        self._parked.discard(poll)
        if isinstance(answer, list) and answer:
            self._leased.add(poll.request.worker_id)
            self._busy_at[poll.request.worker_id] = _now()
        if isinstance(answer, ComfyRelayError):
            if not poll.answer.done():
                poll.answer.set_exception(answer)
        elif not poll.answer.done():
            poll.answer.set_result(answer)
        elif answer:
            self.give_back(answer)

    def _fail(self, polls: Iterable[_Poll], error: Exception) -> None:
        """Keep waiting polls parked until the next tick, and fail the others."""
        log.warning("polls.failed", error=repr(error))
        self._repolls_at = 0.0
        for poll in polls:
            if poll.waits:
                self._repolls.append(poll)
            elif not poll.answer.done():
                self._parked.discard(poll)
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
        self._parked.discard(poll)
        if not poll.answer.done():
            poll.answer.cancel()

    def _requeue_answer(self, answer: "asyncio.Future[list[LeasedDispatch]]") -> None:
        if not answer.cancelled() and answer.exception() is None and answer.result():
            self.give_back(answer.result())

    async def _release(self, leased: list[LeasedDispatch]) -> None:
        for lease in leased:
            with contextlib.suppress(LeaseLost):
                await self._settle.requeue(lease.dispatch_id, lease.lease_token, reason="client_disconnected")


def _now() -> float:
    return asyncio.get_running_loop().time()


def _growing_groups(polls: Iterable[_Poll], size: int) -> Iterator[list[_Poll]]:
    """Split the polls into groups. Each group is twice as large as the one before."""
    remaining = iter(polls)
    while group := list(islice(remaining, size)):
        yield group
        size *= 2


def _without_prefetch(request: LeaseRequest) -> LeaseRequest:
    return replace(request, prefetch=0) if request.prefetch else request
