"""Processes that go on when whoever started them is gone, and commands that are ended with all they started."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from comfyrelay.errors import ConfigurationError
from comfyrelay.system.platform import IS_WINDOWS

NEEDS = "Machines of the provider `local` need Linux, macOS or WSL: run the server there, or choose another provider."
# Clocks that are set meanwhile move what a system says of the start of a process.
SAME_START_SECONDS = 2.0
_LOOK_SECONDS = 0.05


def check_system() -> None:
    """`ConfigurationError` where what is started apart could not be ended again with all that it has started."""
    if IS_WINDOWS:
        raise ConfigurationError(NEEDS)


def start(argv: Sequence[str], *, folder: Path, environment: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
    """Start a process in a session of its own: it does not end with us, nor by a Ctrl-C that is meant for us.

    Whoever keeps what is returned calls its `poll` now and then, or a process that has ended stays in the list.
    """
    check_system()
    with log.open("ab") as out:
        return subprocess.Popen(
            argv, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=out, **APART
        )


def started_at(pid: int | None = None) -> float:
    """When a process was started, or this one; 0 when there is none of this number. One that has ended is none, also
    where its parent takes no note of that: in a container, that of an orphan may never."""
    import psutil  # noqa: PLC0415 - most commands start without needing it

    try:
        process = psutil.Process(pid)
        return 0.0 if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return 0.0


def is_process(*, pid: int, started: float) -> bool:
    """Whether it is still there, and not another that has got its number since."""
    return abs(started_at(pid) - started) <= SAME_START_SECONDS


def ask_to_end(*, pid: int, started: float) -> None:
    """SIGTERM to a process, if it is still the one that was started then."""
    import psutil  # noqa: PLC0415 - most commands start without needing it

    with suppress(psutil.Error):
        if is_process(pid=pid, started=started):
            psutil.Process(pid).terminate()


def end(*, pid: int, started: float, seconds: float) -> bool:
    """End a process that was started then, with all that it has started: gently, then firmly. Whether it is gone."""
    import psutil  # noqa: PLC0415 - most commands start without needing it

    if not is_process(pid=pid, started=started):
        return True
    family = {pid: started, **descendants(pid)}
    for number in family:
        with suppress(psutil.Error):
            psutil.Process(number).terminate()
    stubborn = _remaining_after(seconds, family)
    for number in stubborn:
        with suppress(psutil.Error):
            psutil.Process(number).kill()
    return not _remaining_after(seconds, stubborn)


def _remaining_after(seconds: float, family: Mapping[int, float]) -> dict[int, float]:
    """Those that are still there then; returns as soon as there are none."""
    end_at = time.monotonic() + seconds
    while left := {pid: at for pid, at in family.items() if is_process(pid=pid, started=at)}:
        if time.monotonic() >= end_at:
            break
        time.sleep(_LOOK_SECONDS)
    return left


def descendants(pid: int) -> dict[int, float]:
    """What a process has started, and what those have, by process id, with when each was started."""
    import psutil  # noqa: PLC0415 - most commands start without needing it

    found: dict[int, float] = {}
    with suppress(psutil.Error):
        for each in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                found[each.pid] = each.create_time()
    return found


async def run(
    argv: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    stdin: IO[bytes],
    stdout: IO[bytes],
    stderr: IO[bytes],
    timeout_seconds: float,
) -> int:
    """Run a command to its end and return its exit code. `TimeoutError` after so long: it, and what it started in its
    own group, is killed. What it leaves running when it ends by itself stays: so its output goes to files, since a pipe
    would be open for as long as they are."""
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=folder, env=dict(environment), stdin=stdin, stdout=stdout, stderr=stderr, **APART
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            return await process.wait()
    finally:
        if process.returncode is None:
            _kill_group(process)
            await process.wait()


if sys.platform == "win32":
    # where Windows is only played there is no such flag
    APART: dict[str, Any] = {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}

    def _kill_group(process: asyncio.subprocess.Process) -> None:
        process.kill()

else:
    import os
    import signal

    APART: dict[str, Any] = {"start_new_session": True}

    def _kill_group(process: asyncio.subprocess.Process) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
