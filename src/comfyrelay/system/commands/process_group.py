"""A command in a process group of its own, of which nothing is left when it is over, canceled, or we are killed."""

import asyncio
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from comfyrelay.system.commands import contained

_PIECE = 64 * 1024
# Longer than the launcher tries to kill: what is left then waits for a device, and nobody can end it.
FIRM_SECONDS = 15.0


class Child:
    """A command under our launcher, which ends it and all that it has started as soon as we let go of it."""

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
        """Start a command; `OSError` when there is no such folder. Its standard input is empty, and its errors go to
        its output."""
        launcher = await contained.launch(
            argv, folder=folder, environment=environment, grace_seconds=grace_seconds, umask=umask
        )
        return cls(launcher, grace_seconds=grace_seconds)

    @property
    def pid(self) -> int:
        """That of the launcher."""
        return self._launcher.pid

    @property
    def exit_code(self) -> int | None:
        """That of the command, once it has ended."""
        return self._launcher.returncode

    async def read(self) -> bytes:
        """The next piece of its output; empty at the end. While nobody reads, the command waits."""
        return await self._output.read(_PIECE)

    async def ended(self) -> int:
        """Wait for the end of the command and of all that it has started; returns its exit code."""
        return await self._launcher.wait()

    def let_go(self) -> None:
        """Have it ended, gently, then firmly; whoever reads its output to the end sees it go."""
        self._lifeline.close()

    async def end(self, keep: Callable[[bytes], object]) -> None:
        """End it, gently, then firmly, and return when it is gone; `keep` is handed what it still says.

        Being canceled does not hurry this: it takes a bounded time, and nothing may be left running.
        """
        self.let_go()
        ending = asyncio.ensure_future(self._drain_output(keep))
        while not ending.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([ending])
        # a full disk is no reason to stay
        with suppress(TimeoutError, OSError):
            await ending

    async def _drain_output(self, keep: Callable[[bytes], object]) -> None:
        async with asyncio.timeout(self._grace_seconds + FIRM_SECONDS):
            # read all of it, or it would block on its way out
            while piece := await self.read():
                keep(piece)
            await self.ended()
