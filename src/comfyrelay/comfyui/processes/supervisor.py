"""Start, watch, restart and stop ComfyUI processes on the GPUs of this machine."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from time import monotonic

import structlog

from comfyrelay.comfyui.processes import mps, state_files
from comfyrelay.comfyui.processes.gpus import GpuProcesses, LocalGpu, find_gpus
from comfyrelay.comfyui.processes.launch import empty_folders, launch, link_inputs, make_folders
from comfyrelay.comfyui.processes.log import NAME as LOG_NAME
from comfyrelay.comfyui.processes.log import NO_DRIVER, ProcessLog, explain_exit
from comfyrelay.comfyui.processes.options import ManagedOptions
from comfyrelay.comfyui.processes.process import GRACE_SECONDS, ComfyProcess
from comfyrelay.errors import ConfigurationError, NotFound, NotStarted
from comfyrelay.http_client import free_port
from comfyrelay.retry import Backoff, Retries
from comfyrelay.system.commands import detached

log = structlog.get_logger(__name__)

# Number of log lines to report with an exit.
REPORTED_LINES = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Timings:
    poll_seconds: float = 0.5
    # Interval between checks, and how long a process may neither respond nor print before it counts as stuck.
    check_seconds: float = 10.0
    silent_seconds: float = 120.0
    # The same limit during startup, when custom nodes may install packages, which prints lines.
    start_silent_seconds: float = 300.0
    first_pause_seconds: float = 1.0
    longest_pause_seconds: float = 60.0
    # Uptime after which the restart backoff is reset.
    steady_seconds: float = 60.0
    # Consecutive failed starts before a long pause.
    failed_starts: int = 3
    given_up_seconds: float = 300.0


class ProcessState(StrEnum):
    STARTING = "starting"
    UP = "up"
    # The supervisor is waiting before the next start.
    WAITING = "waiting"
    GIVEN_UP = "given up"
    STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessExit:
    """An unexpected exit of a process."""

    at: float
    reason: str
    # The last log lines, each with the time when it was printed.
    lines: Sequence[tuple[float, str]]

    def lines_since(self, began: float) -> list[str]:
        """Return the last lines printed since a run began. Earlier lines belong to other runs."""
        return [line for at, line in self.lines if at >= began]


@dataclass(kw_only=True, eq=False)
class ManagedProcess:
    """A supervised ComfyUI. Its name, GPU and folder do not change on restarts; its port changes only if it is
    taken."""

    name: str
    gpu: LocalGpu
    folder: Path
    log: ProcessLog
    url: str = ""
    state: ProcessState = ProcessState.STARTING
    reason: str | None = None
    starts: int = 0
    has_come_up: bool = False
    last_exit: ProcessExit | None = None
    # Reason for the requested restart, if any.
    restart_reason: str | None = None
    # Start times by process id of the process and its descendants.
    process_tree: Mapping[int, float] = field(default_factory=dict)
    # Files of the user's input folder that could not be linked.
    unlinked_inputs: set[str] = field(default_factory=set)
    first_start: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None

    @property
    def unavailable_reason(self) -> str | None:
        """The reason why this ComfyUI cannot be used now, as a sentence for the operator."""
        if self.state is ProcessState.STARTING and self.reason is None:
            return f"{self.name} is starting."
        return None if self.state is ProcessState.UP else self.reason


class Supervisor:
    """Keep ComfyUI processes running.

    `on_url` is called before a process starts at a new address, and `on_up` when a process responds.
    """

    def __init__(
        self,
        options: ManagedOptions,
        *,
        folder: Path,
        on_url: Callable[[ManagedProcess], None] = lambda _managed: None,
        on_up: Callable[[ManagedProcess], None] = lambda _managed: None,
        gpus: Sequence[LocalGpu] | None = None,
        timings: Timings | None = None,
    ) -> None:
        self._options = options
        self._folder = folder
        self._on_url = on_url
        self._on_up = on_up
        self._gpus = gpus
        self._timings = timings or Timings()
        self._processes: dict[str, ManagedProcess] = {}
        self._install, self._python = options.resolve()
        self._mps = mps.Mps(options, folder, restart=self._restart_for_mps)

    async def open(self) -> None:
        """Stop orphaned processes and start the configured number on each GPU."""
        await asyncio.to_thread(self._stop_orphans)
        if self._gpus is None:
            self._gpus = await asyncio.to_thread(find_gpus, self._options.arguments)
        await self._mps.open(self._gpus)
        for gpu in self._gpus:
            for _ in range(self._options.first_count):
                self._create(gpu)

    async def close(self) -> None:
        """Stop all processes and wait until they have exited."""
        await asyncio.gather(*(self._stop(managed) for managed in self.processes))
        await self._mps.close()

    @property
    def version(self) -> str | None:
        return self._install.version

    @property
    def processes(self) -> Sequence[ManagedProcess]:
        return tuple(self._processes.values())

    def find(self, name: str) -> ManagedProcess | None:
        return self._processes.get(name)

    def gpus(self) -> Sequence[GpuProcesses]:
        """Return each GPU with the addresses of its running or starting processes."""
        counted = (ProcessState.UP, ProcessState.STARTING, ProcessState.WAITING)
        return [
            GpuProcesses(
                key=gpu.key,
                name=gpu.name,
                memory_bytes=gpu.memory_bytes,
                processes=tuple(
                    managed.url for managed in self.processes if managed.gpu is gpu and managed.state in counted
                ),
            )
            for gpu in self._gpus or ()
        ]

    async def add(self, gpu_key: str) -> ManagedProcess:
        """Start another process on a GPU and wait until it responds.

        Raises `NotStarted` with the reason if it does not.
        """
        gpu = next((gpu for gpu in self._gpus or () if gpu.key == gpu_key), None)
        if gpu is None:
            raise NotFound(f"This machine has no GPU {gpu_key}.")
        managed = self._create(gpu)
        try:
            await asyncio.shield(managed.first_start)
        except BaseException:
            await self._stop(managed)
            raise
        return managed

    async def remove(self, name: str) -> None:
        """Stop a process immediately."""
        if (managed := self.find(name)) is not None:
            await self._stop(managed)

    def restart(self, name: str, why: str) -> None:
        """Restart a process whose GPU is in a bad state or whose run is stuck, unless it is already starting."""
        managed = self.find(name)
        # The state may be outdated: a job may have reached the process before our own check.
        if managed is not None and managed.has_come_up:
            managed.restart_reason = why
            managed.changed.set()

    async def mark_run_started(self, name: str) -> None:
        """Record that a run started on this process, possibly before our own check.

        If the process exits now, it restarts at the same address, so that the waiting run learns how it exited.
        """
        if (managed := self.find(name)) is not None:
            managed.has_come_up = True
            await self._link_inputs(managed)

    async def _link_inputs(self, managed: ManagedProcess) -> None:
        """Link files that the user has added to ComfyUI's own input folder."""
        missing = await asyncio.to_thread(link_inputs, self._install.data / "input", managed.folder / "input")
        if set(missing) - managed.unlinked_inputs:
            log.warning(
                "comfyui.inputs_not_linked", name=managed.name, files=missing[:REPORTED_LINES], count=len(missing)
            )
        managed.unlinked_inputs = set(missing)

    async def wait_for_exit(self, name: str, *, since: float, seconds: float) -> ProcessExit | None:
        """Wait up to `seconds` for an exit after `since`. The run may notice the exit before the supervisor does."""
        managed = self.find(name)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while managed is not None:
                    if managed.last_exit is not None and managed.last_exit.at >= since:
                        return managed.last_exit
                    await asyncio.sleep(self._timings.poll_seconds / 10)
        return None

    def _create(self, gpu: LocalGpu) -> ManagedProcess:
        names = (f"comfyui-{number}" for number in count(1))
        name = next(name for name in names if name not in self._processes)
        folder = self._folder / name
        managed = ManagedProcess(name=name, gpu=gpu, folder=folder, log=ProcessLog(folder / LOG_NAME))
        # Mark the exception as retrieved: not every caller waits for the first start.
        managed.first_start.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._processes[name] = managed
        self._assign_port(managed)
        managed.task = asyncio.create_task(self._supervise(managed))
        return managed

    async def _stop(self, managed: ManagedProcess) -> None:
        if managed.task is not None:
            managed.task.cancel()
            await asyncio.gather(managed.task, return_exceptions=True)
        await self._mps.remove(managed.name)
        self._set_state(managed, ProcessState.STOPPED)
        managed.first_start.cancel()
        self._processes.pop(managed.name, None)

    async def _supervise(self, managed: ManagedProcess) -> None:
        """Start, watch and restart one process until canceled."""
        timings = self._timings
        failed_starts = 0
        # No jitter: nothing else on this machine restarts at the same time.
        retries = Retries(
            Backoff(first_seconds=timings.first_pause_seconds, max_seconds=timings.longest_pause_seconds, jitter=0.0)
        )
        while True:
            self._set_state(managed, ProcessState.STARTING, managed.reason)
            began = monotonic()
            process: ComfyProcess | None = None
            try:
                process = await self._start_process(managed)
                self._write_state(managed, await process.refresh_tree())
                reason = await self._wait_until_up(managed, process)
                came_up = reason is None
                if came_up:
                    began = monotonic()
                    failed_starts = 0
                    self._mps.mark_up(managed.name)
                    self._set_state(managed, ProcessState.UP)
                    self._on_up(managed)
                    if not managed.first_start.done():
                        managed.first_start.set_result(None)
                    reason = await self._wait_until_down(managed, process)
            except NotStarted as error:
                came_up, reason = False, error.detail
            except OSError as error:
                came_up, reason = False, f"ComfyUI's folder {managed.folder} cannot be used: {error.strerror}."
            except Exception as error:
                log.exception("comfyui.supervision_failed", name=managed.name)
                came_up, reason = False, f"Supervising ComfyUI failed ({type(error).__name__})."
            finally:
                if process is not None:
                    await process.stop()
            is_early = process is not None and (not came_up or monotonic() - began < timings.steady_seconds)
            if await self._exited_because_of_mps(
                managed, str(reason), is_early=is_early and managed.restart_reason is None
            ):
                continue
            failed_starts += not came_up
            if came_up and monotonic() - began >= timings.steady_seconds:
                retries.reset()
            await self._pause(
                managed, str(reason), retries.next_delay(), is_given_up=failed_starts >= timings.failed_starts
            )

    async def _exited_because_of_mps(self, managed: ManagedProcess, reason: str, *, is_early: bool) -> bool:
        """Whether MPS caused the exit. The process then restarts at once, and the exit does not count as a failure."""
        if not await self._mps.leave(managed.name, lines=managed.log.last_lines, is_early=is_early):
            return False
        self._record_exit(managed, reason)
        managed.reason = reason
        return True

    def _record_exit(self, managed: ManagedProcess, reason: str) -> None:
        managed.last_exit = ProcessExit(at=monotonic(), reason=reason, lines=managed.log.timed_lines[-REPORTED_LINES:])

    def _restart_for_mps(self, names: Collection[str], why: str) -> None:
        """Restart these processes. A process that is still starting is restarted after its start."""
        for managed in self.processes:
            if managed.name in names:
                managed.restart_reason = why
                managed.changed.set()

    async def _start_process(self, managed: ManagedProcess) -> ComfyProcess:
        await asyncio.to_thread(make_folders, managed.folder)
        await self._link_inputs(managed)
        sharing = await self._mps.join(managed.name, managed.gpu.key)
        if managed.starts:
            self._assign_port(managed)
        managed.starts += 1
        managed.restart_reason = None
        managed.changed.clear()
        launched = launch(
            self._install,
            python=self._python,
            arguments=self._options.arguments,
            gpu=managed.gpu,
            folder=managed.folder,
            port=int(managed.url.rpartition(":")[2]),
            variables=self._options.variables,
        )
        launched.environment.update(sharing)
        log.info("comfyui.starting", name=managed.name, url=managed.url, gpu=managed.gpu.name or managed.gpu.key)
        return await ComfyProcess.start(launched, managed.log)

    async def _wait_until_up(self, managed: ManagedProcess, process: ComfyProcess) -> str | None:
        """Wait until the process responds. Returns the reason if it does not, else `None`."""
        while not process.exited.done():
            is_up = await process.responds()
            self._write_state(managed, await process.refresh_tree())
            if is_up:
                return None
            if monotonic() - process.log.last_output_at > self._timings.start_silent_seconds:
                return "ComfyUI neither responded nor printed anything for too long during startup."
            await asyncio.wait({process.exited}, timeout=self._timings.poll_seconds)
        return f"ComfyUI exited during startup ({process.exit_description})."

    async def _wait_until_down(self, managed: ManagedProcess, process: ComfyProcess) -> str:
        """Wait until the process exits, is stuck or must restart. Returns the reason."""
        responded_at = monotonic()
        while not process.exited.done():
            restart_requested = asyncio.create_task(managed.changed.wait())
            try:
                await asyncio.wait(
                    {process.exited, restart_requested},
                    timeout=self._timings.check_seconds,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                restart_requested.cancel()
            if process.exited.done():
                break
            if managed.restart_reason is not None:
                return managed.restart_reason
            if await process.responds():
                responded_at = monotonic()
            if not process.exited.done():
                self._write_state(managed, await process.refresh_tree())
            # A process that prints progress is working, however busy it is.
            silent = monotonic() - max(responded_at, process.log.last_output_at)
            if not process.exited.done() and silent > self._timings.silent_seconds:
                return f"ComfyUI has not responded for {silent:.0f} s."
        return f"ComfyUI exited ({process.exit_description})."

    async def _pause(self, managed: ManagedProcess, reason: str, seconds: float, *, is_given_up: bool) -> None:
        lines = managed.log.last_lines[-REPORTED_LINES:]
        self._record_exit(managed, reason)
        explained = explain_exit(reason, lines)
        if explained.endswith(NO_DRIVER):
            # The traceback is less helpful.
            reason, lines = explained, []
        if not managed.first_start.done():
            managed.first_start.set_exception(NotStarted(explained, raw="\n".join(lines)))
        if is_given_up:
            seconds = self._timings.given_up_seconds
            log.error("comfyui.given_up", name=managed.name, why=reason, last_lines=lines, retry_seconds=seconds)
            more = f"It failed to start {self._timings.failed_starts} times. The next attempt is in {seconds:.0f} s."
            self._set_state(
                managed, ProcessState.GIVEN_UP, f"{explained} {more} Full log: comfyrelay comfyui logs {managed.name}"
            )
        else:
            log.warning("comfyui.exited", name=managed.name, why=reason, last_lines=lines, retry_seconds=seconds)
            self._set_state(managed, ProcessState.WAITING, explained)
        await asyncio.sleep(seconds)

    def _assign_port(self, managed: ManagedProcess) -> None:
        """Assign a port: the previous one if the process came up there. Otherwise, another program may be using it."""
        port = free_port(int(managed.url.rpartition(":")[2]) if managed.has_come_up else 0)
        managed.has_come_up = False
        url = f"http://127.0.0.1:{port}"
        if url != managed.url:
            managed.url = url
            self._on_url(managed)

    def _set_state(self, managed: ManagedProcess, state: ProcessState, reason: str | None = None) -> None:
        managed.state, managed.reason = state, reason
        if state is ProcessState.UP:
            managed.has_come_up = True
            log.info("comfyui.up", name=managed.name, url=managed.url)
        self._write_state(managed, {})

    def _write_state(self, managed: ManagedProcess, process_tree: Mapping[int, float]) -> None:
        """Write the state for readers and for our next start; a full disk is ignored.

        Processes that were recorded earlier remain recorded until they have exited.
        """
        managed.process_tree = process_tree or managed.process_tree
        known = state_files.read(managed.folder)
        alive = known.alive if known is not None else ()
        record = state_files.ProcessRecord(
            name=managed.name,
            url=managed.url,
            gpu=managed.gpu.name or managed.gpu.key,
            state=managed.state.value,
            reason=managed.reason,
            restarts=max(managed.starts - 1, 0),
            processes={str(pid): started for pid, started in (*alive, *process_tree.items())},
            mps=self._mps.is_under_mps(managed.name),
        )
        if record != known:
            with suppress(OSError):
                state_files.write(managed.folder, record)

    def _stop_orphans(self) -> None:
        """Stop processes of an earlier start if their launchers were killed as well, and remove their files."""
        for folder in sorted(self._folder.glob("comfyui-*")):
            record = state_files.read(folder)
            for pid, started in record.alive if record is not None else ():
                log.warning("comfyui.orphan_found", name=folder.name, pid=pid)
                if not detached.terminate(pid=pid, started=started, seconds=GRACE_SECONDS):
                    raise ConfigurationError(
                        f"Process {pid} of an earlier ComfyUI cannot be stopped: stop it manually."
                    )
            with suppress(OSError):
                empty_folders(folder)
        mps.stop_orphaned_daemon(self._folder)
