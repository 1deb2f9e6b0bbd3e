"""Memory of shared GPUs: how much jobs need, and how much servers hold."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from comfyrelay.comfyui.pool.members import Member
from comfyrelay.comfyui.pool.ticket import Bucket
from comfyrelay.domain.queue.memory import GIB, NO_GPUS, is_alone_on_gpu, is_larger, is_too_small
from comfyrelay.errors import ComfyRelayError, OutOfMemory

log = structlog.get_logger(__name__)

# Fraction of a GPU's memory reserved for unreported use.
MARGIN = 0.03
# Upper bound for ComfyUI's memory without models, which cannot be distinguished from the memory of other programs.
CONTEXT_BYTES = GIB
ANSWER_SECONDS = 5.0
# Minimum interval between measurements of a known workflow after its runs.
LEARN_SECONDS = 3.0
# How long a workflow runs alone after it ran out of memory next to others. After that, its needs are better known.
ALONE_SECONDS = 3600.0
# How long a job waits if other programs hold the GPU memory.
CROWDED_SECONDS = 30.0
# ComfyUI unloads models between prompts, shortly after the request.
UNLOAD_ATTEMPTS = 50
UNLOAD_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Memory of a GPU in bytes, as reported by one ComfyUI.

    `free` is not used by any program; `held` is used by that ComfyUI.
    """

    total: int
    free: int
    held: int


def memory_in(stats: Mapping[str, Any]) -> Memory | None:
    """Return the memory of the first device, which is the one that ComfyUI uses, or `None` if it is not a GPU."""
    match stats.get("devices"):
        case [{"type": str() as kind, "vram_total": int() as total, "vram_free": int() as free, **more}, *_]:
            held, unused = more.get("torch_vram_total"), more.get("torch_vram_free")
            if kind not in NO_GPUS and total > 0 and isinstance(held, int) and isinstance(unused, int):
                # Memory that torch has reserved but does not use is free only for that ComfyUI.
                return Memory(total=total, free=max(free - unused, 0), held=held)
    return None


class GpuMemory:
    """Tracks memory needs. Two jobs never share a GPU if their known needs exceed its memory.

    A workflow that is unknown, or that has run out of memory, gets the GPU to itself. Servers may be removed at any
    moment, even during a request; their memory is then skipped.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Total memory, and the memory of other programs, by GPU (by server if its GPU is unknown).
        self._total: dict[str, int] = {}
        self._foreign: dict[str, int] = {}
        # GPUs with a server that has responded, even if it reported no memory.
        self._measured: set[str] = set()
        # Memory that the server holds, and the time of its next measurement after a run, by server.
        self._held: dict[str, int] = {}
        self._next_measurement_at: dict[str, float] = {}
        # By workflow: need measured with no other models loaded, and the minimum measured next to other models.
        self._exact: dict[str, int] = {}
        self._bound: dict[str, int] = {}
        # Time until which a workflow runs alone.
        self._alone_until: dict[str, float] = {}
        # Size of the largest GPU that was too small for a workflow that had it to itself.
        self._oversized: dict[str, int] = {}
        # GPUs that have completed a workflow.
        self._completed: defaultdict[str, set[str]] = defaultdict(set)

    def usable(self, gpu: str) -> int | None:
        """Return the memory of a GPU that jobs may use, or `None` if unknown."""
        total = self._total.get(gpu)
        return None if total is None else max(int(total * (1 - MARGIN)) - self._foreign.get(gpu, 0), 0)

    def known_need(self, workflow: str) -> int | None:
        """Return the measured memory need of a workflow, or `None` if unknown."""
        return self._exact.get(workflow, self._bound.get(workflow))

    def context(self, gpu: str, *, processes: int) -> int:
        """Return the memory that each ComfyUI process on a GPU holds before it loads a model."""
        return min(self._foreign.get(gpu, 0) // max(processes, 1), CONTEXT_BYTES)

    def others(self, gpu: str, *, processes: int) -> int:
        """Return the memory that other programs hold on a GPU with this number of our processes."""
        return self._foreign.get(gpu, 0) - processes * self.context(gpu, processes=processes)

    def runs_alone(self, workflow: str) -> bool:
        return self._clock() < self._alone_until.get(workflow, 0.0)

    def need(self, bucket: Bucket, gpu: str) -> int:
        """Return the memory that must be free before a job runs on a GPU: all memory if the need is unknown."""
        usable = self.usable(gpu) or 0
        known = self.known_need(bucket.workflow_hash)
        if bucket.alone or self.runs_alone(bucket.workflow_hash) or self._is_need_assumed(bucket):
            return usable
        # A job that needs more than the whole GPU may still try to run alone.
        return min(max(known or 0, bucket.memory_bytes or 0), usable)

    def _largest_need(self, buckets: Iterable[Bucket], gpu: str) -> int:
        return max(self.need(bucket, gpu) for bucket in buckets)

    def _is_need_assumed(self, bucket: Bucket) -> bool:
        """Whether a job counts as needing the whole GPU only because its need is unknown."""
        is_known = bucket.memory_bytes is not None or self.known_need(bucket.workflow_hash) is not None
        return not (is_known or bucket.alone or self.runs_alone(bucket.workflow_hash))

    def has_memory_for(self, bucket: Bucket, member: Member, members: Iterable[Member]) -> bool:
        """Whether a job of this bucket may run on a server, in addition to the active runs on the same GPU."""
        gpu = member.gpu
        if gpu is None:
            return True
        neighbors = [other for other in _others_on_gpu(member, members) if other.buckets]
        if not neighbors:
            return True
        if bucket.alone or any(active.alone for neighbor in neighbors for active in neighbor.buckets):
            return False
        usable = self.usable(gpu)
        if usable is None:
            return gpu in self._measured
        if usable == 0:
            # Needs are capped at the usable memory, so every job would appear to fit.
            return False
        # Jobs of the same server run one after the other.
        needed_by_neighbors = sum(self._largest_need(neighbor.buckets, gpu) for neighbor in neighbors)
        return needed_by_neighbors + self._largest_need((*member.buckets, bucket), gpu) <= usable

    async def free_memory_for(self, bucket: Bucket, member: Member, members: Collection[Member]) -> None:
        """Unload models of idle servers on the GPU until this job has enough memory."""
        gpu = member.gpu
        if bucket.alone:
            await self._unload_all(member, members)
            return
        if gpu is None:
            return
        if gpu not in self._measured:
            await self.measure_gpu(member, members)
        usable = self.usable(gpu)
        if usable is None:
            return
        others = _others_on_gpu(member, members)
        busy = sum(
            max(self._largest_need(other.buckets, gpu), self._held.get(other.id, 0))
            for other in others
            if other.buckets
        )
        idle = [other for other in others if not other.buckets]
        if busy + self.need(bucket, gpu) + sum(self._max_held(other, usable) for other in idle) > usable:
            # The servers may have loaded models since the last measurement, and the memory of an unmeasured server
            # would count as that of another program.
            reports = await asyncio.gather(*(self.measure(server, members) for server in (*others, member)))
            self.update_foreign(gpu, reports)
            usable = self.usable(gpu) or 0
        idle = [other for other in idle if self._held.get(other.id, 0)]
        if self._is_need_assumed(bucket):
            # The job may fit next to the pinned workflow. If it does not fit, it gets the GPU to itself.
            idle = [other for other in idle if other.pinned is None]
        taken = busy + self.need(bucket, gpu) + sum(self._held[other.id] for other in idle)
        # Pinned workflows are unloaded last.
        for other in sorted(idle, key=lambda server: (server.pinned is not None, -self._held[server.id])):
            if taken <= usable:
                return
            taken -= self._held.get(other.id, 0)
            await self._unload(other)

    async def size(self, member: Member) -> int | None:
        """Return the memory of a server's GPU, or `None` if unknown."""
        key = _gpu_key(member)
        if key not in self._total and (reported := await self._read_memory(member)) is not None:
            self._total[key] = reported.total
        return self._total.get(key)

    def known_size(self, member: Member) -> int | None:
        """Return the memory of a server's GPU, or `None` if it has not been measured."""
        return self._total.get(_gpu_key(member))

    async def read_sizes(self, members: Iterable[Member]) -> None:
        """Measure the GPUs whose size is not yet known."""
        await asyncio.gather(*(self.size(member) for member in members))

    def larger(self, than: int, members: Iterable[Member]) -> set[str]:
        """Return the servers whose GPU is known to have more than `than` bytes of memory."""
        return {member.id for member in members if is_larger(self.known_size(member), than)}

    async def explain(self, error: OutOfMemory, bucket: Bucket, member: Member, members: Collection[Member]) -> None:
        """Add details to an error: whether the job had the GPU to itself, the GPU's size, and other programs' memory.

        If other programs held much of the memory, the job may still fit on this GPU.
        """
        # On a server that cannot unload its models, a job cannot have more of the GPU to itself.
        error.ran_alone = bucket.alone or member.comfyui is None
        if member.gpu is not None:
            self.record_out_of_memory(bucket.workflow_hash)
        if not error.ran_alone:
            return
        await self.read_sizes(members)
        size = self.known_size(member)
        others = 0 if size is None else await self.held_by_others(member, members)
        if size is None or is_alone_on_gpu(size, others):
            # A server that has responded without a size has no GPU: another attempt would not get more memory.
            error.gpu_bytes = 0 if size is None and _gpu_key(member) in self._measured else size
        else:
            error.others_bytes = others
            error.retry_after_seconds = CROWDED_SECONDS

    def on_other_gpus(self, tried: Collection[str], members: Collection[Member]) -> list[Member]:
        """Return the servers whose GPU has not been tried."""
        gpus = {_gpu_key(member) for member in members if member.id in tried}
        return [member for member in members if _gpu_key(member) not in gpus]

    def capable(self, workflow: str, members: Iterable[Member], *, ran_out_bytes: int | None) -> set[str]:
        """Return the servers that may complete a workflow that ran out of memory on a GPU of this size.

        These include smaller GPUs that have completed the workflow before.
        """
        return {
            member.id
            for member in members
            if self.has_completed(workflow, member)
            or ran_out_bytes is None
            or (size := self.known_size(member)) is None
            or not is_larger(ran_out_bytes, size)
        }

    def has_run_on(self, workflow: str, members: Iterable[Member], *, not_larger_than: Member) -> bool:
        """Whether any of these servers has completed a workflow on a GPU that is known to be no larger."""
        size = self.known_size(not_larger_than)
        return size is not None and any(
            is_too_small(self.known_size(member), size) and self.has_completed(workflow, member) for member in members
        )

    def has_completed(self, workflow: str, member: Member) -> bool:
        return _gpu_key(member) in self._completed.get(workflow, ())

    def record_completed(self, workflow: str, member: Member) -> None:
        """Record that a workflow has completed on a server's GPU, so GPUs of that size are not too small for it."""
        self._completed[workflow].add(_gpu_key(member))
        failed_size = self._oversized.get(workflow)
        if failed_size is not None and is_too_small(self.known_size(member), failed_size):
            del self._oversized[workflow]

    def record_too_small(self, workflow: str, gpu_bytes: int) -> None:
        """Record that a workflow did not fit on a GPU of this size, although it had the GPU to itself."""
        self._oversized[workflow] = max(self._oversized.get(workflow, 0), gpu_bytes)

    def is_oversized(self, workflow: str) -> bool:
        """Whether any GPU was too small for this workflow."""
        return workflow in self._oversized

    def would_evict_pinned(self, bucket: Bucket, member: Member, members: Iterable[Member]) -> bool:
        """Whether a job on a server would leave too little memory for workflows pinned to other servers on the GPU."""
        gpu = member.gpu
        usable = self.usable(gpu) if gpu is not None else None
        if gpu is None or usable is None or self._is_need_assumed(bucket):
            return False
        held = sum(self._held.get(other.id, 0) for other in _others_on_gpu(member, members) if other.pinned is not None)
        return held > 0 and held + self.need(bucket, gpu) > usable

    def too_small(self, workflow: str, members: Iterable[Member]) -> frozenset[str]:
        """Return the servers whose GPU is known to be too small. Empty if no GPU is known to be larger."""
        if (failed_size := self._oversized.get(workflow)) is None:
            return frozenset()
        sizes = {member.id: self._total.get(_gpu_key(member)) for member in members}
        small = frozenset(client_id for client_id, size in sizes.items() if is_too_small(size, failed_size))
        return small if any(is_larger(size, failed_size) for size in sizes.values()) else frozenset()

    def _max_held(self, member: Member, usable: int) -> int:
        """Return an upper bound for the memory that a server holds: the needs of all workflows that may be loaded."""
        needs = [self.known_need(workflow) for workflow in member.loaded]
        return max(sum(usable if need is None else need for need in needs), self._held.get(member.id, 0))

    async def measure(self, member: Member, members: Iterable[Member]) -> Memory | None:
        """Read the memory of a server and its GPU."""
        reported = await self._read_memory(member)
        if reported is None:
            return None
        key = _gpu_key(member)
        self._held[member.id] = reported.held
        self._total[key] = reported.total
        if all(other.id == member.id for other in members if _gpu_key(other) == key):
            self.update_foreign(key, [reported])
        return reported

    def update_foreign(self, gpu: str, reports: Sequence[Memory | None]) -> None:
        """Update the memory that other programs hold, from one measurement of all servers of a GPU.

        Skipped if a server did not respond: it may be loading a model, which would count as the memory of another
        program. To exclude models loaded during the measurement, the largest free memory is used.
        """
        known = [report for report in reports if report is not None]
        if known and len(known) == len(reports):
            taken = known[0].total - max(report.free for report in known)
            self._foreign[gpu] = max(taken - sum(report.held for report in known), 0)

    async def measure_gpu(self, member: Member, members: Iterable[Member]) -> Memory | None:
        """Measure all servers of a GPU and the memory that other programs hold. Returns the report of this server."""
        key = _gpu_key(member)
        on_gpu = [member, *(other for other in members if _gpu_key(other) == key and other.id != member.id)]
        reports = await asyncio.gather(*(self.measure(server, on_gpu) for server in on_gpu))
        self.update_foreign(key, reports)
        return reports[0]

    async def held_by_others(self, member: Member, members: Collection[Member]) -> int:
        """Measure the memory that other programs hold on a server's GPU now."""
        await self.measure_gpu(member, members)
        key = _gpu_key(member)
        return self.others(key, processes=sum(_gpu_key(other) == key for other in members))

    async def learn(self, workflow: str, member: Member, members: Iterable[Member]) -> None:
        """Measure a server after it has run this workflow.

        Known needs are measured again: a later run may use larger images, or run while fewer other models are loaded.
        """
        if self.known_need(workflow) is not None and self._clock() < self._next_measurement_at.get(member.id, 0.0):
            return
        self._next_measurement_at[member.id] = self._clock() + LEARN_SECONDS
        reported = await self.measure_gpu(member, members)
        if reported is not None:
            loaded = {*member.loaded, *(bucket.workflow_hash for bucket in member.buckets)}
            self.record_need(workflow, reported.held, is_exact=loaded <= {workflow})

    def raise_need(self, workflow: str, held: int) -> None:
        """Raise a known need to the memory held by a server that has run no other workflow.

        Ignored for unknown workflows: the run may only have started.
        """
        if workflow in self._exact:
            self._exact[workflow] = max(self._exact[workflow], held)

    def record_need(self, workflow: str, held: int, *, is_exact: bool) -> None:
        """Record the memory that a server holds after a run. `is_exact`: only models of this workflow are loaded."""
        if is_exact:
            self._exact[workflow] = max(self._exact.get(workflow, 0), held)
        else:
            self._bound[workflow] = min(self._bound.get(workflow, held), held)

    def record_out_of_memory(self, workflow: str) -> None:
        """Let this workflow run alone on its GPU for some time."""
        self._alone_until[workflow] = self._clock() + ALONE_SECONDS

    def forget(self, member: Member) -> None:
        """Forget a server that was removed or restarted."""
        self._held.pop(member.id, None)
        self._next_measurement_at.pop(member.id, None)

    async def _read_memory(self, member: Member) -> Memory | None:
        if member.comfyui is None:
            return None
        with suppress(ComfyRelayError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                reported = memory_in(await member.comfyui.system_stats())
                self._measured.add(_gpu_key(member))
                return reported
        return None

    async def _unload_all(self, member: Member, members: Iterable[Member]) -> None:
        """Unload the models of this server and of all idle servers on its GPU."""
        idle = [other for other in members if other.gpu is not None and other.gpu == member.gpu and not other.buckets]
        for server in (*idle, member):
            reported = await self._read_memory(server)
            self._held[server.id] = reported.held if reported is not None else 0
            if self._held[server.id]:
                await self._unload(server)
            elif server.comfyui is not None:
                # Also unload servers that do not report memory.
                server.record_unloaded()
                with suppress(ComfyRelayError):
                    await server.comfyui.free()

    async def _unload(self, member: Member) -> None:
        before = self._held.get(member.id, 0)
        member.record_unloaded()
        if member.comfyui is None:
            return
        with suppress(ComfyRelayError):
            await member.comfyui.free()
            for _ in range(UNLOAD_ATTEMPTS):
                reported = memory_in(await member.comfyui.system_stats())
                if reported is None or reported.held < before:
                    self._held[member.id] = 0 if reported is None else reported.held
                    log.info("pool.unloaded", client_id=member.id, gpu=member.gpu, bytes=before)
                    return
                await asyncio.sleep(UNLOAD_PAUSE_SECONDS)
        log.warning("pool.not_unloaded", client_id=member.id, gpu=member.gpu, bytes=before)


def _gpu_key(member: Member) -> str:
    """Return the server's GPU, or the server's id if it does not share a GPU."""
    return member.gpu or member.id


def _others_on_gpu(member: Member, members: Iterable[Member]) -> list[Member]:
    return [other for other in members if other.gpu == member.gpu and other.id != member.id]
