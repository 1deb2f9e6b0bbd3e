"""Start `comfyrelay` commands by forking a process that has imported everything, which saves 0.7 s of CPU per start.

Run as a program, this module is that fork server. It only imports and forks, so a child starts as fresh as a new
interpreter. Every child has a monitor process as its parent, which reports its exit code.
"""

import asyncio
import gc
import json
import os
import pkgutil
import random
import runpy
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from types import FrameType, MappingProxyType, ModuleType

import certifi

from comfyrelay import clock
from tests.support import kill_points, log_secrets
from tests.support.paths import ROOT

# Modules that libraries import on first use.
LATE = (
    "alembic.command",
    "anyio._backends._asyncio",
    "asyncpg",
    "boto3",
    "encodings.idna",
    "httpcore",
    "rich._emoji_codes",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "typer.rich_utils",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
)
_NUMBER = struct.Struct("i")
# The values of module constants, by module and name.
Constants = Mapping[tuple[ModuleType, str], float | Sequence[float]]
# The environment variable with the seconds by which a child's clock is wrong.
SKEW_VARIABLE = "TESTS_CLOCK_SKEW_SECONDS"


class ForkedProcess:
    """A forked command, with the interface of `asyncio.subprocess.Process` that tests use."""

    def __init__(self, pid: int, monitor: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._end = asyncio.create_task(self._listen(monitor))

    async def wait(self) -> int:
        return await asyncio.shield(self._end)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            # the process may have exited without its monitor having reported this yet
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def _listen(self, monitor: socket.socket) -> int:
        with monitor:
            self.returncode = await _number(monitor)
        return self.returncode


class ForkServer:
    """The process that forks commands."""

    def __init__(self) -> None:
        self._control, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with child_end:
            command = (sys.executable, "-m", "tests.support.forked_commands", str(child_end.fileno()))
            self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[child_end.fileno()], stdin=subprocess.DEVNULL)

    async def fork(
        self, command: Sequence[str], *, env: Mapping[str, str], out: int, err: int, constants: Constants
    ) -> ForkedProcess:
        """Run `comfyrelay` with these arguments and write its output to the files `out` and `err`."""
        ours, child_end = socket.socketpair()
        ours.setblocking(False)
        with child_end:
            named = [(module.__name__, name, value) for (module, name), value in constants.items()]
            request = json.dumps([command, dict(env), str(Path.cwd()), named]).encode()
            socket.send_fds(self._control, [request], [out, err, child_end.fileno()])
        return ForkedProcess(await _number(ours), ours)

    def close(self) -> None:
        """Stop the fork server; running children continue."""
        self._control.close()
        self._process.wait()


async def _number(monitor: socket.socket) -> int:
    data = await asyncio.get_running_loop().sock_recv(monitor, _NUMBER.size)
    if not data:
        raise ConnectionError("The fork server has exited.")
    found: int = _NUMBER.unpack(data)[0]
    return found


class _Forking:
    allowed = False
    server: ForkServer | None = None


@contextmanager
def forking() -> Iterator[None]:
    """Fork commands inside this block, on Linux. Elsewhere each command is a new interpreter."""
    _Forking.allowed = sys.platform == "linux"
    try:
        yield
    finally:
        _Forking.allowed = False
        if _Forking.server is not None:
            _Forking.server.close()
            _Forking.server = None


async def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    out: int,
    err: int | None = None,
    constants: Constants = MappingProxyType({}),
) -> ForkedProcess | asyncio.subprocess.Process:
    """Run `comfyrelay` with these arguments in a separate process; without `err`, its errors go to `out`.

    In a forked process, these module constants are replaced, for example by shorter intervals."""
    err = out if err is None else err
    if not _Forking.allowed:
        arguments = (sys.executable, "-m", "comfyrelay", *command)
        nothing = asyncio.subprocess.DEVNULL
        return await asyncio.create_subprocess_exec(*arguments, env=env, stdin=nothing, stdout=out, stderr=err)
    if _Forking.server is None:
        _Forking.server = ForkServer()
    return await _Forking.server.fork(command, env=env, out=out, err=err, constants=constants)


# The fork server


def _import_everything() -> None:
    import comfyrelay  # noqa: PLC0415 - not in the process of the tests

    for walk_package in pkgutil.walk_packages(comfyrelay.__path__, "comfyrelay."):
        if not walk_package.name.endswith(".__main__") and ".migrations" not in walk_package.name:
            import_module(walk_package.name)
    for name in LATE:
        import_module(name)
    log_secrets.install()
    bundle = os.environ.get("SSL_CERT_FILE", certifi.where())
    certifi.where = lambda: bundle


def _fork_on_demand(control: socket.socket) -> list[str] | None:
    """Fork for each request: return its command in the child, and None in the server when its socket closes."""
    while True:
        request, files, _flags, _sender = socket.recv_fds(control, 1 << 20, 3)
        if not request:
            return None
        if os.fork() == 0:
            control.close()
            return _start_child(request, *files)
        for file in files:
            os.close(file)


def _start_child(request: bytes, out: int, err: int, monitor_file: int) -> list[str]:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    monitor = socket.socket(fileno=monitor_file)
    child = os.fork()
    if child:
        monitor.send(_NUMBER.pack(child))
        _, status = os.waitpid(child, 0)
        monitor.send(_NUMBER.pack(os.waitstatus_to_exitcode(status)))
        os._exit(0)
    monitor.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    command, environment, folder, constants = json.loads(request)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for module, name, value in constants:
        assert hasattr(sys.modules[module], name), f"{module} has no {name}: update the constants of the test."
        setattr(sys.modules[module], name, value)
    if skew_seconds := float(os.environ.pop(SKEW_VARIABLE, 0)):
        _skew(skew_seconds)
    if kill_point := os.environ.pop(kill_points.VARIABLE, None):
        kill_points.install(kill_point)
    # otherwise all children would draw the same random numbers
    random.seed()
    _reset_process_state()
    return ["comfyrelay", *command]


def _skew(seconds: float) -> None:
    """Shift the wall clock, but not the monotonic clock."""
    real_time, real_utc_now = time.time, clock.utc_now

    def utc_now() -> datetime:
        return real_utc_now() + timedelta(seconds=seconds)

    time.time = lambda: real_time() + seconds
    for module in [module for name, module in sys.modules.items() if name.startswith("comfyrelay")]:
        if getattr(module, "utc_now", None) is real_utc_now:
            module.utc_now = utc_now  # type: ignore[attr-defined]


def _reset_process_state() -> None:
    """Reopen the output streams and reimport the CLI, which reads its environment and terminal once."""
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    for name in [module for module in sys.modules if module.startswith("comfyrelay.cli")]:
        del sys.modules[name]


def _reap_monitors(_number: int, _frame: FrameType | None) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    _import_everything()
    threads = len([*Path("/proc/self/task").iterdir()])
    assert threads == 1, "An import starts threads, which cannot be forked."
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, _reap_monitors)
    # Ctrl-C is meant for pytest and the forked commands
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    command = _fork_on_demand(control)
    if command is not None:
        sys.argv = command
        runpy.run_module("comfyrelay", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
