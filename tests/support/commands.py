"""Run `comfyrelay` commands as processes."""

import asyncio
import os
from asyncio.subprocess import Process
from collections.abc import Mapping
from dataclasses import dataclass

from tests.support import forked_commands
from tests.support.world import PATIENCE_SECONDS


@dataclass
class CommandResult:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


@dataclass
class RunningCommand:
    """A command whose output is read while it runs."""

    process: Process | forked_commands.ForkedProcess
    out: asyncio.StreamReader
    err: asyncio.StreamReader

    async def ended(self) -> CommandResult:
        """Wait for the exit; return the unread output."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            out, err, code = await asyncio.gather(self.out.read(), self.err.read(), self.process.wait())
        return CommandResult(code, out.decode(), err.decode())

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


async def start(*words: str, env: Mapping[str, str]) -> RunningCommand:
    (out, child_out), (err, child_err) = os.pipe(), os.pipe()
    try:
        process = await forked_commands.start(words, env=env, out=child_out, err=child_err)
    finally:
        os.close(child_out)
        os.close(child_err)
    return RunningCommand(process, await _reader(out), await _reader(err))


async def run(*words: str, env: Mapping[str, str]) -> CommandResult:
    return await (await start(*words, env=env)).ended()


async def _reader(file: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(file, "rb", buffering=0))
    return reader
