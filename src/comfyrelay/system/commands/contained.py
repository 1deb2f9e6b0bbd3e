"""Contained commands: a launcher process terminates a command and all processes that the command has started."""

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from comfyrelay.errors import ConfigurationError
from comfyrelay.system.commands.detached import NEW_SESSION
from comfyrelay.system.platform import IS_WINDOWS

_LAUNCHER = Path(__file__).with_name("launcher_windows.py" if IS_WINDOWS else "launcher.py")


def check_system() -> None:
    """Raise `ConfigurationError` if this system cannot terminate a script with its child processes."""
    if IS_WINDOWS:
        raise ConfigurationError(
            "Scripts need Linux, macOS or WSL: start the desk there, or remove [desk.script] from comfyrelay.toml."
        )


async def launch(
    argv: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    grace_seconds: float,
    umask: int | None = None,
    output: IO[bytes] | None = None,
) -> Process:
    """Start a command under the launcher, which terminates the command when the launcher's standard input is closed.
    The output is written to `output`, or can be read from the returned process."""
    mask = "-" if umask is None else f"{umask:o}"
    return await asyncio.create_subprocess_exec(
        # The environment (PYTHONPATH, …) and the folder of the command must not affect the launcher.
        *(sys.executable, "-E", "-P", str(_LAUNCHER), str(grace_seconds), mask, *argv),
        cwd=folder,
        env=dict(environment),
        stdin=PIPE,
        stdout=PIPE if output is None else output,
        stderr=STDOUT,
        # Ctrl-C in the terminal must reach only this process.
        **NEW_SESSION,
    )
