"""Commands as real processes that need not import everything anew: forked by a process that has it all in memory.

This module, run, is that mother process. It does nothing but import, make the server's routes and fork, so what it
bears starts as fresh as a new interpreter does. For each child a nanny waits, who tells how it ended: only a parent
learns that.
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
from tests.support.paths import ROOT
from tests.support.shared_routes import make_all

# What libraries import only once they are used.
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
# By module and name.
Constants = Mapping[tuple[ModuleType, str], float | Sequence[float]]
# By how many seconds the clock of a child that has it in its environment is wrong.
SKEW_VARIABLE = "TESTS_CLOCK_SKEW_SECONDS"


class Child:
    """A forked command, which can be waited for and signalled like any process."""

    def __init__(self, pid: int, nanny: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._end = asyncio.create_task(self._listen(nanny))

    async def wait(self) -> int:
        return await asyncio.shield(self._end)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            # it may have ended, and we have yet to be told
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def _listen(self, nanny: socket.socket) -> int:
        with nanny:
            self.returncode = await _number(nanny)
        return self.returncode


class Mother:
    """The process that forks, as tests see it."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = (sys.executable, "-m", "tests.support.forked_commands", str(theirs.fileno()))
            self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    async def bear(
        self, command: Sequence[str], *, env: Mapping[str, str], out: int, err: int, constants: Constants
    ) -> Child:
        """Run `comfyrelay` with these words; what it says goes to the files `out` and `err`."""
        ours, nannys = socket.socketpair()
        ours.setblocking(False)
        with nannys:
            named = [(module.__name__, name, value) for (module, name), value in constants.items()]
            asked = json.dumps([command, dict(env), str(Path.cwd()), named]).encode()
            socket.send_fds(self._control, [asked], [out, err, nannys.fileno()])
        return Child(await _number(ours), ours)

    def close(self) -> None:
        """Children that still run go on."""
        self._control.close()
        self._process.wait()


async def _number(nanny: socket.socket) -> int:
    data = await asyncio.get_running_loop().sock_recv(nanny, _NUMBER.size)
    if not data:
        raise ConnectionError("Who forks commands is gone.")
    found: int = _NUMBER.unpack(data)[0]
    return found


class _Forking:
    allowed = False
    mother: Mother | None = None


@contextmanager
def forking() -> Iterator[None]:
    """Inside, commands are forked. Outside, as in benches, and where forking is no good, each is a new interpreter."""
    _Forking.allowed = sys.platform == "linux"
    try:
        yield
    finally:
        _Forking.allowed = False
        if _Forking.mother is not None:
            _Forking.mother.close()
            _Forking.mother = None


async def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    out: int,
    err: int | None = None,
    constants: Constants = MappingProxyType({}),
) -> Child | asyncio.subprocess.Process:
    """Run `comfyrelay` with these words as a process of its own. Without `err`, its errors go to `out`, too.

    One that is forked has these constants, so that nobody waits long for what the real ones would bring too."""
    err = out if err is None else err
    if not _Forking.allowed:
        words = (sys.executable, "-m", "comfyrelay", *command)
        nothing = asyncio.subprocess.DEVNULL
        return await asyncio.create_subprocess_exec(*words, env=env, stdin=nothing, stdout=out, stderr=err)
    if _Forking.mother is None:
        _Forking.mother = Mother()
    return await _Forking.mother.bear(command, env=env, out=out, err=err, constants=constants)


# The mother process.


def _import_everything() -> None:
    import comfyrelay  # noqa: PLC0415 - not in the process of the tests

    for each in pkgutil.walk_packages(comfyrelay.__path__, "comfyrelay."):
        if not each.name.endswith(".__main__") and ".migrations" not in each.name:
            import_module(each.name)
    for name in LATE:
        import_module(name)
    make_all()
    few = os.environ.get("SSL_CERT_FILE", certifi.where())
    certifi.where = lambda: few


def _fork_on_demand(control: socket.socket) -> list[str] | None:
    """In a child, what it is to run; in the mother, None at the end."""
    while True:
        asked, files, _flags, _sender = socket.recv_fds(control, 1 << 20, 3)
        if not asked:
            return None
        if os.fork() == 0:
            control.close()
            return _nurse(asked, *files)
        for each in files:
            os.close(each)


def _nurse(asked: bytes, out: int, err: int, nanny_file: int) -> list[str]:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nanny = socket.socket(fileno=nanny_file)
    child = os.fork()
    if child:
        nanny.send(_NUMBER.pack(child))
        _, status = os.waitpid(child, 0)
        nanny.send(_NUMBER.pack(os.waitstatus_to_exitcode(status)))
        os._exit(0)
    nanny.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    command, environment, folder, constants = json.loads(asked)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for module, name, value in constants:
        assert hasattr(sys.modules[module], name), f"{module} has no {name} any more."
        setattr(sys.modules[module], name, value)
    if skew_seconds := float(os.environ.pop(SKEW_VARIABLE, 0)):
        _skew(skew_seconds)
    # or all children would roll the same dice
    random.seed()
    _be_new()
    return ["comfyrelay", *command]


def _skew(seconds: float) -> None:
    """The clock on the wall is wrong from here on; how much time goes by is not."""
    right, right_utc = time.time, clock.utc_now

    def utc_now() -> datetime:
        return right_utc() + timedelta(seconds=seconds)

    time.time = lambda: right() + seconds
    for module in [each for name, each in sys.modules.items() if name.startswith("comfyrelay")]:
        if getattr(module, "utc_now", None) is right_utc:
            module.utc_now = utc_now  # type: ignore[attr-defined]


def _be_new() -> None:
    """What looks at its environment and its terminal only once has not looked yet."""
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    for name in [each for each in sys.modules if each.startswith("comfyrelay.cli")]:
        del sys.modules[name]


def _part_from_nannies(_number: int, _frame: FrameType | None) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    _import_everything()
    threads = len([*Path("/proc/self/task").iterdir()])
    assert threads == 1, "Something that is imported starts threads, which cannot be forked."
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, _part_from_nannies)
    # Ctrl-C is for pytest, and for what was forked
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    command = _fork_on_demand(control)
    if command is not None:
        sys.argv = command
        runpy.run_module("comfyrelay", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
