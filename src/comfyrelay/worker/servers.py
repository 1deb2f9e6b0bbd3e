"""Where this worker's jobs run: its ComfyUI servers and Comfy Cloud, which of them are fit, and their care."""

import asyncio
import os
import shlex
from asyncio.subprocess import DEVNULL
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from comfyrelay.comfy.client import ComfyClient
from comfyrelay.comfy.cloud import CloudClient
from comfyrelay.comfy.graph import Graph
from comfyrelay.comfy.outputs import RunResult
from comfyrelay.comfy.server import ComfyServer
from comfyrelay.comfy.timeouts import RunTimeouts
from comfyrelay.comfy.uploads import Attachment
from comfyrelay.errors import ComfyError, DeviceFault, Fault, OutOfMemory, RunInterrupted
from comfyrelay.pool import (
    ClientState,
    ClientStateChanged,
    Job,
    JobAccepted,
    JobEvent,
    MemberTimings,
    SmartFailover,
    WorkflowPool,
)
from comfyrelay.worker.lease import Lease
from comfyrelay.worker.settings import WorkerSettings

__all__ = ["ClientMaker", "Ran", "Servers"]

log = structlog.get_logger(__name__)

ClientMaker = Callable[[str, RunTimeouts], ComfyClient]

# A job whose servers are all gone is given back after this.
OFFLINE_SECONDS = 10.0
RESTART_SECONDS = 180.0
LONGEST_RESTART_PAUSE_SECONDS = 300.0


@dataclass(kw_only=True)
class Ran:
    """Where a job ran, and what came of it. It is filled while the job runs, for whoever has to clean up after it."""

    # server and prompt id of each try
    runs: list[tuple[str, str]] = field(default_factory=list)
    client_ids: list[str] = field(default_factory=list)
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
        self._restart_command = shlex.split(settings.comfyui_restart_command or "")
        timeouts = RunTimeouts(run_seconds=settings.run_timeout_seconds, node_seconds=settings.node_timeout_seconds)
        self._own: dict[str, ComfyClient] = {}
        self._cloud: dict[str, CloudClient] = {}
        if "self_hosted" in settings.providers:
            make = make_client or _comfy_client
            self._own = {url: make(url, timeouts) for url in settings.comfyui_base_url}
        if "cloud" in settings.providers:
            assert settings.comfy_cloud_api_key is not None
            self._cloud["comfy-cloud"] = CloudClient(
                settings.comfy_cloud_api_key,
                url=settings.comfy_cloud_base_url,
                slots=settings.comfy_cloud_concurrency,
                timeouts=timeouts,
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
        # servers that must be restarted before they are used again, and those that are being restarted
        self._sick: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_closing = False

    @property
    def own(self) -> Sequence[ComfyClient]:
        return tuple(self._own.values())

    @property
    def cloud(self) -> Sequence[CloudClient]:
        return tuple(self._cloud.values())

    @property
    def total_slots(self) -> int:
        return sum(server.slots for servers in self._members.values() for server in servers.values())

    async def open(self) -> None:
        for pool in self._pools.values():
            pool.on(ClientStateChanged, self._changed)
            await pool.open()

    async def close(self) -> None:
        self._is_closing = True
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
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
        return [name for name, each in states.items() if each.state is ClientState.ONLINE and name not in self._sick]

    def slots(self, provider: str) -> int:
        """How many jobs can run there at once now."""
        members = self._members[provider]
        return sum(members[name].slots for name in self.online(provider))

    def warm_hashes(self) -> list[str]:
        """The workflows whose models are most likely loaded."""
        stats = [each for pool in self._pools.values() for each in pool.stats().clients.values()]
        return sorted({digest for each in stats for digest in each.warm_hashes})

    def server(self, provider: str) -> ComfyServer | None:
        """One that answers, to be asked what it knows."""
        found = self.online(provider)
        return self._members[provider][found[0]] if found else None

    async def run(
        self,
        lease: Lease,
        graph: Graph,
        attachments: Iterable[Attachment],
        *,
        ran: Ran,
        on_event: Callable[[JobEvent], None],
    ) -> RunResult:
        """Run a job to its end; cancelling this interrupts it on its server."""
        attachments = tuple(attachments)
        while True:
            try:
                ran.result = await self._run_once(lease, graph, attachments, ran, on_event)
            except ComfyError as error:
                await self._care(lease.provider, ran, error)
                others = set(self.online(lease.provider)) - set(ran.client_ids)
                if error.fault is not Fault.WORKER or not others:
                    raise
                log.info("worker.job_moves", dispatch_id=lease.dispatch_id, why=error.detail)
            else:
                return ran.result

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
        excluded = {*ran.client_ids, *self._sick}
        if excluded.issuperset(self._members[provider]):
            raise RunInterrupted("No ComfyUI of this worker is fit.")
        job = await self._pools[provider].enqueue(
            graph,
            include_outputs=[lease.output_node_id] if lease.output_node_id else [],
            attachments=attachments,
            exclude_clients=excluded,
            max_attempts=1,
            extra_data=lease.extra_data,
        )
        listening = asyncio.create_task(_listen(job, ran, on_event))
        giving_up = asyncio.create_task(self._without_servers(provider, job))
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

    async def _without_servers(self, provider: str, job: Job) -> None:
        """Return when the job has long waited for a server that it may use."""
        missing = 0.0
        while missing < OFFLINE_SECONDS:
            await asyncio.sleep(0.5)
            is_fine = job.client_id is not None or self._could_run(provider, job.workflow_hash)
            missing = 0.0 if is_fine else missing + 0.5

    def _could_run(self, provider: str, workflow_hash: str) -> bool:
        states = self._pools[provider].stats().clients
        return any(workflow_hash not in states[name].blocked_hashes for name in self.online(provider))

    async def _care(self, provider: str, ran: Ran, error: ComfyError) -> None:
        """What a failure asks for, before anybody else is told: the next job must not fail the same way."""
        client = self._own.get(ran.client_ids[-1]) if ran.client_ids and provider == "self_hosted" else None
        if client is None:
            return
        if isinstance(error, OutOfMemory):
            with suppress(ComfyError):
                await client.free()
        elif isinstance(error, DeviceFault):
            self._declare_sick(client)

    def _changed(self, event: ClientStateChanged) -> None:
        if event.state is not ClientState.CONNECTING:
            log.info("worker.comfyui", server=event.client_id, state=event.state.value, reason=event.reason)
        if event.state is ClientState.OFFLINE and event.client_id in self._own and self._restart_command:
            self._look_after(self._own[event.client_id])
        self._on_change()

    def _declare_sick(self, client: ComfyClient) -> None:
        name = next(name for name, each in self._own.items() if each is client)
        log.warning("worker.comfyui_sick", server=name)
        self._sick.add(name)
        self._on_change()
        self._look_after(client)

    def _look_after(self, client: ComfyClient) -> None:
        name = next(name for name, each in self._own.items() if each is client)
        if self._is_closing or (name in self._tasks and not self._tasks[name].done()):
            return
        self._tasks[name] = asyncio.create_task(self._heal(name, client))

    async def _heal(self, name: str, client: ComfyClient) -> None:
        """Until a server is fit again: restart it, or wait until somebody else has."""
        try:
            if self._restart_command:
                await self._restart(name, client)
            else:
                # one in a bad state still answers: only a new process is well
                await client.disconnected()
                await _until_fit(client)
        finally:
            self._sick.discard(name)
        self._on_change()

    async def _restart(self, name: str, client: ComfyClient) -> None:
        pause = 5.0
        while True:
            log.warning("worker.restarting_comfyui", server=name)
            process = await asyncio.create_subprocess_exec(
                *self._restart_command,
                env={**os.environ, "COMFYUI_URL": client.url},
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=DEVNULL,
            )
            try:
                async with asyncio.timeout(RESTART_SECONDS):
                    if await process.wait() == 0:
                        await _until_fit(client)
                        return
                log.error("worker.restart_failed", server=name, exit_code=process.returncode)
            except TimeoutError:
                if process.returncode is None:
                    process.kill()
                log.error("worker.restart_failed", server=name, reason="it took too long")
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_RESTART_PAUSE_SECONDS)


def _comfy_client(url: str, timeouts: RunTimeouts) -> ComfyClient:
    return ComfyClient(url, timeouts=timeouts, forget_history=True)


async def _first(job: Job, giving_up: asyncio.Task[None]) -> RunResult:
    ending = asyncio.ensure_future(_result(job))
    try:
        await asyncio.wait({ending, giving_up}, return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            return ending.result()
        raise RunInterrupted("No ComfyUI of this worker can be reached.")
    finally:
        ending.cancel()


async def _result(job: Job) -> RunResult:
    return await job


async def _listen(job: Job, ran: Ran, on_event: Callable[[JobEvent], None]) -> None:
    async for event in job.events():
        if isinstance(event, JobAccepted) and event.client_id and (event.client_id, event.prompt_id) not in ran.runs:
            ran.runs.append((event.client_id, event.prompt_id))
        on_event(event)


async def _until_fit(client: ComfyClient) -> None:
    while True:
        with suppress(ComfyError):
            await client.check()
            return
        await asyncio.sleep(1.0)
