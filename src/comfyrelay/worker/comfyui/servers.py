"""The ComfyUI servers and cloud services of a worker: track their state, and run jobs on them."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from math import inf
from time import monotonic
from typing import Any, Protocol

import structlog

from comfyrelay.comfyui.client.interface import ComfyServer
from comfyrelay.comfyui.client.uploads import Attachment
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.outputs import RunResult
from comfyrelay.comfyui.pool import (
    ClientState,
    ClientStateChanged,
    JobAccepted,
    JobCompleted,
    JobFailed,
    JobNoted,
    JobRetrying,
    JobStarted,
    MemberTimings,
    PoolJob,
    PoolJobEvent,
    WorkflowPool,
)
from comfyrelay.comfyui.processes.supervisor import Supervisor
from comfyrelay.comfyui.runs.history import Prompt
from comfyrelay.comfyui.runs.timeouts import RunTimeouts
from comfyrelay.errors import ComfyError, Fault, OutOfMemory, ServerUnreachable
from comfyrelay.system.command_lines import split
from comfyrelay.worker.comfyui.out_of_memory import OutOfMemoryFailover
from comfyrelay.worker.comfyui.recovery import MARK, VIA, RecoveringApiClient, RecoveringClient, SupervisedProcess
from comfyrelay.worker.comfyui.restarts import Restarts
from comfyrelay.worker.lease import Lease
from comfyrelay.worker.settings import WorkerSettings
from comfyrelay.worker.state import HeldLease

log = structlog.get_logger(__name__)

# A job that waits while all servers are unreachable is requeued after this time.
OFFLINE_SECONDS = 10.0
# The next job waits in ComfyUI's own queue behind a job that is expected to be this short. Behind longer jobs, the gap
# between two jobs matters little, and binding a job to one server costs more.
AHEAD_SECONDS = 10.0
# No user watches a run this short, and previews would slow it down.
WITHOUT_PREVIEW_SECONDS = 3.0
MAX_WARM = 50
# A server that the control plane has blocked is restarted at most once within this time.
RESTART_AGAIN_SECONDS = 3600.0
# How long a ComfyUI may take to respond after a run that reached its limit.
RESPONSE_SECONDS = 5.0


class JobServer(ComfyServer, Protocol):
    """A server that runs jobs: a ComfyUI, or a wrapper around it."""

    async def prompts(self) -> dict[str, Prompt]:
        """Return the running and waiting prompts of all clients by prompt id."""

    async def unfinished_prompts(self, held: HeldLease) -> list[str]:
        """Return the ids of waiting, running and finished prompts on the server for a lease of an earlier process."""

    async def log_lines(self) -> list[str]:
        """Return the last lines of the server's log, oldest first."""


# Wraps a ComfyUI client for jobs that ComfyUI cannot run.
WrapServer = Callable[[JobServer], JobServer]


@dataclass(kw_only=True)
class RunHistory:
    """The runs of a job and its result, recorded for the cleanup."""

    # The server and prompt id of each attempt.
    runs: list[tuple[str, str]] = field(default_factory=list)
    # The name of the last server.
    client_id: str | None = None
    server: ComfyServer | None = None
    result: RunResult | None = None

    @property
    def prompt_ids(self) -> list[str]:
        return [prompt_id for _, prompt_id in self.runs]


class Servers:
    """One pool per provider. A job that fails through a server's fault is tried once on each other online server before
    the failure is reported to the control plane."""

    def __init__(
        self, settings: WorkerSettings, *, on_change: Callable[[], None], wrap_server: WrapServer | None = None
    ) -> None:
        self._on_change = on_change
        self._max_concurrency = settings.max_concurrency
        self._preview_method = settings.preview_method
        self._restarts = Restarts(split(settings.comfyui_restart_command or ""), variables=settings.comfyui_environment)
        self._wrap_server = wrap_server
        self._deletes_history = settings.tidy_comfyui
        # Set if the worker starts ComfyUI itself.
        self.supervisor: Supervisor | None = None
        timeouts = self._timeouts = RunTimeouts(
            run_seconds=settings.run_timeout_seconds, node_seconds=settings.node_timeout_seconds
        )
        self.own: dict[str, RecoveringClient] = {}
        self.cloud: dict[str, RecoveringApiClient] = {}
        if "self_hosted" in settings.providers and settings.managed is None:
            # Users see these names in job logs, so they must not contain the addresses, which may have a password.
            self.own = {
                f"comfyui-{number}": RecoveringClient(url, timeouts=timeouts, deletes_history=settings.tidy_comfyui)
                for number, url in enumerate(settings.comfyui_base_url, start=1)
            }
        if "cloud" in settings.providers:
            assert settings.comfy_cloud_api_key is not None
            self.cloud["comfy-cloud"] = RecoveringApiClient(
                settings.comfy_cloud_api_key,
                url=settings.comfy_cloud_base_url,
                slots=settings.comfy_cloud_concurrency,
                timeouts=timeouts,
                uploads=settings.data_dir / "comfy-cloud.json",
            )
        timings = MemberTimings(health_interval_seconds=10.0, last_backoff_seconds=5.0)
        # The servers that run jobs.
        self._job_servers: dict[str, JobServer] = {name: self._wrap(client) for name, client in self.own.items()}
        # A script does not wait in ComfyUI's queue.
        ahead_seconds = AHEAD_SECONDS if settings.prefetch and wrap_server is None else 0.0
        self._members: dict[str, Mapping[str, ComfyServer]] = {"self_hosted": self._job_servers, "cloud": self.cloud}
        self._pools: dict[str, WorkflowPool] = {
            provider: WorkflowPool(
                [],
                timings=timings,
                failover=OutOfMemoryFailover(self._restart_out_of_memory),
                ahead_seconds=ahead_seconds,
            )
            for provider in self._members
            if provider in settings.providers
        }
        gpus = {name: settings.gpu_of(number) for number, name in enumerate(self.own)}
        for provider, pool in self._pools.items():
            for name, server in self._members[provider].items():
                pool.add_server(server, name=name, gpu=gpus.get(name), comfyui=self.own.get(name))
        # By server: when it was last restarted because the control plane had blocked it.
        self._restarted_at: dict[str, float] = {}
        self._states: dict[str, ClientState] = {}
        # The reasons why servers are offline.
        self._reasons: dict[str, str | None] = {}
        # By server: the workflows that it has completed since its last out-of-memory error.
        self._completed: defaultdict[str, set[str]] = defaultdict(set)
        self._restarting: set[asyncio.Task[None]] = set()

    def _wrap(self, client: RecoveringClient) -> JobServer:
        return self._wrap_server(client) if self._wrap_server is not None else client

    def add(self, name: str, url: str, *, process: SupervisedProcess, gpu: str) -> None:
        """Add a managed server on this GPU."""
        client = RecoveringClient(url, timeouts=self._timeouts, deletes_history=self._deletes_history, process=process)
        self.own[name] = client
        self._job_servers[name] = self._wrap(client)
        self.pool.add_server(self._job_servers[name], name=name, gpu=gpu, comfyui=client)
        self._on_change()

    async def remove(self, name: str, *, until_unused: Callable[[], Awaitable[None]] | None = None) -> None:
        """Remove a server. Its jobs are requeued. With `until_unused`, its jobs are finished, and this function is
        awaited."""
        client = self.own.get(name)
        if client is None or name not in self._job_servers:
            return
        # New jobs must not choose this server.
        del self._job_servers[name]
        await self.pool.remove_server(name, finish=until_unused is not None)
        if until_unused is not None:
            await until_unused()
        del self.own[name]
        self._states.pop(name, None)
        self._reasons.pop(name, None)
        await client.close()
        self._on_change()

    @property
    def pool(self) -> WorkflowPool:
        """The pool of ComfyUI servers."""
        return self._pools["self_hosted"]

    @property
    def gpus(self) -> Mapping[str, str]:
        """GPUs by server name, of servers that may share a GPU."""
        clients = self.pool.stats().clients if self.own else {}
        return {name: client.gpu for name, client in clients.items() if client.gpu is not None}

    def unavailable_reason(self, name: str) -> str | None:
        """Return why a ComfyUI server cannot be used, or `None` if it can."""
        if self._states.get(name) is ClientState.ONLINE:
            # The server responds, although the supervisor may not have noticed yet.
            return None
        if (why := self._process_reason(name)) is not None:
            return why
        if name not in self._reasons:
            return None
        url, reason = self.own[name].url, self._reasons[name] or "It does not respond."
        return reason if url in reason else f"ComfyUI at {url} cannot be used: {reason}"

    @property
    def at_once(self) -> int:
        """Number of jobs that can run at once if all servers are online."""
        return self._max_concurrency or sum(
            server.slots for servers in self._members.values() for server in servers.values()
        )

    async def open(self) -> None:
        for pool in self._pools.values():
            pool.on(ClientStateChanged, self._changed)
            pool.on(JobCompleted, self._on_completed)
            pool.on(JobFailed, self._on_failed)
            await pool.open()

    async def close(self) -> None:
        await self._restarts.close()
        for task in self._restarting:
            task.cancel()
        await asyncio.gather(*self._restarting, return_exceptions=True)
        for pool in self._pools.values():
            await pool.close()
        for servers in self._members.values():
            for server in servers.values():
                await server.close()

    def online(self, provider: str) -> list[str]:
        """Return the names of the servers that accept jobs."""
        pool = self._pools.get(provider)
        if pool is None:
            return []
        clients = pool.stats().clients
        return [name for name, client in clients.items() if client.state is ClientState.ONLINE]

    @property
    def is_unreachable(self) -> bool:
        """Whether no server of any provider accepts jobs."""
        return not any(self.online(provider) for provider in self._pools)

    @property
    def unavailable_reasons(self) -> list[str]:
        """The reasons why ComfyUI servers are unavailable."""
        return [why for name in self.own if (why := self.unavailable_reason(name)) is not None]

    def slots(self, provider: str) -> int:
        """Return how many jobs this provider can run at once now."""
        members = self._members[provider]
        return sum(members[name].slots for name in self.online(provider))

    def warm_hashes(self) -> list[str]:
        """Return the workflows whose models are probably loaded."""
        stats = [client for pool in self._pools.values() for client in pool.stats().clients.values()]
        # The newest workflow of each server comes first.
        ranked = zip_longest(*(stat.warm_hashes for stat in stats))
        return list(dict.fromkeys(digest for row in ranked for digest in row if digest is not None))[:MAX_WARM]

    def forget_uploads(self) -> None:
        """Forget uploads because files were deleted from ComfyUI's input folders."""
        for client in self.own.values():
            client.forget_uploads()

    async def node_definitions(self, provider: str) -> dict[str, Any]:
        """Return the node definitions of all reachable servers. A job may run on any of them."""
        definitions: dict[str, Any] = {}
        for name in self.online(provider):
            with suppress(ComfyError):
                definitions |= await self._members[provider][name].object_info()
        return definitions

    async def run(
        self,
        lease: Lease,
        graph: Graph,
        attachments: Iterable[Attachment],
        *,
        history: RunHistory,
        on_event: Callable[[PoolJobEvent], None],
        on_move: Callable[[], None],
        usual_seconds: float | None = None,
        cache_key: str | None = None,
    ) -> RunResult:
        """Run a job until it ends. Cancelling this call interrupts the run on its server.

        `usual_seconds` is the usual duration of the workflow on this worker, if known. `on_move` is called when the job
        has failed on one server and waits for another. Jobs with the same `cache_key` run on one server.
        """
        if not self._members[lease.provider]:
            raise ComfyError("This worker has no ComfyUI at the moment.", fault=Fault.INTERRUPTED)
        pool = self._pools[lease.provider]
        if lease.job.ran_out_bytes is not None:
            await pool.record_too_small(graph, lease.job.ran_out_bytes)
        job = await pool.enqueue(
            graph,
            include_outputs=[lease.payload.output_node_id] if lease.payload.output_node_id else [],
            attachments=attachments,
            max_attempts=1,
            one_attempt_per_server=True,
            give_up_after_seconds=OFFLINE_SECONDS,
            keep_loaded=lease.job.keep_loaded,
            cache_key=cache_key,
            extra_data={
                **(self._previews(lease, usual_seconds) if lease.provider == "self_hosted" else {}),
                **lease.payload.extra_data,
                MARK: lease.name,
                **({VIA: lease.job.via} if lease.provider == "cloud" else {}),
            },
        )
        listening = asyncio.create_task(_listen(job, lease, history, on_event, on_move))
        try:
            history.result = await job
            return history.result
        finally:
            # Interrupt the run if this call was cancelled. Otherwise, the run has ended.
            await asyncio.shield(asyncio.ensure_future(job.cancel(wait=False)))
            await asyncio.gather(listening, return_exceptions=True)
            history.client_id, history.server = job.client_id, job.server

    def _previews(self, lease: Lease, usual_seconds: float | None) -> dict[str, str]:
        """Return the preview method for one run. ComfyUI may have been started without previews."""
        method = self._preview_method
        is_soon_over = usual_seconds is not None and usual_seconds < WITHOUT_PREVIEW_SECONDS
        if method == "auto" and is_soon_over and not lease.preview_seconds:
            method = "none"
        return {"preview_method": method} if method != "default" else {}

    async def unfinished_runs(self, held: HeldLease) -> list[tuple[str, str]]:
        """Return the running, waiting and ended runs of an earlier process's lease, as (server, prompt id)."""
        runs: list[tuple[str, str]] = []
        servers = self.cloud if held.lease.provider == "cloud" else self._job_servers
        for name, server in servers.items():
            with suppress(ComfyError):
                runs += [(name, prompt_id) for prompt_id in await server.unfinished_prompts(held)]
        return runs

    def resume(self, held: HeldLease) -> None:
        """Let the next runs of a lease continue the cloud runs of an earlier process."""
        for name, client in self.cloud.items():
            client.resume(held, [prompt_id for server, prompt_id in held.runs if server == name])

    async def require_response(self, name: str | None) -> None:
        """Raise `ServerUnreachable` if a ComfyUI does not respond. It then gets no jobs until it does."""
        client = self.own.get(name) if name is not None else None
        if name is None or client is None:
            return
        try:
            async with asyncio.timeout(RESPONSE_SECONDS):
                await client.check_health()
        except (ServerUnreachable, TimeoutError):
            error = ServerUnreachable(f"ComfyUI at {client.url} stopped responding during the run.")
            self.pool.recheck_server(name, error.detail)
            raise error from None
        except ComfyError:
            # It responds, even if it is still busy with the run.
            return

    async def stop(self, runs: Iterable[tuple[str, str]]) -> None:
        """Interrupt runs of an earlier process, so that none of them continues in parallel with a new run."""
        for client_id, prompt_id in runs:
            server = self.own.get(client_id) or self.cloud.get(client_id)
            if server is not None:
                with suppress(ComfyError):
                    await server.cancel(prompt_id)

    def _on_completed(self, event: JobCompleted) -> None:
        if event.client_id in self.own:
            self._completed[event.client_id].add(event.workflow_hash)

    def _on_failed(self, event: JobFailed) -> None:
        """Restart a server that ran out of memory for a workflow that it has completed before."""
        name, error = event.client_id or "", event.error
        if isinstance(error, OutOfMemory) and error.ran_alone and event.workflow_hash in self._completed.get(name, ()):
            self._restart_out_of_memory(name, error)

    def _restart_out_of_memory(self, name: str, error: OutOfMemory) -> None:
        """Restart a managed server, unless other programs hold the memory."""
        client = self.own.get(name)
        self._completed.pop(name, None)
        if client is None or not client.is_managed or client.is_restarting or error.others_bytes:
            return
        log.warning("worker.restarting_comfyui", server=client.url, why=error.detail)
        task = asyncio.create_task(client.restart_out_of_memory())
        self._restarting.add(task)
        task.add_done_callback(self._restarting.discard)
        client.is_restarting = True
        # No job starts on the server before the process exits.
        self.pool.recheck_server(name, "ComfyUI ran out of memory and is being restarted.")

    def restart_blocked(self, name: str) -> None:
        """Restart a managed server that the control plane has blocked because other workers may have enough memory. Not
        repeated soon: if the server runs out of memory again, a restart does not help."""
        now = monotonic()
        if now >= self._restarted_at.get(name, -inf) + RESTART_AGAIN_SECONDS:
            self._restarted_at[name] = now
            self._restart_out_of_memory(name, OutOfMemory("Other workers may have enough memory."))

    def restarts(self) -> dict[str, int]:
        """Return the number of observed restarts of each ComfyUI."""
        found = {}
        for name, client in self.own.items():
            process = self.supervisor.find(name) if self.supervisor is not None else None
            # A new connection may reach another process. The first start of a managed process also counts.
            found[name] = process.starts if process is not None else max(client.connection - 1, 0)
        return found

    def _is_expected(self, name: str) -> bool:
        """Whether the server is managed and starting, stopping or removed, which the supervisor reports."""
        if self.supervisor is None or name not in self.own:
            return False
        return name not in self._job_servers or self._process_reason(name) is not None

    def _process_reason(self, name: str) -> str | None:
        process = self.supervisor.find(name) if self.supervisor is not None else None
        return process.unavailable_reason if process is not None else None

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
            url = self.own[name].url if name in self.own else name
            is_unexpected = state is ClientState.OFFLINE and not self._is_expected(name)
            log_line = log.warning if is_unexpected else log.info
            log_line("worker.comfyui", server=url, state=state.value, reason=event.reason)
        if state is ClientState.OFFLINE and name in self.own and self.supervisor is not None:
            if self.own[name].has_gpu_fault:
                self.supervisor.restart(name, "The GPU was in a bad state.")
        elif state is ClientState.OFFLINE and name in self.own:
            self._restarts.restart_unless_recovered(self.own[name])
        self._on_change()


async def _listen(
    job: PoolJob,
    lease: Lease,
    history: RunHistory,
    on_event: Callable[[PoolJobEvent], None],
    on_move: Callable[[], None],
) -> None:
    async for event in job.events():
        # A fast server reports the start before it responds to the submission. For a run that was stopped during its
        # submission, there is only a `Noted` event.
        if isinstance(event, JobAccepted | JobStarted | JobNoted) and event.client_id:
            run = (event.client_id, event.prompt_id)
            if run not in history.runs:
                history.runs.append(run)
        elif isinstance(event, JobRetrying):
            log.info("worker.job_moved", dispatch_id=lease.dispatch_id, why=event.error.detail)
            on_move()
        on_event(event)
