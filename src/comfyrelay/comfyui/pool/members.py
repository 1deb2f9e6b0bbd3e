"""The servers of a pool: their state, the facts that the scheduler needs, and the tasks that watch them."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.comfyui.client.interface import ComfyServer
from comfyrelay.comfyui.pool.events import ClientState, ClientStateChanged, PoolEvent, PoolReady
from comfyrelay.comfyui.pool.ticket import Bucket
from comfyrelay.errors import ComfyRelayError, Conflict, NotFound
from comfyrelay.retry import Backoff
from comfyrelay.wakeup import Wakeup

log = structlog.get_logger(__name__)

Servers = Iterable[str | ComfyServer] | Mapping[str, str | ComfyServer]
# No server can hold the models of more workflows in memory.
MAX_WARM = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberTimings:
    """`reconnect_grace_seconds` is how long a reconnected server gets no jobs, so that it can finish starting."""

    reconnect_grace_seconds: float = 2.0
    health_interval_seconds: float = 15.0
    first_backoff_seconds: float = 0.5
    last_backoff_seconds: float = 15.0


class ReportsMemory(Protocol):
    """A ComfyUI that reports the memory of its GPU and can unload models."""

    async def system_stats(self) -> dict[str, Any]: ...

    async def free(self) -> None: ...


class Member:
    """One server of a pool."""

    def __init__(
        self,
        client_id: str,
        server: ComfyServer,
        *,
        is_owned: bool,
        timings: MemberTimings,
        on_change: Callable[["Member", str | None], None],
        gpu: str | None = None,
        comfyui: ReportsMemory | None = None,
    ) -> None:
        """The pool closes servers that it owns.

        `on_change` is called with each change of state and its reason. Several servers may share a `gpu`; `comfyui`
        reports its memory.
        """
        self.id = client_id
        self.server = server
        self.is_owned = is_owned
        self.state = ClientState.OFFLINE
        self.was_checked = False
        self.gpu = gpu
        self.comfyui = comfyui
        # Buckets of the active runs.
        self.buckets: list[Bucket] = []
        # A paused server finishes its active runs, but gets no new jobs.
        self.is_paused = False
        self.completed = 0
        self.failed = 0
        # Total number of jobs started on all servers when this server got its last job.
        self.last_used = 0
        # Workflows that completed since the last connect, newest first.
        self.warm: dict[str, None] = {}
        # The warm workflows, and workflows that have failed or were stopped since, because their models may be loaded.
        self.loaded: dict[str, None] = {}
        # Approximate seconds of the last runs, by workflow.
        self.durations: dict[str, float] = {}
        # Loop time of the last failure that may also make the next run fail.
        self.failed_at = float("-inf")
        # The workflow that is kept loaded.
        self.pinned: str | None = None
        # Cache key of the active or last run, and of the last completed run if no other run has started since.
        self.cache_key: str | None = None
        self.completed_cache_key: str | None = None
        self.usable_from = 0.0
        self._timings = timings
        self._on_change = on_change
        self._was_online = False
        # Why a run considers the server lost, and the signal to check the server.
        self._loss_reason: str | None = None
        self._loss_suspected = Wakeup()
        self._check_requested = Wakeup()

    @property
    def running(self) -> int:
        """Number of active runs of this pool."""
        return len(self.buckets)

    @property
    def foreign_runs(self) -> int:
        """Number of other clients' runs on the server."""
        return max((self.server.queue_remaining or 0) - self.running, 0)

    def is_free(self, now: float) -> bool:
        """Whether the server could take a job at this loop time."""
        return self._is_usable(now) and self.running < self.server.slots

    def may_queue(self, bucket: Bucket, now: float, *, seconds: float) -> bool:
        """Whether the server could take another job to run after the active one.

        Both jobs must be known to take at most `seconds` and need the same models.
        """
        if not self._is_usable(now) or self.server.slots != 1 or self.running != 1:
            return False
        hashes = [bucket.workflow_hash, *(active.workflow_hash for active in self.buckets)]
        return all(digest in self.warm and self.durations.get(digest, seconds + 1) <= seconds for digest in hashes)

    def record_completed(self, workflow_hash: str, seconds: float) -> None:
        """Record a completed run, whose models are now loaded. The oldest workflows count as unloaded."""
        self.completed += 1
        self.record_loaded(workflow_hash)
        self.warm = _with_newest(self.warm, workflow_hash)
        # The duration of a cached run does not predict the next one.
        duration = max(seconds, self.durations.get(workflow_hash, 0.0) / 2)
        self.durations = {digest: self.durations[digest] for digest in self.warm if digest in self.durations}
        self.durations[workflow_hash] = duration

    def record_loaded(self, workflow_hash: str) -> None:
        """Record a run of this workflow, with any outcome."""
        self.loaded = _with_newest(self.loaded, workflow_hash)

    def record_unloaded(self) -> None:
        """Record that the server has no models or results in memory."""
        self.warm.clear()
        self.loaded.clear()
        self.cache_key = self.completed_cache_key = None

    def suspect(self, reason: str) -> None:
        """Take the server offline after a run could not reach it, until a check succeeds."""
        if self.state is ClientState.ONLINE:
            self._loss_reason = reason
            self._change(ClientState.OFFLINE, reason)
            self._loss_suspected.notify()

    def check_now(self) -> None:
        """End the pause before the next check."""
        self._check_requested.notify()

    async def watch(self) -> None:
        """Keep the server's state up to date until canceled."""
        loop = asyncio.get_running_loop()
        timings = self._timings
        backoff = Backoff(first_seconds=timings.first_backoff_seconds, max_seconds=timings.last_backoff_seconds)
        failures = 0
        while True:
            self._change(ClientState.CONNECTING)
            reason = await self._check()
            self.was_checked = True
            if reason is None:
                online_at = loop.time()
                self._set_online(online_at)
                reason = await self._wait_until_lost()
                # A server that soon disconnects again is also checked at increasing intervals.
                if loop.time() - online_at >= timings.last_backoff_seconds:
                    failures = 0
            self._change(ClientState.OFFLINE, reason)
            # The first reconnect is immediate.
            await self._check_requested.wait(backoff.delay(failures))
            failures += 1

    def _is_usable(self, now: float) -> bool:
        return self.state is ClientState.ONLINE and now >= self.usable_from and not self.is_paused

    def _set_online(self, now: float) -> None:
        if self._was_online:
            self.usable_from = now + self._timings.reconnect_grace_seconds
        self._was_online = True
        self.record_unloaded()
        self.pinned = None
        self._loss_reason = None
        self._change(ClientState.ONLINE)

    async def _wait_until_lost(self) -> str:
        """Wait for a reason to believe that the server is unreachable, and return it."""
        while self._loss_reason is None:
            # Earlier signals have been handled.
            self._loss_suspected = Wakeup()
            disconnect = await self._watch_connection()
            try:
                if await self._loss_suspected.wait(self._timings.health_interval_seconds):
                    break
                # Active runs notice a loss themselves.
                if not self.running and (reason := await self._check()) is not None:
                    return reason
            finally:
                disconnect.cancel()
        return self._loss_reason or "The connection was lost."

    async def _watch_connection(self) -> asyncio.Task[None]:
        disconnect = asyncio.create_task(self.server.disconnected())
        await asyncio.sleep(0)
        # A connection that never opened, for example behind a proxy, cannot be lost. Health checks cover that server.
        if not disconnect.done():
            disconnect.add_done_callback(self._handle_disconnect)
        return disconnect

    def _handle_disconnect(self, disconnect: asyncio.Task[None]) -> None:
        if not disconnect.cancelled():
            if error := disconnect.exception():
                log.error("pool.watch_failed", client_id=self.id, error=repr(error))
            self._loss_suspected.notify()

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


def _with_newest(hashes: Iterable[str], newest: str) -> dict[str, None]:
    others = [digest for digest in hashes if digest != newest]
    return dict.fromkeys([newest, *others][:MAX_WARM])


class Roster:
    """The servers of a pool by client id."""

    def __init__(
        self,
        servers: Servers,
        *,
        timings: MemberTimings,
        emit: Callable[[PoolEvent], None],
        wake: Callable[[], None],
    ) -> None:
        self.ready = asyncio.Event()
        self._timings = timings
        self._emit = emit
        self._wake = wake
        self._members: dict[str, Member] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        named = servers.items() if isinstance(servers, Mapping) else ((None, server) for server in servers)
        for name, server in named:
            self.add(server, name=name)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    @property
    def ids(self) -> Collection[str]:
        return self._members.keys()

    @property
    def members(self) -> Collection[Member]:
        return self._members.values()

    @property
    def online(self) -> list[Member]:
        return [member for member in self if member.state is ClientState.ONLINE]

    def find(self, client_id: str | None) -> Member | None:
        return self._members.get(client_id or "")

    def get(self, client_id: str) -> Member:
        """Return a server; raise `NotFound` if the pool does not have it."""
        if client_id not in self._members:
            raise NotFound(f'The pool has no server "{client_id}".')
        return self._members[client_id]

    def add(
        self,
        server: str | ComfyServer,
        *,
        name: str | None = None,
        gpu: str | None = None,
        comfyui: ReportsMemory | None = None,
    ) -> Member:
        client_id = name or (server if isinstance(server, str) else server.url)
        if client_id in self._members:
            raise Conflict(f'The pool already has a server "{client_id}".')
        client = ComfyClient(server) if isinstance(server, str) else server
        self._members[client_id] = Member(
            client_id,
            client,
            is_owned=isinstance(server, str),
            timings=self._timings,
            on_change=self._handle_change,
            gpu=gpu,
            comfyui=comfyui or (client if isinstance(client, ComfyClient) else None),
        )
        return self._members[client_id]

    def watch(self, member: Member) -> None:
        self._watches[member.id] = asyncio.create_task(member.watch())

    def remove(self, client_id: str) -> Member:
        """Remove a server, so that it gets no more jobs. Call `close_member` after its runs have ended."""
        member = self.get(client_id)
        del self._members[client_id]
        reason = "The server was removed from the pool."
        self._emit(ClientStateChanged(client_id=client_id, state=ClientState.OFFLINE, reason=reason))
        return member

    async def close_member(self, member: Member) -> None:
        watch = self._watches.pop(member.id, None)
        if watch is not None:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        if member.is_owned:
            await member.server.close()

    async def close(self) -> None:
        for member in self:
            await self.close_member(member)

    def _handle_change(self, member: Member, reason: str | None) -> None:
        self._emit(ClientStateChanged(client_id=member.id, state=member.state, reason=reason))
        if self.online and not self.ready.is_set() and all(member.was_checked for member in self):
            self.ready.set()
            self._emit(PoolReady(client_ids=tuple(member.id for member in self.online)))
        self._wake()
