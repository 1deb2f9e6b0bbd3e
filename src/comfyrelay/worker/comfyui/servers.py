"""Where this worker's jobs run: its ComfyUI servers and Comfy Cloud, which of them are fit, and their care."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Protocol

import structlog

from comfyrelay.comfyui.client.interface import ComfyServer
from comfyrelay.comfyui.client.uploads import Attachment
from comfyrelay.comfyui.cloud.client import CloudClient
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.outputs import RunResult
from comfyrelay.comfyui.pool import (
    ClientState,
    ClientStateChanged,
    JobAccepted,
    JobRetrying,
    JobStarted,
    MemberTimings,
    PoolJob,
    PoolJobEvent,
    SmartFailover,
    WorkflowPool,
)
from comfyrelay.comfyui.runs.history import Prompt
from comfyrelay.comfyui.runs.timeouts import RunTimeouts
from comfyrelay.errors import ComfyError, Fault
from comfyrelay.system.command_lines import split
from comfyrelay.worker.comfyui.recovery import MARK, ProcessEndings, RecoveringClient
from comfyrelay.worker.comfyui.restarts import Restarts
from comfyrelay.worker.lease import Lease
from comfyrelay.worker.settings import WorkerSettings
from comfyrelay.worker.state import HeldLease

log = structlog.get_logger(__name__)

# A job that waits for servers which are all gone is given back after this.
OFFLINE_SECONDS = 10.0
# The next job waits in ComfyUI's own queue for the end of one that is known to be as short as this. With longer ones,
# what lies between two counts for little, and a job that is bound to one server for more.
AHEAD_SECONDS = 10.0
# Nobody follows a run that is over so soon, and its previews cost ComfyUI's one thread a good part of that.
WITHOUT_PREVIEW_SECONDS = 3.0
# The newest are the warmest.
MOST_WARM = 50


class JobServer(ComfyServer, Protocol):
    """A ComfyUI as the jobs of this worker see it."""

    async def prompts(self) -> dict[str, Prompt]:
        """What runs or waits there, of whoever it is, by prompt id."""

    async def unfinished_prompts(self, held: HeldLease) -> list[str]:
        """The prompt ids of what still runs or waits there for a lease of an earlier process, or has ended unseen."""


class OwnProcesses(Protocol):
    """Those that this worker has started itself, by their names."""

    def why_away(self, name: str) -> str | None: ...

    def restart(self, name: str, why: str) -> None: ...


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
        # for one run: ComfyUI itself may be started without
        self._preview_method = settings.preview_method
        self._restarts = Restarts(split(settings.comfyui_restart_command or ""))
        self._wrap_server = wrap_server
        self._is_tidied = settings.tidy_comfyui
        # those that this worker has started itself
        self._kept: OwnProcesses | None = None
        timeouts = self._timeouts = RunTimeouts(
            run_seconds=settings.run_timeout_seconds, node_seconds=settings.node_timeout_seconds
        )
        self._own: dict[str, RecoveringClient] = {}
        self._cloud: dict[str, CloudClient] = {}
        if "self_hosted" in settings.providers and settings.care is None:
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
        self._job_servers: dict[str, JobServer] = {name: self._wrapped(each) for name, each in self._own.items()}
        # a script runs beside ComfyUI's queue and not in it
        ahead_seconds = AHEAD_SECONDS if settings.prefetch and wrap_server is None else 0.0
        self._members: dict[str, dict[str, ComfyServer]] = {
            "self_hosted": {**self._job_servers},
            "cloud": {**self._cloud},
        }
        self._pools: dict[str, WorkflowPool] = {
            # the control plane blocks: what it sends here again may run
            provider: WorkflowPool(
                [], timings=timings, failover=SmartFailover(cooldown_seconds=0), ahead_seconds=ahead_seconds
            )
            for provider in self._members
            if provider in settings.providers
        }
        gpus = {name: settings.gpu_of(number) for number, name in enumerate(self._own)}
        for provider, pool in self._pools.items():
            for name, server in self._members[provider].items():
                pool.add_server(server, name=name, gpu=gpus.get(name), comfyui=self._own.get(name))
        self._states: dict[str, ClientState] = {}
        # why those that are offline are so
        self._reasons: dict[str, str | None] = {}

    def _wrapped(self, client: RecoveringClient) -> JobServer:
        return self._wrap_server(client) if self._wrap_server is not None else client

    def keep(self, kept: "OwnProcesses") -> None:
        """From now on there are servers that this worker has started itself."""
        self._kept = kept

    def add(self, name: str, url: str, *, endings: ProcessEndings, gpu: str) -> None:
        """Use one more server, which this worker has started on this GPU."""
        client = RecoveringClient(url, timeouts=self._timeouts, is_tidied=self._is_tidied, endings=endings)
        self._own[name] = client
        self._job_servers[name] = self._members["self_hosted"][name] = self._wrapped(client)
        self.pool.add_server(self._job_servers[name], name=name, gpu=gpu, comfyui=client)
        self._on_change()

    async def remove(self, name: str, *, until_unused: Callable[[], Awaitable[None]] | None = None) -> None:
        """Use a server no more. What runs there is put back, or let finish where there is `until_unused`, which is
        awaited then."""
        client = self._own.get(name)
        if client is None or name not in self._job_servers:
            return
        # what is enqueued from here on must find another
        del self._job_servers[name], self._members["self_hosted"][name]
        await self.pool.remove_server(name, finish=until_unused is not None)
        if until_unused is not None:
            await until_unused()
        del self._own[name]
        self._states.pop(name, None)
        self._reasons.pop(name, None)
        await client.close()
        self._on_change()

    @property
    def pool(self) -> WorkflowPool:
        """That of the ComfyUI servers."""
        return self._pools["self_hosted"]

    @property
    def gpus(self) -> Mapping[str, str]:
        """The GPUs of the servers that may share one, by their names here."""
        clients = self.pool.stats().clients if self._own else {}
        return {name: each.gpu for name, each in clients.items() if each.gpu is not None}

    @property
    def own(self) -> Sequence[RecoveringClient]:
        return tuple(self._own.values())

    @property
    def cloud(self) -> Sequence[CloudClient]:
        return tuple(self._cloud.values())

    @property
    def named(self) -> Mapping[str, RecoveringClient]:
        """The ComfyUI servers by the names that they have here."""
        return self._own

    @property
    def cloud_slots(self) -> list[tuple[str, int]]:
        return [(name, each.slots) for name, each in self._cloud.items()]

    def why_away(self, name: str) -> str | None:
        """Why a ComfyUI server cannot be used, if that is so."""
        if self._kept is not None and (why := self._kept.why_away(name)) is not None:
            return why
        return _why_away(self._own[name].url, self._reasons[name]) if name in self._reasons else None

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
    def is_away(self) -> bool:
        """Whether there is no server, of whichever provider, that can be given a job."""
        return not any(self.online(provider) for provider in self._pools)

    @property
    def away(self) -> list[str]:
        """Of each ComfyUI server that was asked and cannot be used, a sentence that says why."""
        return [why for name in self._own if (why := self.why_away(name)) is not None]

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
        on_event: Callable[[PoolJobEvent], None],
        on_move: Callable[[], None],
        usual_seconds: float | None = None,
        cache_key: str | None = None,
    ) -> RunResult:
        """Run a job to its end; canceling this interrupts it on its server. `usual_seconds` is how long its workflow
        takes here, if that is known.

        `on_move` is called when a server has failed it, and it waits for another. Jobs with the same `cache_key` run on
        one server.
        """
        if not self._members[lease.provider]:
            raise ComfyError("This worker has no ComfyUI at the moment.", fault=Fault.INTERRUPTED)
        pool = self._pools[lease.provider]
        if lease.job.ran_out_bytes is not None:
            await pool.outgrew(graph, lease.job.ran_out_bytes)
        job = await pool.enqueue(
            graph,
            include_outputs=[lease.payload.output_node_id] if lease.payload.output_node_id else [],
            attachments=attachments,
            max_attempts=1,
            one_try_per_server=True,
            give_up_after_seconds=OFFLINE_SECONDS,
            keep_loaded=lease.job.keep_loaded,
            cache_key=cache_key,
            extra_data={**self._previews(lease, usual_seconds), **lease.payload.extra_data, MARK: lease.name}
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

    def _previews(self, lease: Lease, usual_seconds: float | None) -> dict[str, str]:
        """How ComfyUI makes previews, for one run: it may have been started without."""
        method = self._preview_method
        is_soon_over = usual_seconds is not None and usual_seconds < WITHOUT_PREVIEW_SECONDS
        if method == "auto" and is_soon_over and not lease.preview_seconds:
            method = "none"
        return {"preview_method": method} if method != "default" else {}

    async def unfinished_runs(self, held: HeldLease) -> list[tuple[str, str]]:
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

    def _is_expected(self, name: str) -> bool:
        """Whether a server that is away is one of those that this worker starts and stops: it starts, or has ended,
        of which whoever keeps it tells, or it was taken back."""
        if self._kept is None or name not in self._own:
            return False
        return name not in self._job_servers or self._kept.why_away(name) is not None

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
            is_news = state is ClientState.OFFLINE and not self._is_expected(name)
            log_line = log.warning if is_news else log.info
            log_line("worker.comfyui", server=url, state=state.value, reason=event.reason)
        if state is ClientState.OFFLINE and name in self._own and self._kept is not None:
            if self._own[name].is_sick:
                self._kept.restart(name, "The GPU was in a bad state.")
        elif state is ClientState.OFFLINE and name in self._own:
            self._restarts.restart_unless_back(self._own[name])
        self._on_change()


def _why_away(url: str, reason: str | None) -> str:
    reason = reason or "It does not answer."
    return reason if url in reason else f"ComfyUI at {url} cannot be used: {reason}"


async def _listen(
    job: PoolJob, lease: Lease, ran: Ran, on_event: Callable[[PoolJobEvent], None], on_move: Callable[[], None]
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
