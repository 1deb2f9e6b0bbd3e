"""Watching one run to its end: the socket says when to look, `/queue` and `/history` say what is true."""

import asyncio
from collections.abc import Iterator
from typing import Any

from comfyrelay.comfyui.runs.history import position_in
from comfyrelay.comfyui.runs.progress import RunProgress
from comfyrelay.comfyui.runs.queue import QueueReader
from comfyrelay.comfyui.runs.silence_limits import Patience
from comfyrelay.comfyui.runs.socket import EventSocket
from comfyrelay.comfyui.runs.timeouts import RunTimeouts
from comfyrelay.errors import RunLost, RunRemoved, RunTimedOut, ServerRefused, ServerUnreachable
from comfyrelay.http_client import Http
from comfyrelay.wakeup import Wakeup

# Without word from the socket, checks become rarer from the first to the last.
FIRST_CHECK_SECONDS = 0.25
LAST_CHECK_SECONDS = 2.0
# The queue carries whole graphs, so it is read less often than the history of one run.
QUEUE_CHECK_SECONDS = 5.0
# `execution_success` is sent before the history is written, `executing: null` after it.
HISTORY_SOON_SECONDS = 0.05
HISTORY_LATE_SECONDS = 2.0
# The history may know of the end while images are still on their way over the socket.
SENT_LATE_SECONDS = 30.0


class Watch:
    """Waits for one accepted run; made before it is submitted, because events may come before the answer."""

    def __init__(
        self,
        *,
        http: Http,
        socket: EventSocket,
        queue: QueueReader,
        progress: RunProgress,
        timeouts: RunTimeouts,
        loading_factor: int,
        is_behind: bool = False,
    ) -> None:
        """`is_behind` is whether another run of ours is there: then this one has to wait, and it is no use to ask."""
        self.progress = progress
        self._http = http
        self._socket = socket
        self._queue = queue
        self._timeouts = timeouts
        self._node_seconds = timeouts.node_seconds and timeouts.node_seconds * loading_factor
        # the connection that will tell of it; none, when there is none now
        self._connection = socket.connection if socket.is_up else -1
        self._loop = asyncio.get_running_loop()
        self._changed = Wakeup()
        now = self._loop.time()
        self._accepted_at = self._last_message_at = now
        self._head_since: float | None = now
        self._started_at: float | None = None
        self._pause = LAST_CHECK_SECONDS if is_behind and socket.is_up else FIRST_CHECK_SECONDS
        self._next_check_at = now + self._pause
        self._queue_at = now
        self._patience = Patience(timeouts)
        self._missing_since: float | None = None

    def take(self, kind: str, data: dict[str, Any]) -> None:
        self.progress.take(kind, data)
        self.received()

    def received(self) -> None:
        """There was word from the socket."""
        self._last_message_at = self._loop.time()
        if not (self.progress.over or self.progress.succeeded):
            self._next_check_at = self._last_message_at + LAST_CHECK_SECONDS
            return
        self._pause = HISTORY_SOON_SECONDS
        self._next_check_at = self._last_message_at + (0.0 if self.progress.over else HISTORY_SOON_SECONDS)
        self._changed.notify()

    def check_now(self) -> None:
        """The socket was lost: see what the server itself says."""
        self._next_check_at = self._loop.time()
        self._changed.notify()

    async def entry(self) -> dict[str, Any]:
        """Return the history entry of the run once it is over; raise when that can no longer come."""
        self._accepted_at = self._head_since = self._loop.time()
        while True:
            if self._loop.time() >= self._next_check_at and (entry := await self._check()) is not None:
                return entry
            until = self._next_check_at
            for end, seconds, what in self._limits():
                if self._loop.time() >= end:
                    raise RunTimedOut(f"The run {what} ({seconds:g} s).")
                until = min(until, end)
            await self._changed.wait(until - self._loop.time())

    async def has_received_all(self) -> bool:
        """Wait for what a run that is over has sent; false when the socket was lost or has gone silent meanwhile."""
        while not (self.progress.succeeded or self.progress.over):
            left = self._last_message_at + SENT_LATE_SECONDS - self._loop.time()
            if not self._has_same_connection or left <= 0:
                return False
            await self._changed.wait(left)
        return self._has_same_connection

    async def _check(self) -> dict[str, Any] | None:
        try:
            entry = await self._read_state()
        except (ServerUnreachable, ServerRefused) as error:
            self._patience.failed(error)
            entry = None
        else:
            self._patience.answered()
        self._schedule_check()
        return entry

    async def _read_state(self) -> dict[str, Any] | None:
        if (entry := await self._history()) is not None:
            return entry
        now = self._loop.time()
        if now < self._queue_at and not self._ended:
            return None
        self._queue_at = now + QUEUE_CHECK_SECONDS
        for read in (self._queue.recent, self._queue.now):
            position = position_in(await read(), self.progress.prompt_id)
            if position is not None:
                self._in_queue(position)
                return None
        # it may have ended between the two reads; in neither, in this order, it is gone
        return await self._history() or self._gone()

    async def _history(self) -> dict[str, Any] | None:
        prompt_id = self.progress.prompt_id
        found = (await self._http.object(f"/history/{prompt_id}")).get(prompt_id)
        return found if isinstance(found, dict) else None

    @property
    def was_ignored(self) -> bool:
        """Whether the socket that should have told of this run is still there, and said nothing."""
        return not self.progress.has_messages and self._has_same_connection

    @property
    def _has_same_connection(self) -> bool:
        return self._socket.is_up and self._socket.connection == self._connection

    def _in_queue(self, position: int) -> None:
        if position < 0:
            self.progress.start()
            return
        self.progress.is_behind(position)
        # a run that moves up the queue is looked for more often than one that runs
        self._queue_at = self._loop.time()
        if position > 0:
            self._head_since = None
        elif self._head_since is None:
            self._head_since = self._loop.time()

    def _gone(self) -> dict[str, Any] | None:
        now = self._loop.time()
        self._missing_since = self._missing_since or now
        if self._ended:
            if now - self._missing_since < HISTORY_LATE_SECONDS:
                return None
            # somebody cleared the history, but the socket told how it ended
            return self._entry_from_socket()
        if self._has_same_connection:
            raise RunRemoved("The run was taken out of the server's queue or history by somebody else.")
        raise RunLost

    def _entry_from_socket(self) -> dict[str, Any]:
        messages = [list(self.progress.failure)] if self.progress.failure else []
        return {"outputs": self.progress.outputs, "status": {"messages": messages}}

    @property
    def _ended(self) -> bool:
        return self.progress.succeeded or self.progress.failure is not None

    def _schedule_check(self) -> None:
        self._next_check_at = self._loop.time() + self._pause
        self._pause = min(self._pause * 1.5, LAST_CHECK_SECONDS)

    def _limits(self) -> Iterator[tuple[float, float, str]]:
        """When the run's time is up, the limit in seconds, and what to say then."""
        limits = self._timeouts
        if not self.progress.started:
            yield from _limit(self._accepted_at, limits.queue_seconds, "waited too long behind other runs")
            yield from _limit(self._head_since, limits.start_seconds, "did not start")
            return
        self._started_at = self._started_at or self._loop.time()
        yield from _limit(self._started_at, limits.run_seconds, "took too long")
        if self._is_silence_meaningful:
            yield from _limit(self._last_message_at, self._node_seconds, "showed no progress")

    @property
    def _is_silence_meaningful(self) -> bool:
        """Whether silence means anything: only on a connection that has spoken of this run before."""
        return self.progress.has_messages and self._has_same_connection


def _limit(since: float | None, seconds: float | None, what: str) -> Iterator[tuple[float, float, str]]:
    if since is not None and seconds is not None:
        yield since + seconds, seconds, what
