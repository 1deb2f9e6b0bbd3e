"""GPU sharing: watch the GPUs of managed ComfyUI processes and change how many run on each."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
from comfyrelay.comfyui.pool.gpu_memory import Memory
from comfyrelay.comfyui.processes.gpu_processes import GpuInventory, GpuProcesses
from comfyrelay.comfyui.processes.gpus import query_nvidia_gpus
from comfyrelay.domain.packing import (
    CompletedRun,
    GpuObservation,
    Packing,
    PackingChange,
    PackingDecision,
    PackingLimits,
    decide,
)
from comfyrelay.errors import ComfyRelayError, OutOfMemory
from comfyrelay.system.spare_capacity import SpareCores, free_memory_bytes

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0
# Workflows that have not run for this long are ignored.
LATELY_SECONDS = 600.0
REST_SECONDS = 0.1
# Weight of one sample in the average load of a GPU.
NEWS = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuStatus:
    """The last decision about a GPU: how many processes run there, and why."""

    processes: int
    reason: str
    # when one was last added or removed, and why
    changed: str | None = None


@dataclass(kw_only=True)
class _Watched:
    """Observations of one GPU since the last decision."""

    packing: Packing = field(default_factory=Packing)
    done: list[CompletedRun] = field(default_factory=list)
    out_of_memory: set[str] = field(default_factory=set)
    failed: str | None = None
    # by workflow, when it last started or completed there
    lately: dict[str, float] = field(default_factory=dict)
    load: float | None = None
    # names of processes that have answered once
    known: set[str] = field(default_factory=set)
    additions: list[asyncio.Task[None]] = field(default_factory=list)
    removing: asyncio.Task[None] | None = None
    decided: GpuStatus | None = None

    @property
    def adding(self) -> list[asyncio.Task[None]]:
        """Tasks that are adding a process."""
        self.additions = [addition for addition in self.additions if not addition.done()]
        return self.additions

    @property
    def changing(self) -> list[asyncio.Task[None]]:
        return self.adding if self.removing is None else [*self.adding, self.removing]

    def note_load(self, load: float | None) -> None:
        """Average the load: drivers report an instant, and load varies within a job."""
        is_first = self.load is None or load is None
        self.load = load if is_first else (1 - NEWS) * (self.load or 0.0) + NEWS * (load or 0.0)


class Packer:
    """`keep` runs until cancelled; `decided` is the last decision by GPU."""

    def __init__(
        self,
        gpus: GpuInventory,
        pool: WorkflowPool,
        *,
        limits: PackingLimits | None = None,
        most: int | None = None,
        more_waiting: Callable[[], int] = lambda: 0,
        spare: Callable[[int], float | None] | None = None,
        loads: Callable[[], Mapping[str, float]] | None = None,
        free: Callable[[], int] = free_memory_bytes,
        taken: Callable[[str], int | None] = lambda _gpu: None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """`most` limits the processes per GPU below the general limits.

        `more_waiting` returns the known number of jobs that wait for this pool outside of it. `spare` returns the free
        processor cores for a given number of busy processes of ours; `loads` the load of each GPU. `free` returns the
        free RAM of the machine, `taken` the RAM of the largest process on a GPU, if known.
        """
        self._gpus = gpus
        self._pool = pool
        limits = limits or PackingLimits()
        self._limits = limits if most is None else replace(limits, most=min(limits.most, most))
        self._more_waiting = more_waiting
        self._spare = spare or SpareCores()
        self._loads = loads or loads_here
        self._free = free
        self._taken = taken
        self._look_seconds = look_seconds
        self._watched: defaultdict[str, _Watched] = defaultdict(_Watched)
        self._unsubscribe = [
            pool.on(JobStarted, lambda event: self._note(event.client_id, event.workflow_hash)),
            pool.on(JobCompleted, self._completed),
            pool.on(JobRetrying, lambda event: self._went_wrong(event.client_id, event.workflow_hash, event.error)),
            pool.on(JobFailed, lambda event: self._went_wrong(event.client_id, event.workflow_hash, event.error)),
        ]

    @property
    def decided(self) -> dict[str, GpuStatus]:
        return {key: each.decided for key, each in self._watched.items() if each.decided is not None}

    def ran_out(self, gpu: str) -> frozenset[str]:
        """Workflows that ran out of memory there next to others since the last decision."""
        return frozenset(self._watched[gpu].out_of_memory)

    async def keep(self) -> None:
        try:
            while True:
                try:
                    await self.check_gpus()
                except Exception:
                    log.exception("worker.packing_failed")
                await asyncio.sleep(self._look_seconds)
        finally:
            for end in self._unsubscribe:
                end()
            changing = [task for watched in self._watched.values() for task in watched.changing]
            for task in changing:
                task.cancel()
            await asyncio.gather(*changing, return_exceptions=True)

    async def check_gpus(self) -> None:
        """Observe each GPU once and start the decided changes."""
        gpus = self._gpus.gpus()
        loads, room = await asyncio.to_thread(lambda: (self._loads(), self._room([each.key for each in gpus])))
        checks = [self._check_gpu(gpu, loads.get(gpu.key), room.get(gpu.key)) for gpu in gpus]
        for broken in await asyncio.gather(*checks, return_exceptions=True):
            if broken is not None:
                log.error("worker.packing_failed", exc_info=broken)

    def _room(self, keys: Sequence[str]) -> dict[str, tuple[int, int]]:
        """By GPU, the free RAM of the machine and the RAM another process there would need."""
        taken = {key: found for key in keys if (found := self._taken(key)) is not None}
        free = self._free() if taken else 0
        return {key: (free, each) for key, each in taken.items()}

    async def _check_gpu(self, gpu: GpuProcesses, load: float | None, room: tuple[int, int] | None) -> None:
        watched = self._watched[gpu.key]
        found = await asyncio.gather(*(self._pool.measure_memory(name) for name in self._here(gpu)))
        self._pool.memory.update_foreign(gpu.key, found)
        known = [each for each in found if each is not None]
        watched.note_load(load)
        if watched.removing is not None:
            return
        # read again: the calls above took time
        gpu = next((each for each in self._gpus.gpus() if each.key == gpu.key), gpu)
        here = self._here(gpu)
        seen = self._seen(gpu, watched, here, memory=known[-1] if known else None)
        if room is not None:
            free, copy = room
            # processes starting on other GPUs have not allocated theirs yet
            elsewhere = sum(len(each.adding) for each in self._watched.values() if each is not watched)
            seen = replace(seen, machine_free_bytes=max(free - elsewhere * copy, 0), machine_copy_bytes=copy)
        packing, decision = decide(watched.packing, seen, self._limits)
        self._act(gpu, watched, {name: here[name] for name in seen.processes}, decision)
        # failed starts do not count
        watched.packing = packing

    def _here(self, gpu: GpuProcesses) -> dict[str, ClientStats]:
        """Servers on a GPU that run or start: with a pinned workflow first, then the oldest."""
        on_gpu = {each.url: (name, each) for name, each in self._pool.stats().clients.items() if each.gpu == gpu.key}
        found = [on_gpu[url] for url in gpu.processes if url in on_gpu]
        return dict(sorted(found, key=lambda each: each[1].pinned is None))

    def _seen(
        self, gpu: GpuProcesses, watched: _Watched, here: Mapping[str, ClientStats], *, memory: Memory | None
    ) -> GpuObservation:
        now = asyncio.get_running_loop().time()
        stats = self._pool.stats()
        more = self._more_waiting()
        watched.lately = {each: at for each, at in watched.lately.items() if now - at < LATELY_SECONDS}
        online = [name for name, each in here.items() if each.state is ClientState.ONLINE]
        # the task that adds one reports when it has started
        up = [name for name in online if name in watched.known or not watched.adding]
        watched.known = (watched.known & here.keys()) | set(up)
        busy = sum(bool(client.running) for client in stats.clients.values())
        starting = sum(len(each.adding) for each in self._watched.values())
        # memory of other programs is subtracted once, not per process
        total = memory.total - self._pool.memory.others(gpu.key, processes=len(up)) if memory is not None else None
        seen = GpuObservation(
            now=now,
            processes=tuple(up),
            pinned=sum(here[name].pinned is not None for name in up),
            away=frozenset(watched.known.difference(up)),
            # a requested process may or may not be in the pool yet
            starting=max(len(watched.adding), len(here.keys() - watched.known)),
            # including jobs that wait on a server behind another
            waiting=stats.queued + sum(max(client.running - 1, 0) for client in stats.clients.values()) + more,
            # a job that waits behind another does not run
            running=sum(bool(client.running) for client in stats.clients.values() if client.gpu == gpu.key),
            workflows=frozenset(watched.lately),
            memory_bytes=total,
            free_bytes=memory.free if memory is not None else None,
            copy_bytes=self._copy_bytes(gpu, watched, len(up), total) if total is not None else None,
            spare_cores=self._spare(busy + starting),
            load=watched.load,
            done=tuple(watched.done),
            out_of_memory=self.ran_out(gpu.key),
            failed=watched.failed,
        )
        watched.done.clear()
        watched.out_of_memory.clear()
        watched.failed = None
        return seen

    def _copy_bytes(self, gpu: GpuProcesses, watched: _Watched, count: int, total: int) -> int | None:
        """Memory that another process would need with the largest recent workflow, or `None` until all are known."""
        memory = self._pool.memory
        needs = [total if memory.runs_alone(each) else memory.known_need(each) for each in watched.lately]
        known = [need for need in needs if need is not None]
        if not known or len(known) < len(needs):
            return None
        return min(max(known) + memory.context(gpu.key, processes=count), total)

    def _act(
        self, gpu: GpuProcesses, watched: _Watched, up: Mapping[str, ClientStats], decision: PackingDecision
    ) -> None:
        names = list(up)
        for number, name in enumerate(names):
            self._pool.pause_server(name, is_paused=number >= decision.active)
        before = watched.decided
        is_change = decision.change is not PackingChange.NOTHING
        changed = decision.reason if is_change else before.changed if before is not None else None
        watched.decided = GpuStatus(processes=len(names), reason=decision.reason, changed=changed)
        if before is None or before.reason != decision.reason:
            level = log.info if is_change else log.debug
            level("worker.packing", gpu=gpu.name or gpu.key, change=decision.change.value, why=decision.reason)
        if decision.change is PackingChange.ADD:
            watched.additions.append(asyncio.create_task(self._add(gpu, watched)))
        elif decision.change is PackingChange.REMOVE:
            watched.removing = asyncio.create_task(self._remove(gpu, watched, names[-1], up[names[-1]].url))

    async def _add(self, gpu: GpuProcesses, watched: _Watched) -> None:
        try:
            url = await self._gpus.add(gpu.key)
        except ComfyRelayError as error:
            watched.failed = error.detail
            log.warning("worker.packing_not_added", gpu=gpu.name or gpu.key, why=error.detail)
        except Exception as error:
            watched.failed = f"it failed unexpectedly ({type(error).__name__})."
            log.exception("worker.packing_not_added", gpu=gpu.name or gpu.key)
        else:
            watched.known |= await self._until_online(gpu.key, url)

    async def _until_online(self, key: str, url: str) -> set[str]:
        """Wait until the pool sees the server online or removed. Returns its name."""
        while any(url in each.processes for each in self._gpus.gpus() if each.key == key):
            for name, each in self._pool.stats().clients.items():
                if each.url == url and each.state is ClientState.ONLINE:
                    return {name}
            await asyncio.sleep(REST_SECONDS)
        return set()

    async def _remove(self, gpu: GpuProcesses, watched: _Watched, name: str, url: str) -> None:
        """Remove a process. Its running job counts on the GPU until it ends."""
        try:
            while (client := self._pool.stats().clients.get(name)) is not None and client.running:  # noqa: ASYNC110
                await asyncio.sleep(REST_SECONDS)
            await self._gpus.remove(gpu.key, url)
        except Exception:
            log.exception("worker.packing_not_removed", gpu=gpu.name or gpu.key, name=name)
        finally:
            watched.removing = None

    def _gpu_of(self, client_id: str | None) -> _Watched | None:
        client = self._pool.stats().clients.get(client_id or "")
        return self._watched[client.gpu] if client is not None and client.gpu is not None else None

    def _note(self, client_id: str | None, workflow: str) -> None:
        if (watched := self._gpu_of(client_id)) is not None:
            watched.lately[workflow] = asyncio.get_running_loop().time()

    def _completed(self, event: JobCompleted) -> None:
        watched = self._gpu_of(event.client_id)
        if watched is not None and event.client_id is not None:
            now = asyncio.get_running_loop().time()
            watched.lately[event.workflow_hash] = now
            watched.done.append(CompletedRun(process=event.client_id, workflow=event.workflow_hash, at=now))

    def _went_wrong(self, client_id: str | None, workflow: str, error: Exception) -> None:
        """A job that had the GPU to itself says nothing about how many processes are too many."""
        watched = self._gpu_of(client_id)
        if watched is not None and isinstance(error, OutOfMemory) and error.gpu_bytes is None:
            clients = self._pool.stats().clients
            gpu = clients[client_id or ""].gpu
            if any(each.running for name, each in clients.items() if each.gpu == gpu and name != client_id):
                watched.out_of_memory.add(workflow)


def loads_here() -> dict[str, float]:
    """Load of each GPU from 0 to 1, by its id; empty if NVML is unavailable."""
    return dict(query_nvidia_gpus(_load))


def _load(nvml: Any, handle: Any) -> tuple[str, float]:
    identity = nvml.nvmlDeviceGetUUID(handle)
    load = min(max(nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100, 0.0), 1.0)
    return identity.decode() if isinstance(identity, bytes) else str(identity), load
