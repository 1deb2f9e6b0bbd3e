"""Wait for one run to finish. The WebSocket says when to check; `/queue` and `/history` say what is true."""

import asyncio
from collections.abc import Iterator
from typing import Any

from comfyrelay.comfyui.runs.history import position_in
from comfyrelay.comfyui.runs.progress import RunProgress
from comfyrelay.comfyui.runs.queue import QueueReader
from comfyrelay.comfyui.runs.silence_limits import SilenceLimit
from comfyrelay.comfyui.runs.socket import EventSocket
from comfyrelay.comfyui.runs.timeouts import RunTimeouts
from comfyrelay.errors import RunLost, RunRemoved, RunTimedOut, ServerRefused, ServerUnreachable
from comfyrelay.http_client import Http
from comfyrelay.wakeup import Wakeup

# Without messages, the interval between checks grows from the first to the last.
FIRST_CHECK_SECONDS = 0.25
LAST_CHECK_SECONDS = 2.0
# The queue contains whole graphs, so it is read less often than the history of one run.
QUEUE_CHECK_SECONDS = 5.0
# The server sends `execution_success` before it writes the history, and `executing: null` after.
HISTORY_SOON_SECONDS = 0.05
HISTORY_LATE_SECONDS = 2.0
# The history may be complete while images are still arriving over the WebSocket.
SENT_LATE_SECONDS = 30.0


class Watch:
    """Wait for one run. Created before it is submitted, because events may arrive before the response."""

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
        """`is_behind` means that another of our runs is active, so this one must wait and early checks are useless."""
        self.progress = progress
        self._http = http
        self._socket = socket
        self._queue = queue
        self._timeouts = timeouts
        self._node_seconds = timeouts.node_seconds and timeouts.node_seconds * loading_factor
        # The connection that will report this run; -1 if there is none.
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
        self._silence = SilenceLimit(timeouts)
        self._missing_since: float | None = None

    def handle_message(self, kind: str, data: dict[str, Any]) -> None:
        self.progress.handle_message(kind, data)
        self.record_message()

    def record_message(self) -> None:
        """Record that a message arrived."""
        self._last_message_at = self._loop.time()
        if not (self.progress.over or self.progress.succeeded):
            self._next_check_at = self._last_message_at + LAST_CHECK_SECONDS
            return
        self._pause = HISTORY_SOON_SECONDS
        self._next_check_at = self._last_message_at + (0.0 if self.progress.over else HISTORY_SOON_SECONDS)
        self._changed.notify()

    def check_now(self) -> None:
        """Check the server's state, because the WebSocket was lost."""
        self._next_check_at = self._loop.time()
        self._changed.notify()

    async def wait_for_entry(self) -> dict[str, Any]:
        """Return the history entry of the run once it has finished; raise if the run cannot finish any more."""
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
        """Wait for all images of a finished run. Return false if the connection was lost or went silent."""
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
            self._silence.record_failure(error)
            entry = None
        else:
            self._silence.record_response()
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
                self._update_position(position)
                return None
        # The run may have ended between the two reads. If it is in neither now, it is missing.
        return await self._history() or self._handle_missing()

    async def _history(self) -> dict[str, Any] | None:
        prompt_id = self.progress.prompt_id
        found = (await self._http.object(f"/history/{prompt_id}")).get(prompt_id)
        return found if isinstance(found, dict) else None

    @property
    def was_ignored(self) -> bool:
        """Whether the connection that should report this run is still open but sent nothing about it."""
        return not self.progress.has_messages and self._has_same_connection

    @property
    def _has_same_connection(self) -> bool:
        return self._socket.is_up and self._socket.connection == self._connection

    def _update_position(self, position: int) -> None:
        if position < 0:
            self.progress.start()
            return
        self.progress.set_position(position)
        # A pending run moves up, so its position is read more often.
        self._queue_at = self._loop.time()
        if position > 0:
            self._head_since = None
        elif self._head_since is None:
            self._head_since = self._loop.time()

    def _handle_missing(self) -> dict[str, Any] | None:
        now = self._loop.time()
        self._missing_since = self._missing_since or now
        if self._ended:
            if now - self._missing_since < HISTORY_LATE_SECONDS:
                return None
            # The history was cleared, but the WebSocket reported the outcome.
            return self._entry_from_socket()
        if self._has_same_connection:
            raise RunRemoved("Another client removed the run from the server's queue or history.")
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
        """Yield each deadline, its limit in seconds, and the text of the timeout error."""
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
        """Silence is significant only on a connection that has reported this run before."""
        return self.progress.has_messages and self._has_same_connection


def _limit(since: float | None, seconds: float | None, what: str) -> Iterator[tuple[float, float, str]]:
    if since is not None and seconds is not None:
        yield since + seconds, seconds, what
