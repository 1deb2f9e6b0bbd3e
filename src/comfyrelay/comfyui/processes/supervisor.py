"""Keeps ComfyUI processes running on the GPUs of this machine: starts, watches, restarts and stops them."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from time import monotonic

import structlog

from comfyrelay.comfyui.processes import mps, state_files
from comfyrelay.comfyui.processes.gpu_processes import GpuProcesses
from comfyrelay.comfyui.processes.gpus import LocalGpu, find_gpus
from comfyrelay.comfyui.processes.launch import empty_folders, launch, lend_inputs, make_folders
from comfyrelay.comfyui.processes.log import NAME as LOG_NAME
from comfyrelay.comfyui.processes.log import ProcessLog
from comfyrelay.comfyui.processes.options import Care
from comfyrelay.comfyui.processes.process import GRACE_SECONDS, ManagedProcess
from comfyrelay.errors import ConfigurationError, NotFound, NotStarted
from comfyrelay.http_client import free_port
from comfyrelay.retry import Backoff, Retries
from comfyrelay.system.commands import detached

log = structlog.get_logger(__name__)

# As many of its last lines are told as the reason of its end.
TOLD_LINES = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Timings:
    look_seconds: float = 0.5
    # how often one that is up is asked, and after how long without an answer, and without a word, it counts as stuck
    check_seconds: float = 10.0
    silent_seconds: float = 120.0
    # the same while it starts: custom nodes may install things, and say so
    start_silent_seconds: float = 300.0
    first_pause_seconds: float = 1.0
    longest_pause_seconds: float = 60.0
    # who was up for so long begins anew with short pauses
    steady_seconds: float = 60.0
    # so many starts in a row that never came up are enough for a while
    failed_starts: int = 3
    given_up_seconds: float = 300.0


class ProcessState(StrEnum):
    STARTING = "starting"
    UP = "up"
    # until the next try
    WAITING = "waiting"
    GIVEN_UP = "given up"
    STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a process ended that nobody had asked to."""

    at: float
    reason: str
    # each with the time at which it was said
    said: Sequence[tuple[float, str]]

    def lines_since(self, began: float) -> list[str]:
        """What it said last of a run that began then: before that it spoke of somebody else's."""
        return [line for at, line in self.said if at >= began]


@dataclass(kw_only=True, eq=False)
class KeptProcess:
    """A place for one process, which keeps over restarts its name, GPU and folder, and its port if that is free."""

    name: str
    gpu: LocalGpu
    folder: Path
    log: ProcessLog
    url: str = ""
    state: ProcessState = ProcessState.STARTING
    reason: str | None = None
    starts: int = 0
    has_come_up: bool = False
    last_ending: Ending | None = None
    # somebody wants it to be started anew, and why
    wanted_anew: str | None = None
    # its process and what that has started, by process id, with when each was started
    family: Mapping[int, float] = field(default_factory=dict)
    # files of its user that it cannot find
    not_lent: set[str] = field(default_factory=set)
    first_outcome: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None

    @property
    def why_away(self) -> str | None:
        """Why it cannot be used now, in words for whoever runs this machine."""
        match self.state:
            case ProcessState.UP:
                return None
            case ProcessState.STARTING if self.reason is None:
                return f"{self.name} is starting."
            case _:
                return self.reason


class Keeper:
    """`on_url` hears of each process that is given another address, before it is started there."""

    def __init__(
        self,
        care: Care,
        *,
        folder: Path,
        on_url: Callable[[KeptProcess], None] = lambda _kept: None,
        gpus: Sequence[LocalGpu] | None = None,
        timings: Timings | None = None,
    ) -> None:
        self._care = care
        self._folder = folder
        self._on_url = on_url
        self._gpus = gpus
        self._timings = timings or Timings()
        self._kept: dict[str, KeptProcess] = {}
        self._install, self._python = care.resolved()
        self._mps = mps.Mps(care, folder, restart=self._restart_for_mps)

    async def open(self) -> None:
        """End what an earlier life has left, and begin to start as many as are wanted on each GPU."""
        await asyncio.to_thread(self._end_earlier)
        if self._gpus is None:
            self._gpus = await asyncio.to_thread(find_gpus, self._care.arguments)
        await self._mps.open(self._gpus)
        for gpu in self._gpus:
            for _ in range(self._care.first_count):
                self._begin(gpu)

    async def close(self) -> None:
        """Stop all of them; returns when none is left."""
        await asyncio.gather(*(self._end(each) for each in self.kept))
        await self._mps.close()

    @property
    def kept(self) -> Sequence[KeptProcess]:
        return tuple(self._kept.values())

    def find(self, name: str) -> KeptProcess | None:
        return self._kept.get(name)

    def gpus(self) -> Sequence[GpuProcesses]:
        """Each GPU with the addresses of those on it that are up or starting."""
        counted = (ProcessState.UP, ProcessState.STARTING, ProcessState.WAITING)
        return [
            GpuProcesses(
                key=gpu.key,
                name=gpu.name,
                memory_bytes=gpu.memory_bytes,
                processes=tuple(kept.url for kept in self.kept if kept.gpu is gpu and kept.state in counted),
            )
            for gpu in self._gpus or ()
        ]

    async def add(self, gpu_key: str) -> KeptProcess:
        """Start one more on a GPU, and return once it answers; `NotStarted` says why it does not."""
        kept = self._begin(self._gpu(gpu_key))
        try:
            await asyncio.shield(kept.first_outcome)
        except BaseException:
            await self._end(kept)
            raise
        return kept

    async def remove(self, name: str) -> None:
        """Stop one, at once."""
        if (kept := self.find(name)) is not None:
            await self._end(kept)

    def restart(self, name: str, why: str) -> None:
        """Its GPU is in a bad state, or a run of it is stuck: it is started anew, unless it is starting already."""
        kept = self.find(name)
        # not by its state: a job may have found it before we have
        if kept is not None and kept.has_come_up:
            kept.wanted_anew = why
            kept.changed.set()

    async def run_begins(self, name: str) -> None:
        """Somebody has reached it, maybe before we have: if it dies now it comes back at the same address, so that who
        waits there is told how it ended."""
        if (kept := self.find(name)) is not None:
            kept.has_come_up = True
            await self._lend_inputs(kept)

    async def _lend_inputs(self, kept: KeptProcess) -> None:
        """Let it find what its user has put into ComfyUI's own input folder since."""
        left = await asyncio.to_thread(lend_inputs, self._install.data / "input", kept.folder / "input")
        if set(left) - kept.not_lent:
            log.warning("comfyui.inputs_not_lent", name=kept.name, files=left[:TOLD_LINES], count=len(left))
        kept.not_lent = set(left)

    async def ending_of(self, name: str, *, since: float, seconds: float) -> Ending | None:
        """How it ended after `since`, if it does within so long: who notices first waits for the other."""
        kept = self.find(name)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while kept is not None:
                    if kept.last_ending is not None and kept.last_ending.at >= since:
                        return kept.last_ending
                    await asyncio.sleep(self._timings.look_seconds / 10)
        return None

    def _gpu(self, key: str) -> LocalGpu:
        found = next((each for each in self._gpus or () if each.key == key), None)
        if found is None:
            raise NotFound(f"This machine has no GPU {key}.")
        return found

    def _begin(self, gpu: LocalGpu) -> KeptProcess:
        number = next(number for number in range(1, len(self._kept) + 2) if f"comfyui-{number}" not in self._kept)
        name = f"comfyui-{number}"
        folder = self._folder / name
        kept = KeptProcess(name=name, gpu=gpu, folder=folder, log=ProcessLog(folder / LOG_NAME))
        # nobody need wait for it
        kept.first_outcome.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._kept[name] = kept
        self._take_port(kept)
        kept.task = asyncio.create_task(self._keep(kept))
        return kept

    async def _end(self, kept: KeptProcess) -> None:
        if kept.task is not None:
            kept.task.cancel()
            await asyncio.gather(kept.task, return_exceptions=True)
        await self._mps.forget(kept.name)
        self._move(kept, ProcessState.STOPPED)
        kept.first_outcome.cancel()
        self._kept.pop(kept.name, None)

    async def _keep(self, kept: KeptProcess) -> None:
        """Until canceled: start, watch, and start again."""
        timings = self._timings
        failed_starts = 0
        # without jitter: nothing else on this machine restarts at the same time
        retries = Retries(
            Backoff(
                first_seconds=timings.first_pause_seconds, longest_seconds=timings.longest_pause_seconds, jitter=0.0
            )
        )
        while True:
            self._move(kept, ProcessState.STARTING, kept.reason)
            began = monotonic()
            process: ManagedProcess | None = None
            try:
                process = await self._start(kept)
                self._note(kept, await process.family())
                reason = await self._until_up(kept, process)
                came_up = reason is None
                if came_up:
                    began = monotonic()
                    failed_starts = 0
                    self._mps.came_up(kept.name)
                    self._move(kept, ProcessState.UP)
                    if not kept.first_outcome.done():
                        kept.first_outcome.set_result(None)
                    reason = await self._until_down(kept, process)
            except NotStarted as error:
                came_up, reason = False, error.detail
            except OSError as error:
                came_up, reason = False, f"ComfyUI's folder {kept.folder} cannot be used: {error.strerror}."
            except Exception as error:
                log.exception("comfyui.broke", name=kept.name)
                came_up, reason = False, f"ComfyUI could not be watched ({type(error).__name__})."
            finally:
                if process is not None:
                    await process.stop()
            is_early = process is not None and (not came_up or monotonic() - began < timings.steady_seconds)
            if await self._ended_for_mps(kept, str(reason), is_early=is_early and kept.wanted_anew is None):
                continue
            failed_starts += not came_up
            if came_up and monotonic() - began >= timings.steady_seconds:
                retries.reset()
            await self._pause(
                kept, str(reason), retries.next_delay(), is_given_up=failed_starts >= timings.failed_starts
            )

    async def _ended_for_mps(self, kept: KeptProcess, reason: str, *, is_early: bool) -> bool:
        """Whether MPS is why it ended, so that it is started again at once: that counts as nobody's failure."""
        if not await self._mps.part(kept.name, lines=kept.log.last_lines, is_early=is_early):
            return False
        kept.last_ending = Ending(at=monotonic(), reason=reason, said=kept.log.timed_lines[-TOLD_LINES:])
        kept.reason = reason
        return True

    def _restart_for_mps(self, names: Collection[str], why: str) -> None:
        """Also those that are starting, once they are up."""
        for each in self.kept:
            if each.name in names:
                each.wanted_anew = why
                each.changed.set()

    async def _start(self, kept: KeptProcess) -> ManagedProcess:
        await asyncio.to_thread(make_folders, kept.folder)
        await self._lend_inputs(kept)
        sharing = await self._mps.join(kept.name, kept.gpu.key)
        if kept.starts:
            self._take_port(kept)
        kept.starts += 1
        kept.wanted_anew = None
        kept.changed.clear()
        made = launch(
            self._install,
            python=self._python,
            arguments=self._care.arguments,
            gpu=kept.gpu,
            folder=kept.folder,
            port=int(kept.url.rpartition(":")[2]),
        )
        made.environment.update(sharing)
        log.info("comfyui.starting", name=kept.name, url=kept.url, gpu=kept.gpu.name or kept.gpu.key)
        return await ManagedProcess.start(made, kept.log)

    async def _until_up(self, kept: KeptProcess, process: ManagedProcess) -> str | None:
        """Why it does not come up; nothing when it has."""
        while not process.ended.done():
            is_up = await process.answers()
            self._note(kept, await process.family())
            if is_up:
                return None
            if monotonic() - process.log.spoke_at > self._timings.start_silent_seconds:
                return "ComfyUI did not answer, and said nothing for too long while it started."
            await asyncio.wait({process.ended}, timeout=self._timings.look_seconds)
        return f"ComfyUI ended while it started ({process.how_it_ended})."

    async def _until_down(self, kept: KeptProcess, process: ManagedProcess) -> str:
        """Wait until it has ended, is stuck, or is wanted anew; returns why."""
        heard_at = monotonic()
        while not process.ended.done():
            asked = asyncio.create_task(kept.changed.wait())
            try:
                await asyncio.wait(
                    {process.ended, asked},
                    timeout=self._timings.check_seconds,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                asked.cancel()
            if kept.wanted_anew is not None and not process.ended.done():
                return kept.wanted_anew
            if not process.ended.done() and await process.answers():
                heard_at = monotonic()
            if not process.ended.done():
                self._note(kept, await process.family())
            # one that prints its progress works, however busy it is
            silent = monotonic() - max(heard_at, process.log.spoke_at)
            if not process.ended.done() and silent > self._timings.silent_seconds:
                return f"ComfyUI has not answered for {silent:.0f} s."
        return f"ComfyUI ended ({process.how_it_ended})."

    async def _pause(self, kept: KeptProcess, reason: str, seconds: float, *, is_given_up: bool) -> None:
        lines = kept.log.last_lines[-TOLD_LINES:]
        kept.last_ending = Ending(at=monotonic(), reason=reason, said=kept.log.timed_lines[-TOLD_LINES:])
        told = f"{reason} Its last lines: {' | '.join(lines[-3:])}" if lines else reason
        if not kept.first_outcome.done():
            kept.first_outcome.set_exception(NotStarted(told, raw="\n".join(lines)))
        if is_given_up:
            seconds = self._timings.given_up_seconds
            log.error("comfyui.given_up", name=kept.name, why=reason, last_lines=lines, again_seconds=seconds)
            more = f"It did not come up {self._timings.failed_starts} times, and is tried again in {seconds:.0f} s."
            self._move(
                kept, ProcessState.GIVEN_UP, f"{told} {more} All of its log: comfyrelay comfyui logs {kept.name}"
            )
        else:
            log.warning("comfyui.ended", name=kept.name, why=reason, last_lines=lines, again_seconds=seconds)
            self._move(kept, ProcessState.WAITING, told)
        await asyncio.sleep(seconds)

    def _take_port(self, kept: KeptProcess) -> None:
        """The same again if it came up there; else somebody may have it who keeps it from coming up."""
        port = free_port(int(kept.url.rpartition(":")[2]) if kept.has_come_up else 0)
        kept.has_come_up = False
        url = f"http://127.0.0.1:{port}"
        if url != kept.url:
            kept.url = url
            self._on_url(kept)

    def _move(self, kept: KeptProcess, state: ProcessState, reason: str | None = None) -> None:
        kept.state, kept.reason = state, reason
        if state is ProcessState.UP:
            kept.has_come_up = True
            log.info("comfyui.up", name=kept.name, url=kept.url)
        self._note(kept, {})

    def _note(self, kept: KeptProcess, family: Mapping[int, float]) -> None:
        """Written down for who only looks, and for our next life; a full disk does not stop anybody. Who was noted
        before stays so until they are gone."""
        kept.family = family or kept.family
        known = state_files.read(kept.folder)
        living = known.living if known is not None else ()
        note = state_files.ProcessNote(
            name=kept.name,
            url=kept.url,
            gpu=kept.gpu.name or kept.gpu.key,
            state=kept.state.value,
            reason=kept.reason,
            restarts=max(kept.starts - 1, 0),
            processes={str(pid): started for pid, started in (*living, *family.items())},
            mps=self._mps.has(kept.name),
        )
        if note != known:
            with suppress(OSError):
                state_files.write(kept.folder, note)

    def _end_earlier(self) -> None:
        """What an earlier life has left: processes, where even their launcher was killed, and files."""
        for folder in sorted(self._folder.glob("comfyui-*")):
            note = state_files.read(folder)
            for pid, started in note.living if note is not None else ():
                log.warning("comfyui.left_behind", name=folder.name, pid=pid)
                if not detached.end(pid=pid, started=started, seconds=GRACE_SECONDS):
                    raise ConfigurationError(f"Process {pid} of an earlier ComfyUI cannot be ended: end it by hand.")
            with suppress(OSError):
                empty_folders(folder)
        mps.end_earlier(self._folder)
