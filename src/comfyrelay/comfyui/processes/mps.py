"""Has processes share an NVIDIA GPU through CUDA MPS where that is possible, and does without where it fails."""

import asyncio
import json
import os
import re
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

from comfyrelay.comfyui.processes.environment import without_ours
from comfyrelay.comfyui.processes.gpus import LocalGpu, of_each_nvidia
from comfyrelay.comfyui.processes.log import ProcessLog
from comfyrelay.comfyui.processes.options import Care
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
# Where CUDA looks for it when nobody says otherwise.
USUAL_PIPES = Path("/tmp/nvidia-mps")
# In the folder of a keeper: what it logs, and what is written down of it.
FOLDER = "mps"
FILE = "daemon.json"
LOG_NAME = "mps.log"
# Volta: before it, clients share one address space.
LEAST_CAPABILITY = (7, 0)
START_SECONDS = 20.0
ASK_SECONDS = 10.0
GRACE_SECONDS = 5.0
LOOK_SECONDS = 0.05
# UNIX sockets are made in its folder, and their paths have 108 bytes at most.
LONGEST_PATH = 64
_PREFIX = "comfyrelay-mps-"
# As CUDA says it, by name, by number, or in words.
_BLAMED = re.compile(r"cudaErrorMps|CUDA_ERROR_MPS|\bMPS (?:client|server|control)\b|\b[Ee]rror:? (?:80[5-9]|810)\b")
# What is a fault of one and reported to all on the GPU, and what a server says until the last of them has ended.
_FAULT = re.compile(
    r"illegal memory access|illegal instruction|misaligned address|unspecified launch failure|device-side assert"
    r"|cudaErrorMpsServerNotReady|CUDA_ERROR_MPS_SERVER_NOT_READY|MPS server is not ready|\b[Ee]rror:? 807\b"
)
# So many of them in so long are enough: without MPS each would have been the fault of one alone.
MOST_FAULTS = 3
FAULTS_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class MpsPlan:
    """`program` is to be started, if any is; `is_used` is whether processes run under MPS then."""

    why: str
    is_used: bool = False
    program: Path | None = None


def plan(care: Care, gpus: Sequence[LocalGpu], environment: Mapping[str, str] = os.environ) -> MpsPlan | None:
    """Whether what runs on these GPUs shares them through MPS, in a sentence; nothing where MPS is out of question."""
    if care.per_gpu == 1 or not IS_LINUX or not all(NVIDIA in gpu.variables for gpu in gpus):
        return None
    if care.mps == "off":
        return MpsPlan(why=f"Without NVIDIA MPS: {care.setting}COMFYUI_MPS is off.")
    if environment.get(PIPES):
        return MpsPlan(why=f"They share it through the NVIDIA MPS of {PIPES}.", is_used=True)
    if _is_running_at(USUAL_PIPES):
        return MpsPlan(why=f"They share it through the NVIDIA MPS that runs at {USUAL_PIPES}.", is_used=True)
    return _plan_of_ours({gpu.key for gpu in gpus}, environment)


def _plan_of_ours(keys: set[str], environment: Mapping[str, str]) -> MpsPlan:
    found = shutil.which(PROGRAM, path=os.pathsep.join([environment.get("PATH", os.defpath), *PLACES]))
    if found is None:
        return MpsPlan(why=f"Without NVIDIA MPS: {PROGRAM}, which comes with NVIDIA's driver, is not installed.")
    if not all(key.startswith("GPU-") for key in keys):
        return MpsPlan(
            why="Without NVIDIA MPS: its daemon must know the GPUs. Name them in CUDA_VISIBLE_DEVICES by their UUIDs."
        )
    if old := _too_old(keys):
        return MpsPlan(why=f"Without NVIDIA MPS: it shares GPUs of the Volta generation and later, not {old}.")
    return MpsPlan(why="They share it through NVIDIA MPS.", is_used=True, program=Path(found))


def _is_running_at(pipes: Path) -> bool:
    try:
        return bool(detached.started_at(int((pipes / f"{PROGRAM}.pid").read_text())))
    except (OSError, ValueError):
        return False


def _too_old(keys: set[str]) -> str | None:
    def capability(nvml: Any, handle: Any) -> tuple[str, tuple[int, int]]:
        uuid = nvml.nvmlDeviceGetUUID(handle)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        return uuid.decode() if isinstance(uuid, bytes) else str(uuid), (major, minor)

    old = [found for key, found in of_each_nvidia(capability) if key in keys and found < LEAST_CAPABILITY]
    return f"compute capability {old[0][0]}.{old[0][1]}" if old else None


@dataclass(frozen=True, kw_only=True)
class MpsNote:
    """What is written down: `why` for those that only look, the rest for our next life."""

    why: str
    pipes: str | None = None
    # by process id, with when each was started
    processes: Mapping[str, float] = field(default_factory=dict)


def read(folder: Path) -> MpsNote | None:
    """What was written down in a keeper's folder."""
    try:
        return MpsNote(**json.loads((folder / FOLDER / FILE).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def end_earlier(folder: Path) -> None:
    """End the daemon that an earlier life of this keeper has left, where even its launcher was killed."""
    note = read(folder)
    for pid, started in ((int(pid), at) for pid, at in (note.processes if note is not None else {}).items()):
        if detached.is_process(pid=pid, started=started):
            log.warning("comfyui.mps_left_behind", pid=pid)
            # one that stays keeps nobody from starting another elsewhere
            detached.end(pid=pid, started=started, seconds=GRACE_SECONDS)
    if note is not None and note.pipes is not None and Path(note.pipes).name.startswith(_PREFIX):
        _remove(Path(note.pipes))
    _remove(folder / FOLDER)


class Mps:
    """The control daemon of one keeper. `restart` is handed who under it is to be started anew, and why."""

    def __init__(self, care: Care, folder: Path, *, restart: Callable[[Collection[str], str], None]) -> None:
        self._care = care
        self._folder = folder / FOLDER
        self._restart = restart
        self._plan: MpsPlan | None = None
        self._daemon: _Daemon | None = None
        self._watching: asyncio.Task[None] | None = None
        self._left: str | None = None
        self._has_served = False
        # who runs under it, on which GPU, and who came to an early end under it and is tried without
        self._joined: dict[str, str] = {}
        self._apart: set[str] = set()
        # whose GPU has had a fault: the server takes nobody new before they have ended
        self._faulty: set[str] = set()
        self._faults: list[float] = []
        self._parted = asyncio.Event()

    async def open(self, gpus: Sequence[LocalGpu]) -> None:
        self._plan = await asyncio.to_thread(plan, self._care, gpus)
        if self._plan is None:
            return
        why = self._plan.why
        if self._plan.program is not None:
            try:
                await asyncio.to_thread(self._folder.mkdir, mode=0o700, parents=True, exist_ok=True)
                self._daemon = await _Daemon.start(self._plan.program, gpus, logs=self._folder)
            except (OSError, _NotStarted) as error:
                self._left = why = f"Without NVIDIA MPS: it could not be started ({error})."
                log.warning("comfyui.mps_failed", why=str(error))
            else:
                self._watching = asyncio.create_task(self._watch(self._daemon))
                log.info("comfyui.mps", pipes=str(self._daemon.pipes))
        self._note(why)

    async def close(self) -> None:
        """To be called when all that ran under it have ended."""
        self._joined.clear()
        await self._end_daemon()
        if self._plan is not None:
            self._note(self._left or self._plan.why)

    def has(self, name: str) -> bool:
        """Whether this process runs under MPS, ours or the operator's."""
        return name in self._joined or (self._plan is not None and self._plan.is_used and self._plan.program is None)

    async def join(self, name: str, gpu_key: str) -> dict[str, str]:
        """What a process that starts now is to have in its environment."""
        while self._faulty and self._left is None:
            self._parted.clear()
            await self._parted.wait()
        if self._daemon is None or self._left is not None or name in self._apart:
            return {}
        self._joined[name] = gpu_key
        return {PIPES: str(self._daemon.pipes), LOGS: str(self._folder)}

    def came_up(self, name: str) -> None:
        if name in self._joined and self._left is None:
            self._has_served = True
            # its server was started by its first client
            self._note(self._plan.why if self._plan is not None else "")

    async def part(self, name: str, *, lines: Sequence[str], is_early: bool) -> bool:
        """A process has ended, with these last lines; whether MPS is why, and it is to be started again at once."""
        if name not in self._joined:
            # it does no better without
            self._apart.discard(name)
            return False
        is_known = name in self._faulty
        gpu_key = self._joined[name]
        await self._remove(name)
        if self._left is None and not is_known:
            self._judge(name, gpu_key, lines, is_early=is_early)
            await self._end_unused()
        return self._left is not None or is_known or bool(_find(_FAULT, lines))

    async def forget(self, name: str) -> None:
        """A process has ended that was asked to."""
        self._apart.discard(name)
        await self._remove(name)

    async def _remove(self, name: str) -> None:
        self._joined.pop(name, None)
        self._faulty.discard(name)
        self._parted.set()
        await self._end_unused()

    def _judge(self, name: str, gpu_key: str, lines: Sequence[str], *, is_early: bool) -> None:
        """What the end of one means for all."""
        if (fault := _find(_FAULT, lines)) is not None:
            self._faults = [at for at in self._faults if at > monotonic() - FAULTS_SECONDS] + [monotonic()]
            if len(self._faults) >= MOST_FAULTS:
                self._leave(f"there were {MOST_FAULTS} faults of a GPU, and each is one of all that share it")
                return
            self._faulty |= {each for each, key in self._joined.items() if key == gpu_key}
            log.warning("comfyui.mps_fault", name=name, why=fault, started_again=sorted(self._faulty))
            self._restart(self._faulty, f"{name}, which shares its GPU through NVIDIA MPS, had a fault of the GPU.")
        elif (blamed := _find(_BLAMED, lines)) is not None:
            self._leave(f"{name} said: {blamed}")
        elif is_early and not self._has_served:
            self._leave(f"{name}, the first under it, did not come up")
        elif is_early:
            self._apart.add(name)

    def _leave(self, why: str) -> None:
        self._left = f"Without NVIDIA MPS: it was left ({why})."
        log.warning("comfyui.mps_left", why=why)
        self._note(self._left)
        self._parted.set()
        self._restart(self._joined, f"It is started again without NVIDIA MPS: {why}.")

    async def _watch(self, daemon: "_Daemon") -> None:
        await asyncio.shield(daemon.ended)
        if self._left is None:
            self._leave(f"its daemon {daemon.how_it_ended}")

    async def _end_unused(self) -> None:
        if self._left is not None and not self._joined:
            await self._end_daemon()

    async def _end_daemon(self) -> None:
        daemon, self._daemon = self._daemon, None
        if self._watching is not None:
            self._watching.cancel()
        if daemon is not None:
            await daemon.end()
            self._note(self._left or "")

    def _note(self, why: str) -> None:
        """A full disk does not stop anybody."""
        daemon = self._daemon
        note = MpsNote(why=why) if daemon is None else MpsNote(why=why, pipes=str(daemon.pipes), processes=daemon.pids)
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic.write(self._folder / FILE, json.dumps(asdict(note)).encode(), mode=0o600)


def _find(pattern: re.Pattern[str], lines: Sequence[str]) -> str | None:
    return next((line.strip() for line in reversed(lines) if pattern.search(line)), None)


class _NotStarted(Exception):
    pass


class _Daemon:
    """NVIDIA's control daemon, not as a daemon but under our launcher, which ends it however we end."""

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
    async def start(cls, program: Path, gpus: Sequence[LocalGpu], *, logs: Path) -> "_Daemon":
        pipes = await asyncio.to_thread(_private_folder)
        environment = {
            **without_ours(),
            PIPES: str(pipes),
            LOGS: str(logs),
            # by their identities, so that they mean the same to it and to its clients
            NVIDIA: ",".join(gpu.variables[NVIDIA] for gpu in gpus),
        }
        try:
            child = await Child.start(
                [str(program), "-f"], folder=logs, environment=environment, grace_seconds=GRACE_SECONDS
            )
        except OSError:
            _remove(pipes)
            raise
        made = cls(child, program, pipes, environment, ProcessLog(logs / LOG_NAME))
        try:
            await made._until_ready()
        except BaseException:
            await made.end()
            raise
        return made

    @property
    def pids(self) -> dict[str, float]:
        """Of all that must be gone when this is over, with when each was started."""
        own = self._child.pid
        return {str(pid): at for pid, at in {own: detached.started_at(own), **detached.descendants(own)}.items() if at}

    @property
    def how_it_ended(self) -> str:
        return "; ".join([f"ended with exit code {self._child.exit_code}", *self._log.last_lines[-3:]])

    async def end(self) -> None:
        """As NVIDIA has it ended, then firmly; returns when it is gone."""
        if not self.ended.done():
            await asyncio.to_thread(self._ask, "quit")
        self._child.let_go()
        await asyncio.wait({self.ended}, timeout=2 * GRACE_SECONDS + ASK_SECONDS)
        await asyncio.to_thread(_remove, self.pipes)

    async def _until_ready(self) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                while not self.ended.done():
                    if await asyncio.to_thread(self._ask, "get_server_list"):
                        return
                    await asyncio.wait({self.ended}, timeout=LOOK_SECONDS)
        except TimeoutError:
            raise _NotStarted(f"it did not answer within {START_SECONDS:.0f} s") from None
        raise _NotStarted(f"it {self.how_it_ended}")

    def _ask(self, command: str) -> bool:
        """Whether the daemon has heard a command."""
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                [str(self._program)],
                input=f"{command}\n".encode(),
                capture_output=True,
                env=dict(self._environment),
                timeout=ASK_SECONDS,
                check=True,
            )
            return True
        return False

    async def _listen(self) -> None:
        while piece := await self._child.read():
            self._log.write(piece)
        await self._child.ended()


def _private_folder() -> Path:
    """For this user alone, and with a short path."""
    made = Path(tempfile.mkdtemp(prefix=_PREFIX))
    if len(os.fsencode(made)) <= LONGEST_PATH:
        return made
    made.rmdir()
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))


def _remove(folder: Path) -> None:
    with suppress(OSError):
        remove_tree(folder)
