"""GPU sharing: watch the GPUs of managed ComfyUI processes, and change the number of processes on each GPU."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import structlog

from comfyrelay.comfyui.pool import (
    ClientState,
    ClientStats,
    JobCompleted,
    JobFailed,
    JobRetrying,
    JobStarted,
    WorkflowPool,
)
from comfyrelay.comfyui.pool.gpu_memory import CONTEXT_BYTES, Memory
from comfyrelay.comfyui.processes.gpus import GpuInventory, GpuProcesses, query_nvidia_gpus
from comfyrelay.domain.packing.decide import decide
from comfyrelay.domain.packing.resources import copies_in_machine, copies_that_fit
from comfyrelay.domain.packing.state import (
    CompletedRun,
    GpuObservation,
    Packing,
    PackingChange,
    PackingDecision,
    PackingLimits,
)
from comfyrelay.errors import ComfyRelayError, OutOfMemory
from comfyrelay.system.spare_capacity import SpareCores, free_memory_bytes
from comfyrelay.worker.comfyui.managed import ManagedServers
from comfyrelay.worker.comfyui.packing_results import PackingResults, SavedResult

log = structlog.get_logger(__name__)

CHECK_SECONDS = 1.0
# Workflows that have not run within this time are ignored.
RECENT_SECONDS = 600.0
POLL_SECONDS = 0.1
# Weight of one sample in the average load of a GPU.
LOAD_WEIGHT = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuStatus:
    """The last decision about a GPU: the number of processes, and the reason."""

    processes: int
    reason: str
    # The reason of the last decision that added or removed a process.
    changed: str | None = None


@dataclass(kw_only=True)
class _GpuState:
    """Observations of one GPU since the last decision, and pending changes."""

    packing: Packing = field(default_factory=Packing)
    completed: list[CompletedRun] = field(default_factory=list)
    out_of_memory: set[str] = field(default_factory=set)
    start_failure: str | None = None
    # When each workflow last started or completed on this GPU.
    recent: dict[str, float] = field(default_factory=dict)
    load: float | None = None
    # The names of processes that have responded at least once.
    known: set[str] = field(default_factory=set)
    # Tasks that add a process remove themselves when they end.
    adding: set[asyncio.Task[None]] = field(default_factory=set)
    removing: asyncio.Task[None] | None = None
    status: GpuStatus | None = None

    def record_load(self, load: float | None) -> None:
        """Average the load, because drivers report the current load, which varies within a job."""
        if self.load is None or load is None:
            self.load = load
        else:
            self.load += LOAD_WEIGHT * (load - self.load)


class Packer:
    """Adds and removes ComfyUI processes. `keep` runs until cancelled; `statuses` are the last decisions by GPU."""

    def __init__(
        self,
        gpus: GpuInventory,
        pool: WorkflowPool,
        *,
        limits: PackingLimits | None = None,
        max_processes: int | None = None,
        more_waiting: Callable[[], int] = lambda: 0,
        spare_cores: Callable[[int], float | None] | None = None,
        loads: Callable[[], Mapping[str, float]] | None = None,
        free_ram: Callable[[], int] = free_memory_bytes,
        process_ram: Callable[[str], int | None] = lambda _gpu: None,
        results: PackingResults | None = None,
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        """`max_processes` limits the processes per GPU below the general limits.

        `more_waiting` returns the number of jobs known to wait for this pool elsewhere. `spare_cores` returns the
        number of free processor cores, given the number of our busy processes; `loads` the load of each GPU. `free_ram`
        returns the free bytes of the machine, `process_ram` the bytes of the largest process on a GPU, if known.
        `results` contains results from before a restart; new results are saved to it.
        """
        self._gpus = gpus
        self._pool = pool
        limits = limits or PackingLimits()
        if max_processes is not None:
            limits = replace(limits, max_processes=min(limits.max_processes, max_processes))
        self._limits = limits
        self._more_waiting = more_waiting
        self._spare_cores = spare_cores or SpareCores()
        self._loads = loads or gpu_loads
        self._free_ram = free_ram
        self._process_ram = process_ram
        self._results = results
        self._check_seconds = check_seconds
        self._states: defaultdict[str, _GpuState] = defaultdict(_GpuState)
        self._unsubscribe = [
            pool.on(JobStarted, self._on_started),
            pool.on(JobCompleted, self._on_completed),
            pool.on(JobRetrying, self._on_error),
            pool.on(JobFailed, self._on_error),
        ]

    @property
    def statuses(self) -> dict[str, GpuStatus]:
        return {key: state.status for key, state in self._states.items() if state.status is not None}

    def reason(self, gpu: str) -> str | None:
        """Return the reason for the number of processes on a GPU, if there was a decision."""
        status = self.statuses.get(gpu)
        return status.reason if status is not None else None

    def restore(self) -> None:
        """Load the results from before a restart, and start as many processes as in the newest result.

        These start together with the first process, and are removed again if there is no work.
        """
        if self._results is None:
            return
        found = [(gpu, saved) for gpu in self._gpus.gpus() if (saved := self._results_of(gpu))]
        newest = {gpu.key: list(saved.values())[-1] for gpu, saved in found}
        # The first process on each GPU has not yet allocated its memory.
        started = sum(len(gpu.processes) * (newest[gpu.key].machine_bytes or 0) for gpu, _ in found)
        free_ram = self._free_ram() - started
        for gpu, saved in found:
            state = self._states[gpu.key]
            state.known.update(self._servers_on(gpu))
            state.packing = replace(state.packing, remembered={name: one.result for name, one in saved.items()})
            for name, one in saved.items():
                self._pool.memory.record_need(name, one.need_bytes, is_exact=False)
            number = self._count_restorable(gpu, newest[gpu.key], free_ram)
            free_ram -= number * (newest[gpu.key].machine_bytes or 0)
            log.info("worker.packing_restored", gpu=gpu.name or gpu.key, started=number, results=len(saved))
            self._start_more(gpu, state, number)

    def _results_of(self, gpu: GpuProcesses) -> Mapping[str, SavedResult]:
        return self._results.of(gpu.name or gpu.key, gpu.memory_bytes) if self._results is not None else {}

    def _count_restorable(self, gpu: GpuProcesses, saved: SavedResult, free_ram: int) -> int:
        """Return how many processes to start before any measurement; 0 if the GPU's memory is unknown."""
        if gpu.memory_bytes is None:
            return 0
        count = len(gpu.processes)
        starting = count + sum(len(state.adding) for state in self._states.values())
        bounds = [
            min(saved.processes, self._limits.max_processes) - count,
            copies_that_fit(gpu.memory_bytes, saved.need_bytes + CONTEXT_BYTES, self._limits) - count,
        ]
        if saved.machine_bytes is not None:
            bounds.append(copies_in_machine(free_ram, saved.machine_bytes, self._limits))
        if (cores := self._spare_cores(starting)) is not None:
            bounds.append(int(cores))
        return max(min(bounds), 0)

    def _save_results(self, gpu: GpuProcesses, packing: Packing, before: Packing, machine_bytes: int | None) -> None:
        if self._results is None:
            return
        new = [
            SavedResult(
                gpu=gpu.name or gpu.key,
                gpu_bytes=gpu.memory_bytes,
                comfyui=self._results.comfyui,
                workflow=workflow,
                processes=result.processes,
                seconds=result.seconds,
                is_limit=result.is_limit,
                need_bytes=need,
                machine_bytes=machine_bytes,
            )
            for workflow, result in packing.results.items()
            if before.results.get(workflow) != result and (need := self._pool.memory.known_need(workflow)) is not None
        ]
        if new:
            self._results.save(*new)

    def ran_out(self, gpu: str) -> frozenset[str]:
        """Return the workflows that ran out of memory on this GPU next to others since the last decision."""
        return frozenset(self._states[gpu].out_of_memory)

    async def keep(self) -> None:
        try:
            while True:
                try:
                    await self.check_gpus()
                except Exception:
                    log.exception("worker.packing_failed")
                await asyncio.sleep(self._check_seconds)
        finally:
            for unsubscribe in self._unsubscribe:
                unsubscribe()
            changes = [task for state in self._states.values() for task in (*state.adding, state.removing) if task]
            for task in changes:
                task.cancel()
            await asyncio.gather(*changes, return_exceptions=True)

    async def check_gpus(self) -> None:
        """Observe each GPU once and start the decided changes."""
        gpus = self._gpus.gpus()
        loads, ram = await asyncio.to_thread(lambda: (self._loads(), self._measure_ram([gpu.key for gpu in gpus])))
        checks = [self._check_gpu(gpu, loads.get(gpu.key), ram.get(gpu.key)) for gpu in gpus]
        for error in await asyncio.gather(*checks, return_exceptions=True):
            if error is not None:
                log.error("worker.packing_failed", exc_info=error)

    def _measure_ram(self, keys: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return the machine's free bytes, and the bytes that another process would need, by GPU."""
        needed = {key: size for key in keys if (size := self._process_ram(key)) is not None}
        free = self._free_ram() if needed else 0
        return {key: (free, size) for key, size in needed.items()}

    async def _check_gpu(self, gpu: GpuProcesses, load: float | None, ram: tuple[int, int] | None) -> None:
        state = self._states[gpu.key]
        measured = await asyncio.gather(*(self._pool.measure_memory(name) for name in self._servers_on(gpu)))
        self._pool.memory.update_foreign(gpu.key, measured)
        known = [memory for memory in measured if memory is not None]
        state.record_load(load)
        if state.removing is not None:
            return
        # Read the processes again, because the calls above took time.
        gpu = next((current for current in self._gpus.gpus() if current.key == gpu.key), gpu)
        servers = self._servers_on(gpu)
        observation = self._observe(gpu, state, servers, memory=known[-1] if known else None)
        if ram is not None:
            free, copy = ram
            # Processes that are starting on other GPUs have not yet allocated their memory.
            elsewhere = sum(len(other.adding) for other in self._states.values() if other is not state)
            observation = replace(
                observation, machine_free_bytes=max(free - elsewhere * copy, 0), machine_copy_bytes=copy
            )
        packing, decision = decide(state.packing, observation, self._limits)
        self._act(gpu, state, {name: servers[name] for name in observation.processes}, decision)
        # Failed starts do not count.
        before, state.packing = state.packing, packing
        self._save_results(gpu, packing, before, observation.machine_copy_bytes)

    def _servers_on(self, gpu: GpuProcesses) -> dict[str, ClientStats]:
        """Return the running and starting servers on a GPU: with a pinned workflow first, then the oldest."""
        by_url = {
            client.url: (name, client) for name, client in self._pool.stats().clients.items() if client.gpu == gpu.key
        }
        servers = [by_url[url] for url in gpu.processes if url in by_url]
        return dict(sorted(servers, key=lambda server: server[1].pinned is None))

    def _observe(
        self, gpu: GpuProcesses, state: _GpuState, servers: Mapping[str, ClientStats], *, memory: Memory | None
    ) -> GpuObservation:
        now = asyncio.get_running_loop().time()
        stats = self._pool.stats()
        clients = stats.clients.values()
        state.recent = {workflow: at for workflow, at in state.recent.items() if now - at < RECENT_SECONDS}
        online = [name for name, client in servers.items() if client.state is ClientState.ONLINE]
        # A new process is counted after the task that adds it has ended.
        up = [name for name in online if name in state.known or not state.adding]
        state.known = (state.known & servers.keys()) | set(up)
        busy = sum(bool(client.running) for client in clients)
        starting = sum(len(other.adding) for other in self._states.values())
        # The memory of other programs is subtracted once, not for each process.
        total = memory.total - self._pool.memory.others(gpu.key, processes=len(up)) if memory is not None else None
        observation = GpuObservation(
            now=now,
            processes=tuple(up),
            pinned=sum(servers[name].pinned is not None for name in up),
            restarting=frozenset(state.known.difference(up)),
            # A requested process may already be in the pool.
            starting=max(len(state.adding), len(servers.keys() - state.known)),
            # Jobs that are queued on a server behind another job count as waiting, not as running.
            waiting=stats.queued + sum(max(client.running - 1, 0) for client in clients) + self._more_waiting(),
            running=sum(bool(client.running) for client in clients if client.gpu == gpu.key),
            workflows=frozenset(state.recent),
            memory_bytes=total,
            free_bytes=memory.free if memory is not None else None,
            copy_bytes=self._copy_bytes(gpu, state, len(up), total) if total is not None else None,
            spare_cores=self._spare_cores(busy + starting),
            load=state.load,
            completed=tuple(state.completed),
            out_of_memory=frozenset(state.out_of_memory),
            start_failure=state.start_failure,
        )
        state.completed.clear()
        state.out_of_memory.clear()
        state.start_failure = None
        return observation

    def _copy_bytes(self, gpu: GpuProcesses, state: _GpuState, count: int, total: int) -> int | None:
        """Return the memory that another process would need for the largest recent workflow, if all are known."""
        memory = self._pool.memory
        needs = [total if memory.runs_alone(workflow) else memory.known_need(workflow) for workflow in state.recent]
        known = [need for need in needs if need is not None]
        if not known or len(known) < len(needs):
            return None
        return min(max(known) + memory.context(gpu.key, processes=count), total)

    def _act(
        self, gpu: GpuProcesses, state: _GpuState, up: Mapping[str, ClientStats], decision: PackingDecision
    ) -> None:
        names = list(up)
        for number, name in enumerate(names):
            self._pool.pause_server(name, is_paused=number >= decision.active)
        before = state.status
        is_change = decision.change is not PackingChange.NOTHING
        changed = decision.reason if is_change else before.changed if before is not None else None
        state.status = GpuStatus(processes=len(names), reason=decision.reason, changed=changed)
        if before is None or before.reason != decision.reason:
            log_line = log.info if is_change else log.debug
            log_line("worker.packing", gpu=gpu.name or gpu.key, change=decision.change.value, why=decision.reason)
        if decision.change is PackingChange.ADD:
            self._start_more(gpu, state, decision.number)
        elif decision.change is PackingChange.REMOVE:
            urls = {name: up[name].url for name in names[len(names) - decision.number :]}
            state.removing = asyncio.create_task(self._remove_all(gpu, state, urls))

    def _start_more(self, gpu: GpuProcesses, state: _GpuState, number: int) -> None:
        for _ in range(number):
            state.adding.add(asyncio.create_task(self._add(gpu, state)))

    async def _add(self, gpu: GpuProcesses, state: _GpuState) -> None:
        try:
            url = await self._gpus.add(gpu.key)
        except ComfyRelayError as error:
            state.start_failure = error.detail
            log.warning("worker.packing_not_added", gpu=gpu.name or gpu.key, why=error.detail)
        except Exception as error:
            state.start_failure = f"it failed unexpectedly ({type(error).__name__})."
            log.exception("worker.packing_not_added", gpu=gpu.name or gpu.key)
        else:
            # Not in one statement: another task may replace the set while this task waits.
            names = await self._until_online(gpu.key, url)
            state.known |= names
        finally:
            # Not in a done callback, which runs later: until then, the process would count twice.
            if (task := asyncio.current_task()) is not None:
                state.adding.discard(task)

    async def _until_online(self, key: str, url: str) -> set[str]:
        """Wait until the pool sees the server online or removed. Returns its name."""
        while any(url in gpu.processes for gpu in self._gpus.gpus() if gpu.key == key):
            for name, client in self._pool.stats().clients.items():
                if client.url == url and client.state is ClientState.ONLINE:
                    return {name}
            await asyncio.sleep(POLL_SECONDS)
        return set()

    async def _remove_all(self, gpu: GpuProcesses, state: _GpuState, urls: Mapping[str, str]) -> None:
        try:
            await asyncio.gather(*(self._remove(gpu, name, url) for name, url in urls.items()))
        finally:
            state.removing = None

    async def _remove(self, gpu: GpuProcesses, name: str, url: str) -> None:
        """Remove a process. Its job still counts as running on the GPU until the job ends."""
        try:
            while (client := self._pool.stats().clients.get(name)) is not None and client.running:  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)
            await self._gpus.remove(gpu.key, url)
        except Exception:
            log.exception("worker.packing_not_removed", gpu=gpu.name or gpu.key, name=name)

    def _state_of(self, client_id: str | None) -> _GpuState | None:
        client = self._pool.stats().clients.get(client_id or "")
        return self._states[client.gpu] if client is not None and client.gpu is not None else None

    def _on_started(self, event: JobStarted) -> None:
        if (state := self._state_of(event.client_id)) is not None:
            state.recent[event.workflow_hash] = asyncio.get_running_loop().time()

    def _on_completed(self, event: JobCompleted) -> None:
        state = self._state_of(event.client_id)
        if state is not None and event.client_id is not None:
            now = asyncio.get_running_loop().time()
            state.recent[event.workflow_hash] = now
            state.completed.append(CompletedRun(process=event.client_id, workflow=event.workflow_hash, at=now))

    def _on_error(self, event: JobRetrying | JobFailed) -> None:
        """Record a job that ran out of memory next to others. Failures of jobs alone on the GPU do not concern
        packing."""
        state = self._state_of(event.client_id)
        if state is not None and isinstance(event.error, OutOfMemory) and not event.error.ran_alone:
            clients = self._pool.stats().clients
            gpu = clients[event.client_id or ""].gpu
            others = [client for name, client in clients.items() if client.gpu == gpu and name != event.client_id]
            if any(client.running for client in others):
                state.out_of_memory.add(event.workflow_hash)


def gpu_loads() -> dict[str, float]:
    """Return the load of each GPU by id, from 0 to 1. Empty without NVML."""
    return dict(query_nvidia_gpus(_load))


def _load(nvml: Any, handle: Any) -> tuple[str, float]:
    identity = nvml.nvmlDeviceGetUUID(handle)
    load = min(max(nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100, 0.0), 1.0)
    return identity.decode() if isinstance(identity, bytes) else str(identity), load


class JobCounter(Protocol):
    @property
    def more_waiting(self) -> int:
        """Number of jobs that were waiting for this worker at the last response."""


def open_packer(
    managed: ManagedServers, pool: WorkflowPool, max_processes: int | None, *, poller: Callable[[], JobCounter | None]
) -> Packer:
    """Return a packer of managed ComfyUI processes that continues with the results of an earlier process."""
    packer = Packer(
        managed,
        pool,
        max_processes=max_processes,
        more_waiting=lambda: found.more_waiting if (found := poller()) is not None else 0,
        process_ram=managed.largest_process_bytes,
        results=managed.results,
    )
    packer.restore()
    return packer
