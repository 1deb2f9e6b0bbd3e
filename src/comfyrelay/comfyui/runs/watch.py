"""Wait for one run to finish. The WebSocket triggers checks; `/queue` and `/history` are the source of truth."""

import asyncio
from collections.abc import Iterator
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.outputs import OutputFile, files_of, texts_of
from comfyrelay.comfyui.runs.history import outputs_in, outputs_to_run, position_in
from comfyrelay.comfyui.runs.progress import MAX_SENT_BYTES, RunProgress
from comfyrelay.comfyui.runs.socket import EventSocket
from comfyrelay.comfyui.runs.timeouts import RunTimeouts, SilenceLimit
from comfyrelay.errors import OutputGone, RunLost, RunRemoved, RunTimedOut, ServerRefused, ServerUnreachable, TooLarge
from comfyrelay.http_client import Http
from comfyrelay.wakeup import Wakeup

# Without messages, the interval between checks grows from the minimum to the maximum.
FIRST_CHECK_SECONDS = 0.25
LAST_CHECK_SECONDS = 2.0
# The queue contains whole graphs, so it is read less often than the history of one run, and only once for all runs.
QUEUE_CHECK_SECONDS = 5.0
SHARED_QUEUE_SECONDS = 2.0
# The server sends `execution_success` before it writes the history, and `executing: null` afterwards.
HISTORY_SOON_SECONDS = 0.05
HISTORY_LATE_SECONDS = 2.0
# The history may be complete while images are still arriving over the WebSocket.
SENT_LATE_SECONDS = 30.0


class QueueReader:
    """Read the server's queue once for all runs that need their position."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self._read_at = float("-inf")
        self._last: asyncio.Task[dict[str, Any]] | None = None

    async def recent(self) -> dict[str, Any]:
        """Return the queue, at most 2 seconds old: sufficient for a position, but no proof that a run is missing."""
        now, last = asyncio.get_running_loop().time(), self._last
        has_failed = last is not None and last.done() and (last.cancelled() or last.exception() is not None)
        if self._last is None or has_failed or now - self._read_at > SHARED_QUEUE_SECONDS:
            self._read_at = now
            self._last = asyncio.create_task(self.now())
        return await asyncio.shield(self._last)

    async def now(self) -> dict[str, Any]:
        return await self._http.object("/queue")


class Watch:
    """Wait for one run. Created before the run is submitted, because messages may arrive before the response."""

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
        """`is_behind` means that another of our runs is active, so this run must wait and early checks are useless."""
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
        """Return the history entry of the run once it has finished; raise an error if the run can no longer finish."""
        self._accepted_at = self._head_since = self._loop.time()
        while True:
            if self._loop.time() >= self._next_check_at and (entry := await self._check()) is not None:
                return entry
            until = self._next_check_at
            for deadline, seconds, failure in self._limits():
                if self._loop.time() >= deadline:
                    raise RunTimedOut(f"The run {failure} ({seconds:g} s).")
                until = min(until, deadline)
            await self._changed.wait(until - self._loop.time())

    async def has_received_all(self) -> bool:
        """Wait for all images of a finished run. Returns false if the connection was lost or went silent."""
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
        self._next_check_at = self._loop.time() + self._pause
        self._pause = min(self._pause * 1.5, LAST_CHECK_SECONDS)
        return entry

    async def _read_state(self) -> dict[str, Any] | None:
        if (entry := await self._history()) is not None:
            return entry
        now = self._loop.time()
        if now < self._queue_at and not self._has_ended:
            return None
        self._queue_at = now + QUEUE_CHECK_SECONDS
        for read in (self._queue.recent, self._queue.now):
            position = position_in(await read(), self.progress.prompt_id)
            if position is not None:
                self._update_position(position)
                return None
        # The run may have ended between reading the history and the queue. If the history still lacks it, it is
        # missing.
        return await self._history() or self._handle_missing()

    async def _history(self) -> dict[str, Any] | None:
        prompt_id = self.progress.prompt_id
        found = (await self._http.object(f"/history/{prompt_id}")).get(prompt_id)
        return found if isinstance(found, dict) else None

    @property
    def was_ignored(self) -> bool:
        """Whether the connection that should report this run is still open, but has sent nothing about the run."""
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
        if self._has_ended:
            if now - self._missing_since < HISTORY_LATE_SECONDS:
                return None
            # The history was cleared, but the outcome was reported over the WebSocket.
            messages = [list(self.progress.failure)] if self.progress.failure else []
            return {"outputs": self.progress.outputs, "status": {"messages": messages}}
        if self._has_same_connection:
            raise RunRemoved("Another client removed the run from the server's queue or history.")
        raise RunLost

    @property
    def _has_ended(self) -> bool:
        return self.progress.succeeded or self.progress.failure is not None

    def _limits(self) -> Iterator[tuple[float, float, str]]:
        """Yield each deadline, its limit in seconds, and the text of the timeout error."""
        limits = self._timeouts
        if not self.progress.started:
            yield from _limit(self._accepted_at, limits.queue_seconds, "waited too long behind other runs")
            yield from _limit(self._head_since, limits.start_seconds, "did not start")
            return
        self._started_at = self._started_at or self._loop.time()
        yield from _limit(self._started_at, limits.run_seconds, "took too long")
        # Silence counts as a stall only on a connection that has already reported this run.
        if self.progress.has_messages and self._has_same_connection:
            yield from _limit(self._last_message_at, self._node_seconds, "showed no progress")


def _limit(since: float | None, seconds: float | None, failure: str) -> Iterator[tuple[float, float, str]]:
    if since is not None and seconds is not None:
        yield since + seconds, seconds, failure


async def sent_outputs(watch: Watch, graph: Graph, entry: dict[str, Any]) -> list[OutputFile]:
    """Return the images that output nodes of a successful run sent only over the WebSocket.

    The history does not list these images. Raises `OutputGone` if any image was missed, because the server sends each
    image only once.
    """
    outputs = outputs_in(entry)
    listed = {node_id for node_id, output in outputs.items() if files_of(node_id, output) or texts_of(output)}
    senders = [node_id for node_id in outputs_to_run(entry) or graph if node_id not in listed]
    classes = [str(graph.get(node_id, {}).get("class_type")).lower() for node_id in senders]
    may_send = any("websocket" in class_type for class_type in classes)
    if not may_send and not any(watch.progress.sent_by(node_id) for node_id in senders):
        return []
    if not await watch.has_received_all():
        raise OutputGone(
            "The connection to the server was lost, so images that this graph sends only over the WebSocket are "
            "missing: save them with SaveImage instead, or run it again."
        )
    if watch.progress.sent_bytes > MAX_SENT_BYTES:
        limit = MAX_SENT_BYTES // 1024**2
        raise TooLarge(f"This graph sends more than {limit} MiB of images: save them with SaveImage instead.")
    return [file for node_id in senders for file in watch.progress.sent_by(node_id)]
