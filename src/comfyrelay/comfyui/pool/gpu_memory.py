"""The memory of GPUs that several servers share: what jobs are known to need of it, and what servers hold of it."""

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

# Of a gpu's memory, for what nobody tells of.
MARGIN = 0.03
# What a ComfyUI takes by itself at most. Nobody tells it apart from what other programs hold.
CONTEXT_BYTES = GIB
ANSWER_SECONDS = 5.0
# What is known of a workflow is looked at again after its runs, and so often at most.
LEARN_SECONDS = 3.0
# What ran out of memory beside others may do so again; what it needs is known better by then.
ALONE_SECONDS = 3600.0
# ComfyUI unloads models between two prompts, a moment after it was asked to.
UNLOAD_TRIES = 50
UNLOAD_PAUSE_SECONDS = 0.05


class ReportsMemory(Protocol):
    """A ComfyUI that says how much memory its GPU has, and lets go of it."""

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
        """Of what runs there now."""

    warm: dict[str, None]
    # the workflows that have run there since it was started or emptied, also those that failed
    loaded: dict[str, None]
    # the workflow that stays loaded there
    pinned: str | None
    # what is in its cache, and what has run there to its end
    cached: str | None
    made: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """What a ComfyUI tells: of the GPU, and what it holds itself."""

    total: int
    # by nobody, whatever program
    free: int
    held: int


def memory_in(stats: Mapping[str, Any]) -> Memory | None:
    """Of the first device, which is the one that ComfyUI uses; nothing where that is no GPU."""
    match stats.get("devices"):
        case [{"type": str() as kind, "vram_total": int() as total, "vram_free": int() as free, **more}, *_]:
            held, kept = more.get("torch_vram_total"), more.get("torch_vram_free")
            if kind not in NO_GPUS and total > 0 and isinstance(held, int) and isinstance(kept, int):
                # what torch holds and does not use is free for that ComfyUI only
                return Memory(total=total, free=max(free - kept, 0), held=held)
    return None


class GpuMemory:
    """Two jobs never share a GPU when the sum of what they are known to need exceeds it. A workflow that is not known
    yet, or that has run out of memory, has its GPU to itself.

    A server may be taken away at any moment, also while it is asked: what it does not do then is not done.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # by GPU, or by server where its GPU is not known: its memory, and what other programs than ours hold of it
        self._total: dict[str, int] = {}
        self._foreign: dict[str, int] = {}
        # those that were asked, also where they have no memory to tell of
        self._asked: set[str] = set()
        # by server: what it holds, and when it is next looked at after a run
        self._held: dict[str, int] = {}
        self._learns_at: dict[str, float] = {}
        # by workflow: measured where nothing else was loaded, or the least of what was loaded with others
        self._exact: dict[str, int] = {}
        self._bound: dict[str, int] = {}
        # by workflow, until when
        self._alone: dict[str, float] = {}
        # by workflow: the largest GPU that it did not fit into, though it had that to itself
        self._outgrown: dict[str, int] = {}

    def usable(self, gpu: str) -> int | None:
        """What jobs may use of a GPU; nothing where that is not known."""
        total = self._total.get(gpu)
        return None if total is None else max(int(total * (1 - MARGIN)) - self._foreign.get(gpu, 0), 0)

    def known_need(self, workflow: str) -> int | None:
        """What a workflow was seen to need."""
        return self._exact.get(workflow, self._bound.get(workflow))

    def context(self, gpu: str, *, processes: int) -> int:
        """What each of so many ComfyUI on a GPU takes by itself, before it loads anything."""
        return min(self._foreign.get(gpu, 0) // max(processes, 1), CONTEXT_BYTES)

    def others(self, gpu: str, *, processes: int) -> int:
        """What other programs hold of a GPU on which so many of ours are."""
        return self._foreign.get(gpu, 0) - processes * self.context(gpu, processes=processes)

    def runs_alone(self, workflow: str) -> bool:
        return self._clock() < self._alone.get(workflow, 0.0)

    def need(self, bucket: Bucket, gpu: str) -> int:
        """What a job must have of a GPU before it may run there: all of it, where that is not known."""
        usable = self.usable(gpu) or 0
        known = self.known_need(bucket.workflow_hash)
        if bucket.alone or self.runs_alone(bucket.workflow_hash) or self._is_guess(bucket):
            return usable
        # one that needs more than there is may still try, alone
        return min(max(known or 0, bucket.memory_bytes or 0), usable)

    def _most(self, buckets: Iterable[Bucket], gpu: str) -> int:
        return max(self.need(each, gpu) for each in buckets)

    def _is_guess(self, bucket: Bucket) -> bool:
        """Whether that all of a GPU is needed is only said because nobody knows better."""
        is_known = bucket.memory_bytes is not None or self.known_need(bucket.workflow_hash) is not None
        return not (is_known or bucket.alone or self.runs_alone(bucket.workflow_hash))

    def has_room(self, bucket: Bucket, member: OnGpu, members: Iterable[OnGpu]) -> bool:
        """Whether a job of this bucket may run there, beside what runs on the same GPU now."""
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
            # nobody is known to need more than there is, so all would fit
            return False
        # what one server has to do it does one after the other
        return (
            sum(self._most(each.buckets, gpu) for each in beside) + self._most((*member.buckets, bucket), gpu) <= usable
        )

    async def make_room(self, bucket: Bucket, member: OnGpu, members: Collection[OnGpu]) -> None:
        """Let servers of the GPU that do nothing unload their models, as far as this job needs it."""
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
        busy = sum(max(self._most(each.buckets, gpu), self._held.get(each.id, 0)) for each in others if each.buckets)
        resting = [each for each in others if not each.buckets]
        if busy + self.need(bucket, gpu) + sum(self._may_hold(each, usable) for each in resting) > usable:
            # what they have run since they were last asked may be loaded; and what one of ours holds that was not asked
            # would count as another program's
            found = await asyncio.gather(*(self.measure(each, members) for each in (*others, member)))
            self.note_foreign(gpu, found)
            usable = self.usable(gpu) or 0
        idle = [each for each in resting if self._held.get(each.id, 0)]
        if self._is_guess(bucket):
            # it may well fit beside what is to stay loaded, and has the GPU to itself if it does not
            idle = [each for each in idle if each.pinned is None]
        taken = busy + self.need(bucket, gpu) + sum(self._held[each.id] for each in idle)
        # what is to stay loaded goes last
        for each in sorted(idle, key=lambda one: (one.pinned is not None, -self._held[one.id])):
            if taken <= usable:
                return
            taken -= self._held.get(each.id, 0)
            await self._unload(each)

    async def size(self, member: OnGpu) -> int | None:
        """The memory of a server's GPU; nothing where nobody can tell."""
        place = _place(member)
        if place not in self._total and (found := await self._ask(member)) is not None:
            self._total[place] = found.total
        return self._total.get(place)

    async def larger(self, than: int, members: Iterable[OnGpu]) -> set[str]:
        """The servers whose GPU has more memory than one that was too small."""
        others = list(members)
        sizes = await asyncio.gather(*(self.size(each) for each in others))
        return {each.id for each, size in zip(others, sizes, strict=True) if is_larger(size, than)}

    def outgrew(self, workflow: str, gpu_bytes: int) -> None:
        """It did not fit into a GPU of this size, though it had that to itself."""
        self._outgrown[workflow] = max(self._outgrown.get(workflow, 0), gpu_bytes)

    def is_outgrown(self, workflow: str) -> bool:
        """Whether there is a GPU that it did not fit into."""
        return workflow in self._outgrown

    def takes_from_pinned(self, bucket: Bucket, member: OnGpu, members: Iterable[OnGpu]) -> bool:
        """Whether a job there would leave too little of its GPU for a workflow that stays loaded on another server."""
        gpu = member.gpu
        usable = self.usable(gpu) if gpu is not None else None
        if gpu is None or usable is None or self._is_guess(bucket):
            return False
        pinned = [each for each in members if each.gpu == gpu and each.id != member.id and each.pinned is not None]
        held = sum(self._held.get(each.id, 0) for each in pinned)
        return held > 0 and held + self.need(bucket, gpu) > usable

    def too_small(self, workflow: str, members: Iterable[OnGpu]) -> frozenset[str]:
        """Of these servers, those on whose GPUs it is known not to fit; none while all of them are."""
        if (outgrown := self._outgrown.get(workflow)) is None:
            return frozenset()
        sizes = {each.id: self._total.get(_place(each)) for each in members}
        small = frozenset(id_ for id_, size in sizes.items() if is_too_small(size, outgrown))
        return small if any(is_larger(size, outgrown) for size in sizes.values()) else frozenset()

    def _may_hold(self, member: OnGpu, usable: int) -> int:
        """No more than all that it ran since it was started or emptied."""
        ran = sum(usable if (known := self.known_need(each)) is None else known for each in member.loaded)
        return max(ran, self._held.get(member.id, 0))

    async def measure(self, member: OnGpu, members: Iterable[OnGpu]) -> Memory | None:
        """Ask a server what it and its GPU hold."""
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
        """What all servers of a GPU have told at one look. One that does not answer may just load a model, which would
        count as another program's; and so would what is loaded between the first answer and the last."""
        told = [each for each in found if each is not None]
        if told and len(told) == len(found):
            taken = told[0].total - max(each.free for each in told)
            self._foreign[place] = max(taken - sum(each.held for each in told), 0)

    async def measure_gpu(self, member: OnGpu, members: Iterable[OnGpu]) -> Memory | None:
        """Ask all servers of a GPU, so that it is known what other programs hold of it."""
        here = [member, *(each for each in members if _place(each) == _place(member) and each.id != member.id)]
        found = await asyncio.gather(*(self.measure(each, here) for each in here))
        self.note_foreign(_place(member), found)
        return found[0]

    async def held_by_others(self, member: OnGpu, members: Collection[OnGpu]) -> int:
        """What other programs hold of a server's GPU now."""
        await self.measure_gpu(member, members)
        return self.others(_place(member), processes=sum(_place(each) == _place(member) for each in members))

    async def learn(self, workflow: str, member: OnGpu, members: Iterable[OnGpu]) -> None:
        """A server has just run this workflow: see what it holds for that. The next run may ask for larger pictures, or
        find fewer models of others there, so that what is known is looked at again."""
        if self.known_need(workflow) is not None and self._clock() < self._learns_at.get(member.id, 0.0):
            return
        self._learns_at[member.id] = self._clock() + LEARN_SECONDS
        found = await self.measure_gpu(member, members)
        if found is not None:
            here = {*member.loaded, *(each.workflow_hash for each in member.buckets)}
            self.note(workflow, found.held, is_exact=here <= {workflow})

    def grew(self, workflow: str, held: int) -> None:
        """A server on which nothing else has run holds so much now. That is no news of one that is not known: it may
        only have begun."""
        if workflow in self._exact:
            self._exact[workflow] = max(self._exact[workflow], held)

    def note(self, workflow: str, held: int, *, is_exact: bool) -> None:
        """`is_exact` is whether nothing but this workflow has run there since it was started or emptied."""
        if is_exact:
            self._exact[workflow] = max(self._exact.get(workflow, 0), held)
        else:
            self._bound[workflow] = min(self._bound.get(workflow, held), held)

    def ran_out(self, workflow: str) -> None:
        """It gets its GPU to itself for a while."""
        self._alone[workflow] = self._clock() + ALONE_SECONDS

    def forget(self, member: OnGpu) -> None:
        """A server is gone, or new: it holds nothing."""
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
        """Let everybody on the GPU that does nothing let go of what they hold, this server too."""
        idle = [each for each in members if each.gpu is not None and each.gpu == member.gpu and not each.buckets]
        for each in (*idle, member):
            found = await self._ask(each)
            self._held[each.id] = found.held if found is not None else 0
            if self._held[each.id]:
                await self._unload(each)
            elif each.comfyui is not None:
                # what nobody tells of is let go of as well
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
            for _ in range(UNLOAD_TRIES):
                found = memory_in(await member.comfyui.system_stats())
                if found is None or found.held < before:
                    self._held[member.id] = 0 if found is None else found.held
                    log.info("pool.unloaded", client_id=member.id, gpu=member.gpu, bytes=before)
                    return
                await asyncio.sleep(UNLOAD_PAUSE_SECONDS)
        log.warning("pool.not_unloaded", client_id=member.id, gpu=member.gpu, bytes=before)


def _place(member: OnGpu) -> str:
    """Its GPU, or itself where nobody has said that it shares one."""
    return member.gpu or member.id


def _emptied(member: OnGpu) -> None:
    member.warm.clear()
    member.loaded.clear()
    member.cached = member.made = None
