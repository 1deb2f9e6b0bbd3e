"""Detached processes, which outlive their parent, and commands that are killed with their process group."""

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

# Adjusting the clock changes the start time that the system reports for a process.
START_TOLERANCE_SECONDS = 2.0
_POLL_SECONDS = 0.05


def check_system() -> None:
    """Raise `ConfigurationError` if this system cannot terminate a detached process with its child processes."""
    if IS_WINDOWS:
        raise ConfigurationError(
            "Machines of the provider `local` need Linux, macOS or WSL: run the server there, or use another provider."
        )


def start(argv: Sequence[str], *, folder: Path, environment: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
    """Start a process in a new session, so that neither Ctrl-C nor the exit of this process stops it.

    Call `poll` on the result from time to time, or the process remains as a zombie after its exit.
    """
    check_system()
    with log.open("ab") as out:
        return subprocess.Popen(
            argv, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=out, **NEW_SESSION
        )


def started_at(pid: int | None = None) -> float:
    """Return the start time of a process, by default this one; 0 if it does not exist. A zombie counts as exited,
    because in a container an orphan may never be reaped."""
    import psutil  # noqa: PLC0415 - most commands do not need it

    try:
        process = psutil.Process(pid)
        return 0.0 if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return 0.0


def is_running(*, pid: int, started: float) -> bool:
    """Whether the process is still running and its id has not been reused."""
    return abs(started_at(pid) - started) <= START_TOLERANCE_SECONDS


def send_sigterm(*, pid: int, started: float) -> None:
    """Send SIGTERM to a process, unless its id was reused."""
    import psutil  # noqa: PLC0415 - most commands do not need it

    with suppress(psutil.Error):
        if is_running(pid=pid, started=started):
            psutil.Process(pid).terminate()


def terminate(*, pid: int, started: float, seconds: float) -> bool:
    """Terminate a process and its descendants: SIGTERM, then SIGKILL. Returns whether they exited."""
    import psutil  # noqa: PLC0415 - most commands do not need it

    if not is_running(pid=pid, started=started):
        return True
    remaining = {pid: started, **descendants(pid)}
    for send in (psutil.Process.terminate, psutil.Process.kill):
        for number in remaining:
            with suppress(psutil.Error):
                send(psutil.Process(number))
        remaining = _remaining_after(seconds, remaining)
    return not remaining


def _remaining_after(seconds: float, processes: Mapping[int, float]) -> dict[int, float]:
    """Wait until all processes have exited, but at most this long. Returns the processes that are still running."""
    end_at = time.monotonic() + seconds
    while remaining := {pid: at for pid, at in processes.items() if is_running(pid=pid, started=at)}:
        if time.monotonic() >= end_at:
            break
        time.sleep(_POLL_SECONDS)
    return remaining


def descendants(pid: int) -> dict[int, float]:
    """Return the descendants of a process: id → start time."""
    import psutil  # noqa: PLC0415 - most commands do not need it

    found: dict[int, float] = {}
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                found[child.pid] = child.create_time()
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
    """Run a command and return its exit code. After the timeout, kill its process group and raise `TimeoutError`.

    Processes that the command leaves behind keep running. The output goes to files, because these processes would keep
    a pipe open.
    """
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=folder, env=dict(environment), stdin=stdin, stdout=stdout, stderr=stderr, **NEW_SESSION
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            return await process.wait()
    finally:
        if process.returncode is None:
            _kill_group(process)
            await process.wait()


if sys.platform == "win32":
    # The flag does not exist on systems where tests simulate Windows.
    NEW_SESSION: dict[str, Any] = {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}

    def _kill_group(process: asyncio.subprocess.Process) -> None:
        process.kill()

else:
    import os
    import signal

    NEW_SESSION: dict[str, Any] = {"start_new_session": True}

    def _kill_group(process: asyncio.subprocess.Process) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
