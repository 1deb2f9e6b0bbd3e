"""One claimer per process serves every waiting poll: idle workers cost no database queries.

It looks for work when a poll comes in, when it is woken, and at a tick while somebody waits, should every wake-up be
lost.
"""

import asyncio
import contextlib
from dataclasses import dataclass

import structlog

from comfyrelay.errors import ComfyRelayError, LeaseLost
from comfyrelay.services.leasing import LeasedJob, LeaseRequest, Leasing
from comfyrelay.services.settle import Settle
from comfyrelay.services.wakeup import Wakeup

log = structlog.get_logger(__name__)

TICK_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Poll:
    request: LeaseRequest
    answer: "asyncio.Future[list[LeasedJob]]"
    waits: bool


class Claimer:
    def __init__(self, leasing: Leasing, settle: Settle, wakeup: Wakeup, *, tick_seconds: float = TICK_SECONDS) -> None:
        self._leasing = leasing
        self._settle = settle
        self._wakeup = wakeup
        self._tick_seconds = tick_seconds
        self._new: list[_Poll] = []
        self._parked: dict[_Poll, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._look = asyncio.Event()
        self._hinted = False
        self._stopping = False

    @property
    def parked(self) -> int:
        return len(self._parked)

    async def poll(self, request: LeaseRequest, *, wait_seconds: float = 0.0) -> list[LeasedJob]:
        """Leases for the request; with `wait_seconds`, wait that long for one to come."""
        poll = _Poll(request=request, answer=asyncio.get_running_loop().create_future(), waits=wait_seconds > 0)
        self._new.append(poll)
        self._start()
        try:
            if not poll.waits:
                return await asyncio.shield(poll.answer)
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
        for poll in (*self._new, *self._parked):
            if not poll.answer.done():
                poll.answer.set_result([])
        self._new.clear()
        self._parked.clear()

    def _start(self) -> None:
        self._look.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._after_run)

    def _after_run(self, task: asyncio.Task[None]) -> None:
        """A claimer that fails must say so: those who wait would wait for ever."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("claimer.died", error=repr(error))
            for poll in (*self._new, *self._parked):
                if not poll.answer.done():
                    poll.answer.set_exception(error)
            self._new.clear()
            self._parked.clear()

    async def _run(self) -> None:
        while (self._new or self._parked) and not self._stopping:
            self._look.clear()
            await self._serve(self._due())
            if self._parked and not self._new and not self._stopping:
                await self._wait()

    async def _wait(self) -> None:
        """Until a new poll, a hint, or the tick."""
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch())
        await self._look.wait()

    async def _watch(self) -> None:
        await self._wakeup.wait(self._tick_seconds)
        self._hinted = True
        self._look.set()

    def _due(self) -> list[_Poll]:
        """New polls look for themselves; those that wait look again only when there may be something new.

        A poll that would prefetch looks together with all that wait: whoever is idle goes first."""
        new, self._new = self._new, []
        self._parked.update(dict.fromkeys(new))
        together = self._hinted or any(each.request.prefetch for each in new)
        due = list(self._parked) if together else new
        self._hinted = False
        return [each for each in due if not each.answer.done()]

    async def _serve(self, polls: list[_Poll]) -> None:
        if not polls:
            return
        try:
            answers = await self._leasing.lease_many([each.request for each in polls])
        except Exception as error:
            self._fail(polls, error)
            return
        for poll, answer in zip(polls, answers, strict=True):
            self._answer(poll, answer)

    def _answer(self, poll: _Poll, answer: list[LeasedJob] | ComfyRelayError) -> None:
        if isinstance(answer, ComfyRelayError):
            self._parked.pop(poll, None)
            if not poll.answer.done():
                poll.answer.set_exception(answer)
        elif poll.answer.done():
            self._parked.pop(poll, None)
            if answer:
                asyncio.get_running_loop().create_task(self._release(answer))
        elif answer or not poll.waits:
            self._parked.pop(poll, None)
            poll.answer.set_result(answer)

    def _fail(self, polls: list[_Poll], error: Exception) -> None:
        """Polls that wait go on waiting through a failure; the next tick tries again."""
        log.warning("claimer.failed", error=repr(error))
        for poll in polls:
            if not poll.waits:
                self._parked.pop(poll, None)
                if not poll.answer.done():
                    poll.answer.set_exception(error)

    async def _leave(self, poll: _Poll) -> list[LeasedJob]:
        """Time is up. A lease that was granted this very moment is still handed over."""
        if poll.answer.done():
            return poll.answer.result()
        self._withdraw(poll)
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
