"""Share NVIDIA GPUs between processes through CUDA MPS where possible, and run without it where MPS fails."""

import asyncio
import json
import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import structlog

from comfyrelay.comfyui.processes.gpus import LocalGpu, query_nvidia_gpus, uuid_of
from comfyrelay.comfyui.processes.launch import child_environment
from comfyrelay.comfyui.processes.log import ProcessLog
from comfyrelay.comfyui.processes.options import ManagedOptions
from comfyrelay.system import atomic
from comfyrelay.system.commands import detached
from comfyrelay.system.commands.process_group import Child
from comfyrelay.system.files import remove_tree
from comfyrelay.system.platform import IS_LINUX

log = structlog.get_logger(__name__)

PROGRAM = "nvidia-cuda-mps-control"
PLACES = ("/usr/bin", "/usr/local/nvidia/bin")
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
LOGS = "CUDA_MPS_LOG_DIRECTORY"
NVIDIA = "CUDA_VISIBLE_DEVICES"
# CUDA looks for MPS here by default.
USUAL_PIPES = Path("/tmp/nvidia-mps")
# Folder of the log and the state file in the supervisor's folder.
FOLDER = "mps"
FILE = "daemon.json"
LOG_NAME = "mps.log"
# Compute capability of Volta. On older GPUs, clients share one address space.
MIN_CAPABILITY = (7, 0)
START_SECONDS = 20.0
COMMAND_SECONDS = 10.0
GRACE_SECONDS = 5.0
POLL_SECONDS = 0.05
# UNIX sockets are created in this folder, and their paths are limited to 108 bytes.
LONGEST_PATH = 64
_PREFIX = "comfyrelay-mps-"
# How CUDA reports MPS errors: by name, number or text.
_MPS_ERROR = re.compile(r"cudaErrorMps|CUDA_ERROR_MPS|\bMPS (?:client|server|control)\b|\b[Ee]rror:? (?:80[5-9]|810)\b")
# A fault of one process that CUDA reports to all processes on the GPU, and the MPS server's response until all of them
# have exited.
_FAULT = re.compile(
    r"illegal memory access|illegal instruction|misaligned address|unspecified launch failure|device-side assert"
    r"|cudaErrorMpsServerNotReady|CUDA_ERROR_MPS_SERVER_NOT_READY|MPS server is not ready|\b[Ee]rror:? 807\b"
)
# After this number of faults within this time, MPS is disabled. Without MPS, each fault affects only one process.
MAX_FAULTS = 3
FAULTS_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class MpsPlan:
    """Whether processes run under MPS, and why. `program` is the daemon to start, if any."""

    why: str
    is_used: bool = False
    program: Path | None = None


def plan(
    options: ManagedOptions, gpus: Sequence[LocalGpu], environment: Mapping[str, str] = os.environ
) -> MpsPlan | None:
    """Decide whether processes on these GPUs use MPS. Returns `None` where MPS does not apply."""
    if options.per_gpu == 1 or not IS_LINUX or not all(NVIDIA in gpu.variables for gpu in gpus):
        return None
    if options.mps == "off":
        return MpsPlan(why=f"Without NVIDIA MPS: {options.setting}COMFYUI_MPS is off.")
    if environment.get(PIPES):
        return MpsPlan(why=f"They share the GPU through the NVIDIA MPS of {PIPES}.", is_used=True)
    if _is_running_at(USUAL_PIPES):
        return MpsPlan(why=f"They share the GPU through the NVIDIA MPS at {USUAL_PIPES}.", is_used=True)
    return _plan_own_daemon({gpu.key for gpu in gpus}, environment)


def _plan_own_daemon(keys: set[str], environment: Mapping[str, str]) -> MpsPlan:
    found = shutil.which(PROGRAM, path=os.pathsep.join([environment.get("PATH", os.defpath), *PLACES]))
    if found is None:
        return MpsPlan(why=f"Without NVIDIA MPS: {PROGRAM}, which comes with NVIDIA's driver, is not installed.")
    if not all(key.startswith("GPU-") for key in keys):
        return MpsPlan(
            why="Without NVIDIA MPS: the daemon needs the UUIDs of the GPUs. Set them in CUDA_VISIBLE_DEVICES."
        )
    if old := _too_old(keys):
        return MpsPlan(why=f"Without NVIDIA MPS: it needs GPUs of the Volta generation or later, not {old}.")
    return MpsPlan(why="They share the GPU through NVIDIA MPS.", is_used=True, program=Path(found))


def _is_running_at(pipes: Path) -> bool:
    try:
        return bool(detached.started_at(int((pipes / f"{PROGRAM}.pid").read_text())))
    except (OSError, ValueError):
        return False


def _too_old(keys: set[str]) -> str | None:
    """Return the compute capability of a GPU that is too old for MPS, or `None`."""

    def capability(nvml: Any, handle: Any) -> tuple[str, tuple[int, int]]:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        return uuid_of(nvml, handle), (major, minor)

    old = [found for key, found in query_nvidia_gpus(capability) if key in keys and found < MIN_CAPABILITY]
    return f"compute capability {old[0][0]}.{old[0][1]}" if old else None


@dataclass(frozen=True, kw_only=True)
class MpsRecord:
    """The state file. `why` is for readers; the other fields are for our next start."""

    why: str
    pipes: str | None = None
    # Start time by process id.
    processes: Mapping[str, float] = field(default_factory=dict)


def read(folder: Path) -> MpsRecord | None:
    """Read the state file in a supervisor's folder."""
    try:
        return MpsRecord(**json.loads((folder / FOLDER / FILE).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def stop_orphaned_daemon(folder: Path) -> None:
    """Stop the daemon of an earlier start if its launcher was killed as well."""
    record = read(folder) or MpsRecord(why="")
    for pid, started in record.processes.items():
        if detached.is_running(pid=int(pid), started=started):
            log.warning("comfyui.mps_orphan_found", pid=int(pid))
            # A daemon that keeps running does not prevent the start of another.
            detached.terminate(pid=int(pid), started=started, seconds=GRACE_SECONDS)
    if record.pipes is not None and Path(record.pipes).name.startswith(_PREFIX):
        _remove_folder(Path(record.pipes))
    _remove_folder(folder / FOLDER)


class Mps:
    """The MPS control daemon of one supervisor. `restart` is called with the processes to restart and the reason."""

    def __init__(
        self, options: ManagedOptions, folder: Path, *, restart: Callable[[Collection[str], str], None]
    ) -> None:
        self._options = options
        self._folder = folder / FOLDER
        self._restart = restart
        self._plan: MpsPlan | None = None
        self._daemon: _Daemon | None = None
        self._watching: asyncio.Task[None] | None = None
        self._disabled_reason: str | None = None
        self._has_served = False
        # GPU of each process under MPS, and the processes that exited early under MPS and now run without MPS.
        self._clients: dict[str, str] = {}
        self._without_mps: set[str] = set()
        # Processes on a GPU that had a fault. The MPS server accepts no new clients until these have exited.
        self._faulty: set[str] = set()
        self._faults: list[float] = []
        self._changed = asyncio.Event()

    async def open(self, gpus: Sequence[LocalGpu]) -> None:
        self._plan = await asyncio.to_thread(plan, self._options, gpus)
        if self._plan is None:
            return
        why = self._plan.why
        if self._plan.program is not None:
            try:
                await asyncio.to_thread(self._folder.mkdir, mode=0o700, parents=True, exist_ok=True)
                pipes = _private_path()
                # Written before the folder exists, so that the next start removes the folder if this process is killed.
                self._write_record(why, pipes=pipes)
                self._daemon = await _Daemon.start(self._plan.program, gpus, pipes=pipes, logs=self._folder)
            except (OSError, _NotStarted) as error:
                self._disabled_reason = why = f"Without NVIDIA MPS: it could not be started ({error})."
                log.warning("comfyui.mps_failed", why=str(error))
            else:
                self._watching = asyncio.create_task(self._watch(self._daemon))
                log.info("comfyui.mps_started", pipes=str(self._daemon.pipes))
        self._write_record(why)

    async def close(self) -> None:
        """Stop the daemon. Call this after all processes under it have exited."""
        self._clients.clear()
        await self._stop_daemon()
        if self._plan is not None:
            self._write_record(self._disabled_reason or self._plan.why)

    def is_under_mps(self, name: str) -> bool:
        """Whether this process runs under MPS: ours or the operator's."""
        return name in self._clients or (self._plan is not None and self._plan.is_used and self._plan.program is None)

    async def join(self, name: str, gpu_key: str) -> dict[str, str]:
        """Return the environment variables for a process that starts now."""
        while self._faulty and self._disabled_reason is None:
            self._changed.clear()
            await self._changed.wait()
        if self._daemon is None or self._disabled_reason is not None or name in self._without_mps:
            return {}
        self._clients[name] = gpu_key
        return {PIPES: str(self._daemon.pipes), LOGS: str(self._folder)}

    def mark_up(self, name: str) -> None:
        if name in self._clients and self._disabled_reason is None:
            self._has_served = True
            # The first client starts the MPS server, so the process ids have changed.
            self._write_record(self._plan.why if self._plan is not None else "")

    async def leave(self, name: str, *, lines: Sequence[str], is_early: bool) -> bool:
        """Handle the exit of a process. Returns whether MPS caused the exit, so that the process must restart at
        once."""
        if name not in self._clients:
            # The process also fails without MPS.
            self._without_mps.discard(name)
            return False
        was_faulty = name in self._faulty
        gpu_key = self._clients[name]
        await self._detach(name)
        if self._disabled_reason is None and not was_faulty:
            self._handle_exit(name, gpu_key, lines, is_early=is_early)
            await self._stop_if_unused()
        return self._disabled_reason is not None or was_faulty or bool(_find(_FAULT, lines))

    async def remove(self, name: str) -> None:
        """Handle the exit of a process that was stopped on request."""
        self._without_mps.discard(name)
        await self._detach(name)

    async def _detach(self, name: str) -> None:
        self._clients.pop(name, None)
        self._faulty.discard(name)
        self._changed.set()
        await self._stop_if_unused()

    def _handle_exit(self, name: str, gpu_key: str, lines: Sequence[str], *, is_early: bool) -> None:
        """Restart other processes, or disable MPS, if the exit of one process requires that."""
        if (fault := _find(_FAULT, lines)) is not None:
            self._faults = [at for at in self._faults if at > monotonic() - FAULTS_SECONDS] + [monotonic()]
            if len(self._faults) >= MAX_FAULTS:
                self._disable(f"{MAX_FAULTS} GPU faults affected all processes that share the GPU")
                return
            self._faulty |= {client for client, key in self._clients.items() if key == gpu_key}
            log.warning("comfyui.mps_fault", name=name, why=fault, restarting=sorted(self._faulty))
            self._restart(self._faulty, f"{name}, which shares its GPU through NVIDIA MPS, had a GPU fault.")
        elif (mps_error := _find(_MPS_ERROR, lines)) is not None:
            self._disable(f"{name} reported: {mps_error}")
        elif is_early and not self._has_served:
            self._disable(f"{name}, the first process under it, did not start")
        elif is_early:
            self._without_mps.add(name)

    def _disable(self, why: str) -> None:
        self._disabled_reason = f"Without NVIDIA MPS: it was disabled ({why})."
        log.warning("comfyui.mps_disabled", why=why)
        self._write_record(self._disabled_reason)
        self._changed.set()
        self._restart(self._clients, f"It restarts without NVIDIA MPS: {why}.")

    async def _watch(self, daemon: "_Daemon") -> None:
        await asyncio.shield(daemon.ended)
        if self._disabled_reason is None:
            self._disable(f"its daemon {daemon.exit_description}")

    async def _stop_if_unused(self) -> None:
        if self._disabled_reason is not None and not self._clients:
            await self._stop_daemon()

    async def _stop_daemon(self) -> None:
        daemon, self._daemon = self._daemon, None
        if self._watching is not None:
            self._watching.cancel()
        if daemon is not None:
            await daemon.stop()
            self._write_record(self._disabled_reason or "")

    def _write_record(self, why: str, *, pipes: Path | None = None) -> None:
        """Write the state file; a full disk is ignored. `pipes` is for a daemon that is about to start."""
        record = MpsRecord(why=why, pipes=None if pipes is None else str(pipes))
        if self._daemon is not None:
            record = MpsRecord(why=why, pipes=str(self._daemon.pipes), processes=self._daemon.pids)
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic.write(self._folder / FILE, json.dumps(asdict(record)).encode(), mode=0o600)


def _find(pattern: re.Pattern[str], lines: Sequence[str]) -> str | None:
    return next((line.strip() for line in reversed(lines) if pattern.search(line)), None)


class _NotStarted(Exception):
    pass


class _Daemon:
    """NVIDIA's control daemon, in the foreground under our launcher, which stops the daemon even if we are killed."""

    def __init__(
        self, child: Child, program: Path, pipes: Path, environment: Mapping[str, str], log: ProcessLog
    ) -> None:
        self.pipes = pipes
        self._child = child
        self._program = program
        self._environment = environment
        self._log = log
        self.ended = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, program: Path, gpus: Sequence[LocalGpu], *, pipes: Path, logs: Path) -> "_Daemon":
        await asyncio.to_thread(pipes.mkdir, mode=0o700)
        environment = {
            **child_environment(),
            PIPES: str(pipes),
            LOGS: str(logs),
            # By UUID, so that the daemon and its clients refer to the same GPUs.
            NVIDIA: ",".join(gpu.variables[NVIDIA] for gpu in gpus),
        }
        try:
            child = await Child.start(
                [str(program), "-f"], folder=logs, environment=environment, grace_seconds=GRACE_SECONDS
            )
        except OSError:
            _remove_folder(pipes)
            raise
        daemon = cls(child, program, pipes, environment, ProcessLog(logs / LOG_NAME))
        try:
            await daemon._wait_until_ready()
        except BaseException:
            await daemon.stop()
            raise
        return daemon

    @property
    def pids(self) -> dict[str, float]:
        """Start times by process id of all processes that must exit when the daemon stops."""
        own = self._child.pid
        return {str(pid): at for pid, at in {own: detached.started_at(own), **detached.descendants(own)}.items() if at}

    @property
    def exit_description(self) -> str:
        return "; ".join([f"exited with code {self._child.exit_code}", *self._log.last_lines[-3:]])

    async def stop(self) -> None:
        """Ask the daemon to quit, then terminate it, and wait until it has exited."""
        if not self.ended.done():
            await asyncio.to_thread(self._send_command, "quit")
        self._child.close_input()
        await asyncio.wait({self.ended}, timeout=2 * GRACE_SECONDS + COMMAND_SECONDS)
        await asyncio.to_thread(_remove_folder, self.pipes)

    async def _wait_until_ready(self) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                while not self.ended.done():
                    if await asyncio.to_thread(self._send_command, "get_server_list"):
                        return
                    await asyncio.wait({self.ended}, timeout=POLL_SECONDS)
        except TimeoutError:
            raise _NotStarted(f"it did not respond within {START_SECONDS:.0f} s") from None
        raise _NotStarted(f"it {self.exit_description}")

    def _send_command(self, command: str) -> bool:
        """Send a command to the daemon. Returns whether the daemon accepted it."""
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                [str(self._program)],
                input=f"{command}\n".encode(),
                capture_output=True,
                env=dict(self._environment),
                timeout=COMMAND_SECONDS,
                check=True,
            )
            return True
        return False

    async def _listen(self) -> None:
        while piece := await self._child.read():
            self._log.write(piece)
        await self._child.wait()


def _private_path() -> Path:
    """Choose a short path for a new folder."""
    name = f"{_PREFIX}{secrets.token_hex(4)}"
    folder = Path(tempfile.gettempdir()) / name
    return folder if len(os.fsencode(folder)) <= LONGEST_PATH else Path("/tmp") / name


def _remove_folder(folder: Path) -> None:
    with suppress(OSError):
        remove_tree(folder)
