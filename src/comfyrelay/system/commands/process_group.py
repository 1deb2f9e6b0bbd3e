"""A command in its own process group that leaves no process behind, also if this process is killed."""

import asyncio
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from comfyrelay.system.commands import contained

_PIECE = 64 * 1024
# Longer than the launcher tries to kill. A process that is left then waits for a device and cannot be killed.
FIRM_SECONDS = 15.0


class Child:
    """A command under the launcher, which terminates it with all its processes after `let_go`."""

    def __init__(self, launcher: Process, *, grace_seconds: float) -> None:
        assert launcher.stdin is not None
        assert launcher.stdout is not None
        self._launcher = launcher
        self._grace_seconds = grace_seconds
        self._lifeline = launcher.stdin
        self._output = launcher.stdout

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        grace_seconds: float,
        umask: int | None = None,
    ) -> Self:
        """Start a command; `OSError` if the folder does not exist. Standard input is empty, and standard error goes to
        standard output."""
        launcher = await contained.launch(
            argv, folder=folder, environment=environment, grace_seconds=grace_seconds, umask=umask
        )
        return cls(launcher, grace_seconds=grace_seconds)

    @property
    def pid(self) -> int:
        """The process id of the launcher."""
        return self._launcher.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code of the command, once it has exited."""
        return self._launcher.returncode

    async def read(self) -> bytes:
        """Return the next chunk of the output; empty at the end. The command blocks until its output is read."""
        return await self._output.read(_PIECE)

    async def ended(self) -> int:
        """Wait until the command and all its processes have exited; returns the exit code."""
        return await self._launcher.wait()

    def let_go(self) -> None:
        """Start the termination. Its output ends when all processes have exited."""
        self._lifeline.close()

    async def end(self, keep: Callable[[bytes], object]) -> None:
        """Terminate the command and wait until it has exited. `keep` receives the rest of its output.

        A cancellation does not interrupt this: it takes a bounded time, and no process may keep running.
        """
        self.let_go()
        ending = asyncio.ensure_future(self._drain_output(keep))
        while not ending.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([ending])
        # a full disk must not prevent it
        with suppress(TimeoutError, OSError):
            await ending

    async def _drain_output(self, keep: Callable[[bytes], object]) -> None:
        async with asyncio.timeout(self._grace_seconds + FIRM_SECONDS):
            # read everything, or the command would block on its output
            while piece := await self.read():
                keep(piece)
            await self.ended()
