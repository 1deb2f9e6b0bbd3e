"""Where this worker's jobs run: its ComfyUI servers and Comfy Cloud, which of them are fit, and their care."""

import asyncio
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import structlog

from comfyrelay.comfy.cloud.client import CloudClient
from comfyrelay.comfy.graphs.graph import Graph
from comfyrelay.comfy.outputs import RunResult
from comfyrelay.comfy.runs.timeouts import RunTimeouts
from comfyrelay.comfy.server import ComfyServer
from comfyrelay.comfy.uploads import Attachment
from comfyrelay.errors import ComfyError, Fault, RunInterrupted
from comfyrelay.pool import (
    ClientState,
    ClientStateChanged,
    Job,
    JobAccepted,
    JobEvent,
    JobRetrying,
    JobStarted,
    JobStatus,
    MemberTimings,
    SmartFailover,
    WorkflowPool,
)
from comfyrelay.worker.lease import Lease
from comfyrelay.worker.recovering import MARK, RecoveringClient
from comfyrelay.worker.restarts import Restarts
from comfyrelay.worker.settings import WorkerSettings
from comfyrelay.worker.state import Held

__all__ = ["ClientMaker", "Ran", "Servers"]

log = structlog.get_logger(__name__)

ClientMaker = Callable[[str, RunTimeouts], RecoveringClient]

# A job that waits for servers which are all gone is given back after this.
OFFLINE_SECONDS = 10.0
# The newest are the warmest.
MOST_WARM = 50


class _NoServer(RunInterrupted):
    """None of them can take the job."""


@dataclass(kw_only=True)
class Ran:
    """Where a job ran, and what came of it. It is filled while the job runs, for whoever has to clean up after it."""

    # server and prompt id of each try
    runs: list[tuple[str, str]] = field(default_factory=list)
    # servers that it was tried on
    client_ids: list[str] = field(default_factory=list)
    # why the first of them could not do it
    failure: ComfyError | None = None
    server: ComfyServer | None = None
    result: RunResult | None = None

    @property
    def prompt_ids(self) -> list[str]:
        return [prompt_id for _, prompt_id in self.runs]


class Servers:
    """One pool for each provider. A job that fails through the fault of one server is tried on another one here, before
    the control plane hears of it."""

    def __init__(
        self, settings: WorkerSettings, *, on_change: Callable[[], None], make_client: ClientMaker | None = None
    ) -> None:
        self._on_change = on_change
        self._max_concurrency = settings.max_concurrency
        self._restarts = Restarts(shlex.split(settings.comfyui_restart_command or ""), on_change=on_change)
        timeouts = RunTimeouts(run_seconds=settings.run_timeout_seconds, node_seconds=settings.node_timeout_seconds)
        self._own: dict[str, RecoveringClient] = {}
        self._cloud: dict[str, CloudClient] = {}
        if "self_hosted" in settings.providers:
            make = make_client or _comfy_client
            # not by their addresses: those may hold a password, and users read the logs of their jobs
            self._own = {
                f"comfyui-{number}": make(url, timeouts)
                for number, url in enumerate(settings.comfyui_base_url, start=1)
            }
        if "cloud" in settings.providers:
            assert settings.comfy_cloud_api_key is not None
            self._cloud["comfy-cloud"] = CloudClient(
                settings.comfy_cloud_api_key,
                url=settings.comfy_cloud_base_url,
                slots=settings.comfy_cloud_concurrency,
                timeouts=timeouts,
                uploads=settings.data_dir / "comfy-cloud.json",
            )
        timings = MemberTimings(health_interval_seconds=10.0, last_backoff_seconds=5.0)
        members: dict[str, dict[str, ComfyServer]] = {"self_hosted": {**self._own}, "cloud": {**self._cloud}}
        self._pools = {
            # the control plane blocks: what it sends here again may run
            provider: WorkflowPool(servers, timings=timings, failover=SmartFailover(cooldown_seconds=0))
            for provider, servers in members.items()
            if servers
        }
        self._members = members
        self._states: dict[str, ClientState] = {}
        # why those that are offline are so
        self._reasons: dict[str, str | None] = {}

    @property
    def own(self) -> Sequence[RecoveringClient]:
        return tuple(self._own.values())

    @property
    def cloud(self) -> Sequence[CloudClient]:
        return tuple(self._cloud.values())

    def find(self, client_id: str) -> RecoveringClient | None:
        """One of the ComfyUI servers, by its name here."""
        return self._own.get(client_id)

    @property
    def at_once(self) -> int:
        """How many jobs may run here at once, if all servers are there."""
        return self._max_concurrency or sum(
            server.slots for servers in self._members.values() for server in servers.values()
        )

    async def open(self) -> None:
        for pool in self._pools.values():
            pool.on(ClientStateChanged, self._changed)
            await pool.open()

    async def close(self) -> None:
        await self._restarts.close()
        for pool in self._pools.values():
            await pool.close()
        for servers in self._members.values():
            for server in servers.values():
                await server.close()

    def online(self, provider: str) -> list[str]:
        """The servers that can be given a job."""
        pool = self._pools.get(provider)
        if pool is None:
            return []
        states = pool.stats().clients
        unfit = self._restarts.under_way
        return [name for name, each in states.items() if each.state is ClientState.ONLINE and name not in unfit]

    @property
    def away(self) -> list[str]:
        """Of each ComfyUI server that was asked and cannot be used, a sentence that says why."""
        return [_why_away(self._own[name].url, reason) for name, reason in self._reasons.items() if name in self._own]

    def slots(self, provider: str) -> int:
        """How many jobs can run there at once now."""
        members = self._members[provider]
        return sum(members[name].slots for name in self.online(provider))

    def warm_hashes(self) -> list[str]:
        """The workflows whose models are most likely loaded."""
        stats = [each for pool in self._pools.values() for each in pool.stats().clients.values()]
        # the newest of each server first
        ranked = zip_longest(*(each.warm_hashes for each in stats))
        return list(dict.fromkeys(digest for row in ranked for digest in row if digest is not None))[:MOST_WARM]

    def forget_uploads(self) -> None:
        """Files were removed from ComfyUI's input folders."""
        for client in self._own.values():
            client.forget_uploads()

    async def definitions(self, provider: str) -> dict[str, Any]:
        """The nodes of all servers that answer; a job may come to any of them."""
        found: dict[str, Any] = {}
        for name in self.online(provider):
            with suppress(ComfyError):
                found |= await self._members[provider][name].object_info()
        return found

    async def run(
        self,
        lease: Lease,
        graph: Graph,
        attachments: Iterable[Attachment],
        *,
        ran: Ran,
        on_event: Callable[[JobEvent], None],
        on_move: Callable[[], None],
    ) -> RunResult:
        """Run a job to its end; cancelling this interrupts it on its server.

        `on_move` is called when a server has failed it, and it waits for another.
        """
        attachments = tuple(attachments)
        while True:
            try:
                ran.result = await self._run_once(lease, graph, attachments, ran, on_event)
            except _NoServer as error:
                # what happened before counts: this worker is not fit for the job
                raise ran.failure or error from None
            except ComfyError as error:
                others = set(self.online(lease.provider)) - set(ran.client_ids)
                if error.fault is not Fault.WORKER or not others:
                    raise
                ran.failure = ran.failure or error
                log.info("worker.job_moves", dispatch_id=lease.dispatch_id, why=error.detail)
                on_move()
            else:
                return ran.result

    async def left_of(self, held: Held) -> list[tuple[str, str]]:
        """What still runs or waits for a lease of an earlier process, by server and prompt id."""
        found: list[tuple[str, str]] = []
        for name, server in self._own.items():
            with suppress(ComfyError):
                found += [(name, prompt_id) for prompt_id in await server.left_of(held)]
        return found

    async def stop(self, runs: Iterable[tuple[str, str]]) -> None:
        """Interrupt runs that an earlier process began, so that none goes on beside a new one."""
        for client_id, prompt_id in runs:
            server = self._own.get(client_id) or self._cloud.get(client_id)
            if server is not None:
                with suppress(ComfyError):
                    await server.cancel(prompt_id)

    async def _run_once(
        self,
        lease: Lease,
        graph: Graph,
        attachments: Sequence[Attachment],
        ran: Ran,
        on_event: Callable[[JobEvent], None],
    ) -> RunResult:
        provider = lease.provider
        excluded = {*ran.client_ids, *self._restarts.under_way}
        if excluded.issuperset(self._members[provider]):
            raise _NoServer("No ComfyUI of this worker is fit.")
        job = await self._pools[provider].enqueue(
            graph,
            include_outputs=[lease.output_node_id] if lease.output_node_id else [],
            attachments=attachments,
            exclude_clients=excluded,
            max_attempts=1,
            extra_data={**lease.extra_data, MARK: lease.name} if provider == "self_hosted" else lease.extra_data,
        )
        listening = asyncio.create_task(_listen(job, ran, on_event))
        giving_up = asyncio.create_task(self._without_servers(provider, job, ran, excluded))
        try:
            return await _first(job, giving_up)
        finally:
            giving_up.cancel()
            # interrupts it on its server, when this is cancelled; else it has ended
            await asyncio.shield(asyncio.ensure_future(job.cancel()))
            await asyncio.gather(listening, return_exceptions=True)
            if job.client_id is not None:
                ran.client_ids.append(job.client_id)
                ran.server = job.server

    async def _without_servers(self, provider: str, job: Job, ran: Ran, excluded: Collection[str]) -> None:
        """Return when the job has long waited, and no server is there that it may run on."""
        missing = 0.0
        while missing < OFFLINE_SECONDS:
            await asyncio.sleep(0.5)
            # the pool itself tries another one when nodes or models are missing
            fit = set(self.online(provider)).difference(excluded, ran.client_ids)
            missing = 0.0 if fit or job.status is JobStatus.RUNNING else missing + 0.5

    def _changed(self, event: ClientStateChanged) -> None:
        name, state = event.client_id, event.state
        if state is ClientState.CONNECTING:
            return
        if state is ClientState.OFFLINE:
            self._reasons[name] = event.reason
        else:
            self._reasons.pop(name, None)
        if self._states.get(name) is not state:
            self._states[name] = state
            url = self._own[name].url if name in self._own else name
            tell = log.warning if state is ClientState.OFFLINE else log.info
            tell("worker.comfyui", server=url, state=state.value, reason=event.reason)
        if state is ClientState.OFFLINE and name in self._own:
            self._restarts.look_after(name, self._own[name])
        self._on_change()


def _why_away(url: str, reason: str | None) -> str:
    told = reason or "It does not answer."
    return told if url in told else f"ComfyUI at {url} cannot be used: {told}"


def _comfy_client(url: str, timeouts: RunTimeouts) -> RecoveringClient:
    return RecoveringClient(url, timeouts=timeouts)


async def _first(job: Job, giving_up: asyncio.Task[None]) -> RunResult:
    ending = asyncio.ensure_future(job)
    try:
        await asyncio.wait({ending, giving_up}, return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            return ending.result()
        raise _NoServer("No ComfyUI of this worker can be reached.")
    finally:
        ending.cancel()


async def _listen(job: Job, ran: Ran, on_event: Callable[[JobEvent], None]) -> None:
    async for event in job.events():
        # a server that is quick tells of the start before it has answered
        if isinstance(event, JobAccepted | JobStarted) and event.client_id:
            run = (event.client_id, event.prompt_id)
            if run not in ran.runs:
                ran.runs.append(run)
        elif isinstance(event, JobRetrying) and event.client_id:
            ran.client_ids.append(event.client_id)
            ran.failure = ran.failure or event.error
        on_event(event)
