"""Commands of which nothing is left when they are over: a process that watches over each, and ends all it started."""

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from comfyrelay.errors import ConfigurationError
from comfyrelay.system.commands.detached import APART
from comfyrelay.system.platform import IS_WINDOWS

NEEDS = "Scripts need Linux, macOS or WSL: start the desk there, or take [desk.script] out of comfyrelay.toml."
_LAUNCHER = Path(__file__).with_name("launcher_windows.py" if IS_WINDOWS else "launcher.py")


def check_system() -> None:
    """`ConfigurationError` where scripts cannot be ended with all that they have started."""
    if IS_WINDOWS:
        raise ConfigurationError(NEEDS)


async def launch(
    argv: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    grace_seconds: float,
    umask: int | None = None,
    output: IO[bytes] | None = None,
) -> Process:
    """Start a command under the launcher, which ends it when its standard input is closed. What it says can be read
    from the process, or goes to `output`."""
    mask = "-" if umask is None else f"{umask:o}"
    return await asyncio.create_subprocess_exec(
        # what is meant for the script (PYTHONPATH, …) does not change the launcher, nor what lies in its folder
        *(sys.executable, "-E", "-P", str(_LAUNCHER), str(grace_seconds), mask, *argv),
        cwd=folder,
        env=dict(environment),
        stdin=PIPE,
        stdout=PIPE if output is None else output,
        stderr=STDOUT,
        # Ctrl-C in our terminal is for us
        **APART,
    )
