"""Where this worker's jobs run: its ComfyUI servers and Comfy Cloud, which of them are fit, and their care."""

import asyncio
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Protocol

import structlog

from comfyrelay.comfy.cloud.client import CloudClient
from comfyrelay.comfy.graphs.graph import Graph
from comfyrelay.comfy.outputs import RunResult
from comfyrelay.comfy.runs.history import Prompt
from comfyrelay.comfy.runs.timeouts import RunTimeouts
from comfyrelay.comfy.server import ComfyServer
from comfyrelay.comfy.uploads import Attachment
from comfyrelay.errors import ComfyError
from comfyrelay.pool import (
    ClientState,
    ClientStateChanged,
    Job,
    JobAccepted,
    JobEvent,
    JobRetrying,
    JobStarted,
    MemberTimings,
    SmartFailover,
    WorkflowPool,
)
from comfyrelay.worker.comfyui.recovering import MARK, RecoveringClient
from comfyrelay.worker.comfyui.restarts import Restarts
from comfyrelay.worker.lease import Lease
from comfyrelay.worker.settings import WorkerSettings
from comfyrelay.worker.state import Held

log = structlog.get_logger(__name__)

# A job that waits for servers which are all gone is given back after this.
OFFLINE_SECONDS = 10.0
# The newest are the warmest.
MOST_WARM = 50


class JobServer(ComfyServer, Protocol):
    """A ComfyUI as the jobs of this worker see it."""

    async def prompts(self) -> dict[str, Prompt]:
        """What runs or waits there, of whoever it is, by prompt id."""

    async def unfinished_prompts(self, held: Held) -> list[str]:
        """The prompt ids of what still runs or waits there for a lease of an earlier process, or has ended unseen."""


# What stands before a ComfyUI, for jobs that ComfyUI itself cannot run.
WrapServer = Callable[[JobServer], JobServer]


@dataclass(kw_only=True)
class Ran:
    """Where a job ran, and what came of it. It is filled while the job runs, for whoever has to clean up after it."""

    # server and prompt id of each try
    runs: list[tuple[str, str]] = field(default_factory=list)
    # where it was tried last, and its name here
    client_id: str | None = None
    server: ComfyServer | None = None
    result: RunResult | None = None

    @property
    def prompt_ids(self) -> list[str]:
        return [prompt_id for _, prompt_id in self.runs]


class Servers:
    """One pool for each provider. A job that fails through the fault of one server is tried once on each other one that
    is online, before the control plane hears of it."""

    def __init__(
        self, settings: WorkerSettings, *, on_change: Callable[[], None], wrap_server: WrapServer | None = None
    ) -> None:
        self._on_change = on_change
        self._max_concurrency = settings.max_concurrency
        self._restarts = Restarts(shlex.split(settings.comfyui_restart_command or ""))
        timeouts = RunTimeouts(run_seconds=settings.run_timeout_seconds, node_seconds=settings.node_timeout_seconds)
        self._own: dict[str, RecoveringClient] = {}
        self._cloud: dict[str, CloudClient] = {}
        if "self_hosted" in settings.providers:
            # not by their addresses: those may hold a password, and users read the logs of their jobs
            self._own = {
                f"comfyui-{number}": RecoveringClient(url, timeouts=timeouts, is_tidied=settings.tidy_comfyui)
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
        # those that jobs run on
        self._job_servers: dict[str, JobServer] = {
            name: wrap_server(client) if wrap_server is not None else client for name, client in self._own.items()
        }
        members: dict[str, dict[str, ComfyServer]] = {"self_hosted": {**self._job_servers}, "cloud": {**self._cloud}}
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

    def find(self, client_id: str | None) -> RecoveringClient | None:
        """One of the ComfyUI servers, by its name here."""
        return self._own.get(client_id or "")

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
        return [name for name, each in states.items() if each.state is ClientState.ONLINE]

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
        stats = [client for pool in self._pools.values() for client in pool.stats().clients.values()]
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
        job = await self._pools[lease.provider].enqueue(
            graph,
            include_outputs=[lease.payload.output_node_id] if lease.payload.output_node_id else [],
            attachments=attachments,
            max_attempts=1,
            one_try_per_server=True,
            give_up_after_seconds=OFFLINE_SECONDS,
            extra_data={**lease.payload.extra_data, MARK: lease.name}
            if lease.provider == "self_hosted"
            else lease.payload.extra_data,
        )
        listening = asyncio.create_task(_listen(job, lease, ran, on_event, on_move))
        try:
            ran.result = await job
            return ran.result
        finally:
            # interrupts it on its server, when this is canceled; else it has ended
            await asyncio.shield(asyncio.ensure_future(job.cancel(wait=False)))
            await asyncio.gather(listening, return_exceptions=True)
            ran.client_id, ran.server = job.client_id, job.server

    async def unfinished_runs(self, held: Held) -> list[tuple[str, str]]:
        """What runs, waits or has ended unseen for a lease of an earlier process, by server and prompt id."""
        found: list[tuple[str, str]] = []
        for name, server in self._job_servers.items():
            with suppress(ComfyError):
                found += [(name, prompt_id) for prompt_id in await server.unfinished_prompts(held)]
        return found

    async def stop(self, runs: Iterable[tuple[str, str]]) -> None:
        """Interrupt runs that an earlier process began, so that none goes on beside a new one."""
        for client_id, prompt_id in runs:
            server = self._own.get(client_id) or self._cloud.get(client_id)
            if server is not None:
                with suppress(ComfyError):
                    await server.cancel(prompt_id)

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
            log_line = log.warning if state is ClientState.OFFLINE else log.info
            log_line("worker.comfyui", server=url, state=state.value, reason=event.reason)
        if state is ClientState.OFFLINE and name in self._own:
            self._restarts.restart_unless_back(self._own[name])
        self._on_change()


def _why_away(url: str, reason: str | None) -> str:
    reason = reason or "It does not answer."
    return reason if url in reason else f"ComfyUI at {url} cannot be used: {reason}"


async def _listen(
    job: Job, lease: Lease, ran: Ran, on_event: Callable[[JobEvent], None], on_move: Callable[[], None]
) -> None:
    async for event in job.events():
        # a server that is quick tells of the start before it has answered
        if isinstance(event, JobAccepted | JobStarted) and event.client_id:
            run = (event.client_id, event.prompt_id)
            if run not in ran.runs:
                ran.runs.append(run)
        elif isinstance(event, JobRetrying):
            log.info("worker.job_moves", dispatch_id=lease.dispatch_id, why=event.error.detail)
            on_move()
        on_event(event)
