"""One server of a pool: whether it can be used, and what the scheduler wants to know about it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from comfyrelay.comfyui.client.interface import ComfyServer
from comfyrelay.comfyui.pool.events import ClientState
from comfyrelay.comfyui.pool.gpu_memory import ReportsMemory
from comfyrelay.comfyui.pool.ticket import Bucket
from comfyrelay.errors import ComfyRelayError
from comfyrelay.retry import Backoff
from comfyrelay.wakeup import Wakeup

log = structlog.get_logger(__name__)

# More than fit into any memory.
MOST_WARM = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberTimings:
    """`reconnect_grace_seconds` is how long a server that came back is left alone, to finish starting."""

    reconnect_grace_seconds: float = 2.0
    health_interval_seconds: float = 15.0
    first_backoff_seconds: float = 0.5
    last_backoff_seconds: float = 15.0


class Member:
    def __init__(
        self,
        client_id: str,
        server: ComfyServer,
        *,
        owned: bool,
        timings: MemberTimings,
        on_change: Callable[["Member", str | None], None],
        gpu: str | None = None,
        comfyui: ReportsMemory | None = None,
    ) -> None:
        """`owned` servers are closed with the pool. `on_change` hears of each change of state, and why. A `gpu` may
        have several servers; `comfyui` tells of its memory."""
        self.id = client_id
        self.server = server
        self.owned = owned
        self.state = ClientState.OFFLINE
        self.tried = False
        self.gpu = gpu
        self.comfyui = comfyui
        # of what runs there
        self.buckets: list[Bucket] = []
        # it finishes what runs there, and gets nothing more
        self.is_resting = False
        self.running = 0
        self.completed = 0
        self.failed = 0
        self.last_used = 0
        # the newest first
        self.warm: dict[str, None] = {}
        # those, and what has failed or was stopped since: its models may be loaded
        self.loaded: dict[str, None] = {}
        # by workflow, about how long its last runs took here
        self.took: dict[str, float] = {}
        # when a run last failed that may take the next one with it, by the loop's clock
        self.failed_at = float("-inf")
        # the workflow that stays loaded here
        self.pinned: str | None = None
        # what is in its cache, or will be once that has run; and what has run there to its end, with nothing else since
        self.cached: str | None = None
        self.made: str | None = None
        self.usable_from = 0.0
        self._timings = timings
        self._on_change = on_change
        self._was_online = False
        # given when there may be reason to leave the online state
        self._nudge = Wakeup()
        self._doubt: str | None = None

    @property
    def foreign_runs(self) -> int:
        return max((self.server.queue_remaining or 0) - self.running, 0)

    def is_free(self, now: float) -> bool:
        """Whether it could take a job at this time of the loop."""
        is_there = self.state is ClientState.ONLINE and now >= self.usable_from
        return is_there and self.running < self.server.slots and not self.is_resting

    def may_queue(self, bucket: Bucket, now: float, *, seconds: float) -> bool:
        """Whether it could take one more job that begins when the one that runs there is over: both are known to be as
        short as this, and need the same models."""
        is_there = self.state is ClientState.ONLINE and now >= self.usable_from and not self.is_resting
        if not is_there or self.server.slots != 1 or self.running != 1:
            return False
        names = [bucket.workflow_hash, *(each.workflow_hash for each in self.buckets)]
        return all(each in self.warm and self.took.get(each, seconds + 1) <= seconds for each in names)

    def note_warm(self, workflow_hash: str, seconds: float) -> None:
        """It has just run this workflow, so its models are loaded; those of the oldest are not any more."""
        self.note_loaded(workflow_hash)
        newest = [workflow_hash, *(each for each in self.warm if each != workflow_hash)]
        self.warm = dict.fromkeys(newest[:MOST_WARM])
        # one that was in the cache says little about the next
        known = max(seconds, self.took.get(workflow_hash, 0.0) / 2)
        self.took = {each: self.took[each] for each in self.warm if each in self.took} | {workflow_hash: known}

    def note_loaded(self, workflow_hash: str) -> None:
        """It has run this workflow, to whatever end."""
        newest = [workflow_hash, *(each for each in self.loaded if each != workflow_hash)]
        self.loaded = dict.fromkeys(newest[:MOST_WARM])

    def doubt(self, reason: str) -> None:
        """A run found the server gone: it gets no more jobs until it has been seen again."""
        if self.state is ClientState.ONLINE:
            self._doubt = reason
            self._change(ClientState.OFFLINE, reason)
            self._nudge.notify()

    async def watch(self) -> None:
        """Keep the state true, until canceled."""
        loop = asyncio.get_running_loop()
        timings = self._timings
        backoff = Backoff(first_seconds=timings.first_backoff_seconds, longest_seconds=timings.last_backoff_seconds)
        failures = 0
        while True:
            self._change(ClientState.CONNECTING)
            reason = await self._check()
            self.tried = True
            if reason is None:
                online_at = loop.time()
                self._come_online(online_at)
                reason = await self._until_lost()
                # one that comes and goes is asked ever more rarely, too
                if loop.time() - online_at >= self._timings.last_backoff_seconds:
                    failures = 0
            self._change(ClientState.OFFLINE, reason)
            # the first reconnect is immediate
            await asyncio.sleep(backoff.delay(failures))
            failures += 1

    def _come_online(self, now: float) -> None:
        if self._was_online:
            self.usable_from = now + self._timings.reconnect_grace_seconds
        self._was_online = True
        self.warm.clear()
        self.loaded.clear()
        self.pinned = self.cached = self.made = None
        self._doubt = None
        self._change(ClientState.ONLINE)

    async def _until_lost(self) -> str:
        """Wait until there is reason to think that the server is gone, and return the reason."""
        while self._doubt is None:
            # what was given before this is settled
            self._nudge = Wakeup()
            lost = await self._watch_connection()
            try:
                if await self._nudge.wait(self._timings.health_interval_seconds):
                    break
                # a run that is under way notices by itself
                if not self.running and (reason := await self._check()) is not None:
                    return reason
            finally:
                lost.cancel()
        return self._doubt or "The connection was lost."

    async def _watch_connection(self) -> asyncio.Task[None]:
        lost = asyncio.create_task(self.server.disconnected())
        await asyncio.sleep(0)
        # one that is not there to begin with, behind a proxy for example, is no loss: health checks must do
        if not lost.done():
            lost.add_done_callback(self._note_loss)
        return lost

    def _note_loss(self, lost: asyncio.Task[None]) -> None:
        if not lost.cancelled():
            if error := lost.exception():
                log.error("pool.watch_failed", client_id=self.id, error=repr(error))
            self._nudge.notify()

    async def _check(self) -> str | None:
        """Why the server cannot be used; `None` when it can."""
        try:
            await self.server.check()
        except ComfyRelayError as error:
            return error.detail
        except Exception as error:
            log.exception("pool.check_failed", client_id=self.id)
            return f"The check failed unexpectedly ({type(error).__name__})."
        return None

    def _change(self, state: ClientState, reason: str | None = None) -> None:
        if state is not self.state:
            self.state = state
            self._on_change(self, reason)
