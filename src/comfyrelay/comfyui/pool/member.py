"""One server of a pool: its state, and what the scheduler needs to know about it."""

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

# More workflows than fit into any memory.
MAX_WARM = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberTimings:
    """`reconnect_grace_seconds` is how long a reconnected server gets no jobs, so that it can finish starting."""

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
        """`owned` servers are closed with the pool.

        `on_change` is called with each change of state and its reason. Several servers may share a `gpu`; `comfyui`
        reports its memory.
        """
        self.id = client_id
        self.server = server
        self.owned = owned
        self.state = ClientState.OFFLINE
        self.tried = False
        self.gpu = gpu
        self.comfyui = comfyui
        # Buckets of the active runs.
        self.buckets: list[Bucket] = []
        # Active runs finish, but it gets no new jobs.
        self.is_paused = False
        self.running = 0
        self.completed = 0
        self.failed = 0
        self.last_used = 0
        # Newest first.
        self.warm: dict[str, None] = {}
        # The warm workflows, and workflows that failed or were stopped since: their models may be loaded.
        self.loaded: dict[str, None] = {}
        # Workflow -> approximate duration of its last runs here.
        self.took: dict[str, float] = {}
        # Loop time of the last failed run that may also fail the next one.
        self.failed_at = float("-inf")
        # The workflow that stays loaded here.
        self.pinned: str | None = None
        # The cached result, or the one that will be cached after the active run; and the last completed one, if nothing
        # else ran since.
        self.cached: str | None = None
        self.made: str | None = None
        self.usable_from = 0.0
        self._timings = timings
        self._on_change = on_change
        self._was_online = False
        # Set when there may be a reason to leave the online state.
        self._nudge = Wakeup()
        self._doubt: str | None = None

    @property
    def foreign_runs(self) -> int:
        return max((self.server.queue_remaining or 0) - self.running, 0)

    def is_free(self, now: float) -> bool:
        """Whether it could take a job at this loop time."""
        is_there = self.state is ClientState.ONLINE and now >= self.usable_from
        return is_there and self.running < self.server.slots and not self.is_paused

    def may_queue(self, bucket: Bucket, now: float, *, seconds: float) -> bool:
        """Whether it could take another job to run after the active one:

        both must be known to be this short and need the same models.
        """
        is_there = self.state is ClientState.ONLINE and now >= self.usable_from and not self.is_paused
        if not is_there or self.server.slots != 1 or self.running != 1:
            return False
        names = [bucket.workflow_hash, *(each.workflow_hash for each in self.buckets)]
        return all(name in self.warm and self.took.get(name, seconds + 1) <= seconds for name in names)

    def note_warm(self, workflow_hash: str, seconds: float) -> None:
        """Record a completed workflow, whose models are now loaded. The oldest ones count as unloaded."""
        self.note_loaded(workflow_hash)
        newest = [workflow_hash, *(each for each in self.warm if each != workflow_hash)]
        self.warm = dict.fromkeys(newest[:MAX_WARM])
        # A cached run says little about the next duration.
        known = max(seconds, self.took.get(workflow_hash, 0.0) / 2)
        self.took = {each: self.took[each] for each in self.warm if each in self.took} | {workflow_hash: known}

    def note_loaded(self, workflow_hash: str) -> None:
        """Record that it has run this workflow, with any outcome."""
        newest = [workflow_hash, *(each for each in self.loaded if each != workflow_hash)]
        self.loaded = dict.fromkeys(newest[:MAX_WARM])

    def suspect(self, reason: str) -> None:
        """Take it offline after a run could not reach it, until a check succeeds."""
        if self.state is ClientState.ONLINE:
            self._doubt = reason
            self._change(ClientState.OFFLINE, reason)
            self._nudge.notify()

    async def watch(self) -> None:
        """Keep the state up to date until canceled."""
        loop = asyncio.get_running_loop()
        timings = self._timings
        backoff = Backoff(first_seconds=timings.first_backoff_seconds, max_seconds=timings.last_backoff_seconds)
        failures = 0
        while True:
            self._change(ClientState.CONNECTING)
            reason = await self._check()
            self.tried = True
            if reason is None:
                online_at = loop.time()
                self._come_online(online_at)
                reason = await self._until_lost()
                # A server that comes and goes is also checked less and less often.
                if loop.time() - online_at >= self._timings.last_backoff_seconds:
                    failures = 0
            self._change(ClientState.OFFLINE, reason)
            # The first reconnect is immediate.
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
        """Wait for a reason to believe that the server is unreachable, and return it."""
        while self._doubt is None:
            # Earlier signals are settled.
            self._nudge = Wakeup()
            lost = await self._watch_connection()
            try:
                if await self._nudge.wait(self._timings.health_interval_seconds):
                    break
                # An active run notices a loss.
                if not self.running and (reason := await self._check()) is not None:
                    return reason
            finally:
                lost.cancel()
        return self._doubt or "The connection was lost."

    async def _watch_connection(self) -> asyncio.Task[None]:
        lost = asyncio.create_task(self.server.disconnected())
        await asyncio.sleep(0)
        # A connection that never opened, for example behind a proxy, is no loss: health checks must do.
        if not lost.done():
            lost.add_done_callback(self._note_loss)
        return lost

    def _note_loss(self, lost: asyncio.Task[None]) -> None:
        if not lost.cancelled():
            if error := lost.exception():
                log.error("pool.watch_failed", client_id=self.id, error=repr(error))
            self._nudge.notify()

    async def _check(self) -> str | None:
        """Return why the server cannot be used, or `None` if it can."""
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
