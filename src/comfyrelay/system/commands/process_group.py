"""Run a command in its own process group. No process is left behind, even if this process is killed."""

import asyncio
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from comfyrelay.system.commands import contained

_CHUNK_BYTES = 64 * 1024
# Longer than the launcher needs to kill all processes, except one that waits for a device.
KILL_SECONDS = 15.0


class Child:
    """A command under the launcher. After `close_input`, the launcher terminates the command and all its processes."""

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
        """Start a command with empty standard input. Its output includes standard error. Raises `OSError` if the folder
        does not exist."""
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
        return await self._output.read(_CHUNK_BYTES)

    async def wait(self) -> int:
        """Wait until the command and all its processes have exited. Returns the exit code."""
        return await self._launcher.wait()

    def close_input(self) -> None:
        """Tell the launcher to terminate the command. The output ends when all processes have exited."""
        self._lifeline.close()

    async def terminate(self, on_output: Callable[[bytes], object]) -> None:
        """Terminate the command and wait until it has exited. `on_output` receives the rest of its output.

        Cancellation does not interrupt this, because no process may keep running. The wait is bounded.
        """
        self.close_input()
        draining = asyncio.ensure_future(self._drain_output(on_output))
        while not draining.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([draining])
        # A full disk must not prevent the termination.
        with suppress(TimeoutError, OSError):
            await draining

    async def _drain_output(self, on_output: Callable[[bytes], object]) -> None:
        async with asyncio.timeout(self._grace_seconds + KILL_SECONDS):
            # Without a reader, the command would block on its output.
            while piece := await self.read():
                on_output(piece)
            await self.wait()
