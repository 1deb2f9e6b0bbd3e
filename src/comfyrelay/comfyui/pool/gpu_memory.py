"""Memory of GPUs that several servers share: what jobs need, and what servers hold."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from comfyrelay.comfyui.pool.ticket import Bucket
from comfyrelay.domain.queue.memory import GIB, NO_GPUS, is_larger, is_too_small
from comfyrelay.errors import ComfyRelayError

log = structlog.get_logger(__name__)

# Fraction of a GPU's memory reserved for unreported use.
MARGIN = 0.03
# Upper bound for what ComfyUI holds without models. It cannot be distinguished from other programs' memory.
CONTEXT_BYTES = GIB
ANSWER_SECONDS = 5.0
# Minimum interval between measurements of a known workflow after its runs.
LEARN_SECONDS = 3.0
# How long a workflow runs alone after it ran out of memory next to others. By then its needs are known better.
ALONE_SECONDS = 3600.0
# ComfyUI unloads models between two prompts, shortly after the request.
UNLOAD_ATTEMPTS = 50
UNLOAD_PAUSE_SECONDS = 0.05


class ReportsMemory(Protocol):
    """A ComfyUI that reports the memory of its GPU and can unload models."""

    async def system_stats(self) -> dict[str, Any]: ...

    async def free(self) -> None: ...


class OnGpu(Protocol):
    """A server of a pool that shares a GPU."""

    @property
    def id(self) -> str: ...

    @property
    def gpu(self) -> str | None: ...

    @property
    def comfyui(self) -> ReportsMemory | None: ...

    @property
    def buckets(self) -> Collection[Bucket]:
        """Buckets of the active runs."""

    warm: dict[str, None]
    # Workflows that have run there since it was started or unloaded, including failed ones.
    loaded: dict[str, None]
    # The workflow that stays loaded there.
    pinned: str | None
    # Its cached result, and the last completed one.
    cached: str | None
    made: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Memory of a GPU as one ComfyUI reports it, and what that ComfyUI holds."""

    total: int
    # Not used by any program.
    free: int
    held: int


def memory_in(stats: Mapping[str, Any]) -> Memory | None:
    """Return the memory of the first device, which ComfyUI uses, or `None` if it is not a GPU."""
    match stats.get("devices"):
        case [{"type": str() as kind, "vram_total": int() as total, "vram_free": int() as free, **more}, *_]:
            held, kept = more.get("torch_vram_total"), more.get("torch_vram_free")
            if kind not in NO_GPUS and total > 0 and isinstance(held, int) and isinstance(kept, int):
                # Memory that torch reserves without using it is free for that ComfyUI only.
                return Memory(total=total, free=max(free - kept, 0), held=held)
    return None


class GpuMemory:
    """Tracks memory needs. Two jobs never share a GPU if their known needs exceed its memory.

    A workflow that is unknown, or that has run out of memory, gets the GPU to itself. Servers may be removed at any
    moment, even during a request; their part is then skipped.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By GPU, or by server if its GPU is unknown: its memory, and what other programs hold.
        self._total: dict[str, int] = {}
        self._foreign: dict[str, int] = {}
        # Servers measured so far, including servers without memory to report.
        self._asked: set[str] = set()
        # By server: what it holds, and when it is next measured after a run.
        self._held: dict[str, int] = {}
        self._learns_at: dict[str, float] = {}
        # By workflow: measured with nothing else loaded, or the minimum measured next to others.
        self._exact: dict[str, int] = {}
        self._bound: dict[str, int] = {}
        # By workflow, until when.
        self._alone: dict[str, float] = {}
        # By workflow: the largest GPU that was too small for it alone.
        self._oversized: dict[str, int] = {}

    def usable(self, gpu: str) -> int | None:
        """Memory of a GPU that jobs may use, or `None` if unknown."""
        total = self._total.get(gpu)
        return None if total is None else max(int(total * (1 - MARGIN)) - self._foreign.get(gpu, 0), 0)

    def known_need(self, workflow: str) -> int | None:
        """Measured memory need of a workflow."""
        return self._exact.get(workflow, self._bound.get(workflow))

    def context(self, gpu: str, *, processes: int) -> int:
        """Memory that each ComfyUI process on a GPU holds before it loads a model."""
        return min(self._foreign.get(gpu, 0) // max(processes, 1), CONTEXT_BYTES)

    def others(self, gpu: str, *, processes: int) -> int:
        """Memory that other programs hold on a GPU with this number of our processes."""
        return self._foreign.get(gpu, 0) - processes * self.context(gpu, processes=processes)

    def runs_alone(self, workflow: str) -> bool:
        return self._clock() < self._alone.get(workflow, 0.0)

    def need(self, bucket: Bucket, gpu: str) -> int:
        """Memory that a job needs before it may run on a GPU: all of it if unknown."""
        usable = self.usable(gpu) or 0
        known = self.known_need(bucket.workflow_hash)
        if bucket.alone or self.runs_alone(bucket.workflow_hash) or self._is_guess(bucket):
            return usable
        # A job that needs more than the GPU has may still try, alone.
        return min(max(known or 0, bucket.memory_bytes or 0), usable)

    def _most(self, buckets: Iterable[Bucket], gpu: str) -> int:
        return max(self.need(bucket, gpu) for bucket in buckets)

    def _is_guess(self, bucket: Bucket) -> bool:
        """Whether the need of a whole GPU is only assumed."""
        is_known = bucket.memory_bytes is not None or self.known_need(bucket.workflow_hash) is not None
        return not (is_known or bucket.alone or self.runs_alone(bucket.workflow_hash))

    def has_memory_for(self, bucket: Bucket, member: OnGpu, members: Iterable[OnGpu]) -> bool:
        """Whether a job of this bucket may run there, in addition to the active runs on the same GPU."""
        gpu = member.gpu
        if gpu is None:
            return True
        beside = [each for each in members if each.gpu == gpu and each.id != member.id and each.buckets]
        if not beside:
            return True
        if bucket.alone or any(other.alone for neighbor in beside for other in neighbor.buckets):
            return False
        usable = self.usable(gpu)
        if usable is None:
            return gpu in self._asked
        if usable == 0:
            # No known need exceeds the memory, so all would fit.
            return False
        # One server runs its jobs one after the other.
        return (
            sum(self._most(each.buckets, gpu) for each in beside) + self._most((*member.buckets, bucket), gpu) <= usable
        )

    async def free_memory_for(self, bucket: Bucket, member: OnGpu, members: Collection[OnGpu]) -> None:
        """Unload models of idle servers on the GPU as far as this job needs it."""
        gpu = member.gpu
        if bucket.alone:
            await self._clear(member, members)
            return
        if gpu is None:
            return
        if gpu not in self._asked:
            await self.measure_gpu(member, members)
        usable = self.usable(gpu)
        if usable is None:
            return
        others = [each for each in members if each.gpu == gpu and each.id != member.id]
        busy = sum(
            max(self._most(other.buckets, gpu), self._held.get(other.id, 0)) for other in others if other.buckets
        )
        resting = [other for other in others if not other.buckets]
        if busy + self.need(bucket, gpu) + sum(self._may_hold(each, usable) for each in resting) > usable:
            # They may have loaded models since they were last measured, and memory of a server that was not measured
            # would count as another program's.
            found = await asyncio.gather(*(self.measure(other, members) for other in (*others, member)))
            self.note_foreign(gpu, found)
            usable = self.usable(gpu) or 0
        idle = [each for each in resting if self._held.get(each.id, 0)]
        if self._is_guess(bucket):
            # It may fit next to the pinned workflow, and gets the GPU to itself if it does not.
            idle = [each for each in idle if each.pinned is None]
        taken = busy + self.need(bucket, gpu) + sum(self._held[each.id] for each in idle)
        # Pinned workflows are unloaded last.
        for each in sorted(idle, key=lambda one: (one.pinned is not None, -self._held[one.id])):
            if taken <= usable:
                return
            taken -= self._held.get(each.id, 0)
            await self._unload(each)

    async def size(self, member: OnGpu) -> int | None:
        """Return the memory of a server's GPU, or `None` if unknown."""
        place = _place(member)
        if place not in self._total and (found := await self._ask(member)) is not None:
            self._total[place] = found.total
        return self._total.get(place)

    async def larger(self, than: int, members: Iterable[OnGpu]) -> set[str]:
        """Return the servers whose GPU has more memory than this."""
        others = list(members)
        sizes = await asyncio.gather(*(self.size(other) for other in others))
        return {each.id for each, size in zip(others, sizes, strict=True) if is_larger(size, than)}

    def record_too_small(self, workflow: str, gpu_bytes: int) -> None:
        """Record that a workflow did not fit on a GPU of this size, although it had the GPU to itself."""
        self._oversized[workflow] = max(self._oversized.get(workflow, 0), gpu_bytes)

    def is_oversized(self, workflow: str) -> bool:
        """Whether any GPU was too small for this workflow."""
        return workflow in self._oversized

    def would_evict_pinned(self, bucket: Bucket, member: OnGpu, members: Iterable[OnGpu]) -> bool:
        """Whether a job there would leave too little memory for a workflow pinned to another server of the GPU."""
        gpu = member.gpu
        usable = self.usable(gpu) if gpu is not None else None
        if gpu is None or usable is None or self._is_guess(bucket):
            return False
        pinned = [each for each in members if each.gpu == gpu and each.id != member.id and each.pinned is not None]
        held = sum(self._held.get(each.id, 0) for each in pinned)
        return held > 0 and held + self.need(bucket, gpu) > usable

    def too_small(self, workflow: str, members: Iterable[OnGpu]) -> frozenset[str]:
        """Return the servers whose GPU is known to be too small; none if all are."""
        if (failed_size := self._oversized.get(workflow)) is None:
            return frozenset()
        sizes = {member.id: self._total.get(_place(member)) for member in members}
        small = frozenset(id_ for id_, size in sizes.items() if is_too_small(size, failed_size))
        return small if any(is_larger(size, failed_size) for size in sizes.values()) else frozenset()

    def _may_hold(self, member: OnGpu, usable: int) -> int:
        """Return an upper bound: everything it has run since it was started or unloaded."""
        ran = sum(usable if (known := self.known_need(each)) is None else known for each in member.loaded)
        return max(ran, self._held.get(member.id, 0))

    async def measure(self, member: OnGpu, members: Iterable[OnGpu]) -> Memory | None:
        """Ask a server for its memory and its GPU's."""
        found = await self._ask(member)
        if found is None:
            return None
        place = _place(member)
        self._held[member.id] = found.held
        self._total[place] = found.total
        if all(each.id == member.id for each in members if _place(each) == place):
            self.note_foreign(place, [found])
        return found

    def note_foreign(self, place: str, found: Sequence[Memory | None]) -> None:
        """Update what other programs hold, from one measurement of all servers of a GPU.

        Skipped if a server did not respond: it may be loading a model, which would count as another program's memory.
        The same goes for models loaded between the first and the last response.
        """
        told = [each for each in found if each is not None]
        if told and len(told) == len(found):
            taken = told[0].total - max(each.free for each in told)
            self._foreign[place] = max(taken - sum(each.held for each in told), 0)

    async def measure_gpu(self, member: OnGpu, members: Iterable[OnGpu]) -> Memory | None:
        """Measure all servers of a GPU, to find out what other programs hold."""
        here = [member, *(each for each in members if _place(each) == _place(member) and each.id != member.id)]
        found = await asyncio.gather(*(self.measure(each, here) for each in here))
        self.note_foreign(_place(member), found)
        return found[0]

    async def held_by_others(self, member: OnGpu, members: Collection[OnGpu]) -> int:
        """Return what other programs hold on a server's GPU now."""
        await self.measure_gpu(member, members)
        return self.others(_place(member), processes=sum(_place(each) == _place(member) for each in members))

    async def learn(self, workflow: str, member: OnGpu, members: Iterable[OnGpu]) -> None:
        """Measure a server after it has run this workflow.

        Known needs are measured again: the next run may use larger images, or find fewer models of others loaded.
        """
        if self.known_need(workflow) is not None and self._clock() < self._learns_at.get(member.id, 0.0):
            return
        self._learns_at[member.id] = self._clock() + LEARN_SECONDS
        found = await self.measure_gpu(member, members)
        if found is not None:
            here = {*member.loaded, *(bucket.workflow_hash for bucket in member.buckets)}
            self.note(workflow, found.held, is_exact=here <= {workflow})

    def grew(self, workflow: str, held: int) -> None:
        """Raise a known need to what a server holds that has run nothing else.

        Ignored for unknown workflows: the run may only have started.
        """
        if workflow in self._exact:
            self._exact[workflow] = max(self._exact[workflow], held)

    def note(self, workflow: str, held: int, *, is_exact: bool) -> None:
        """`is_exact`: only this workflow has run there since it was started or unloaded."""
        if is_exact:
            self._exact[workflow] = max(self._exact.get(workflow, 0), held)
        else:
            self._bound[workflow] = min(self._bound.get(workflow, held), held)

    def ran_out(self, workflow: str) -> None:
        """Run this workflow alone on its GPU for a while."""
        self._alone[workflow] = self._clock() + ALONE_SECONDS

    def forget(self, member: OnGpu) -> None:
        """Reset a server that was removed or restarted."""
        self._held.pop(member.id, None)
        self._learns_at.pop(member.id, None)

    async def _ask(self, member: OnGpu) -> Memory | None:
        if member.comfyui is None:
            return None
        with suppress(ComfyRelayError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                found = memory_in(await member.comfyui.system_stats())
                if member.gpu is not None:
                    self._asked.add(member.gpu)
                return found
        return None

    async def _clear(self, member: OnGpu, members: Iterable[OnGpu]) -> None:
        """Unload the models of all idle servers on the GPU, including this one."""
        idle = [each for each in members if each.gpu is not None and each.gpu == member.gpu and not each.buckets]
        for each in (*idle, member):
            found = await self._ask(each)
            self._held[each.id] = found.held if found is not None else 0
            if self._held[each.id]:
                await self._unload(each)
            elif each.comfyui is not None:
                # Unload servers that report nothing, too.
                _emptied(each)
                with suppress(ComfyRelayError):
                    await each.comfyui.free()

    async def _unload(self, member: OnGpu) -> None:
        before = self._held.get(member.id, 0)
        _emptied(member)
        if member.comfyui is None:
            return
        with suppress(ComfyRelayError):
            await member.comfyui.free()
            for _ in range(UNLOAD_ATTEMPTS):
                found = memory_in(await member.comfyui.system_stats())
                if found is None or found.held < before:
                    self._held[member.id] = 0 if found is None else found.held
                    log.info("pool.unloaded", client_id=member.id, gpu=member.gpu, bytes=before)
                    return
                await asyncio.sleep(UNLOAD_PAUSE_SECONDS)
        log.warning("pool.not_unloaded", client_id=member.id, gpu=member.gpu, bytes=before)


def _place(member: OnGpu) -> str:
    """Return the server's GPU, or the server itself if it shares none."""
    return member.gpu or member.id


def _emptied(member: OnGpu) -> None:
    member.warm.clear()
    member.loaded.clear()
    member.cached = member.made = None
