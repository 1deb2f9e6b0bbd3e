"""`comfyrelay` processes with their logs."""

import asyncio
import json
import os
from asyncio.subprocess import Process
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from comfyrelay.configuration import ENV_PREFIX
from tests.support import forked_commands
from tests.support.world import PATIENCE_SECONDS

# Variables that the process does not inherit.
_OWN = (ENV_PREFIX, "AWS_")


class Service:
    """A `comfyrelay …` command that can be started, signalled, killed and restarted."""

    def __init__(
        self,
        name: str,
        *command: str,
        environment: Mapping[str, str],
        log: Path,
        constants: forked_commands.Constants = MappingProxyType({}),
    ) -> None:
        self.name = name
        self._constants = constants
        self._command = command
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(_OWN)},
            **environment,
        }
        self._log = log
        self._process: Process | forked_commands.ForkedProcess | None = None

    @property
    def process(self) -> Process | forked_commands.ForkedProcess:
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await forked_commands.start(
                self._command, env=self.environment, out=log.fileno(), constants=self._constants
            )

    def send(self, signal_number: int) -> None:
        self.process.send_signal(signal_number)

    async def kill(self) -> None:
        """Send SIGKILL."""
        if self.is_running:
            self.process.kill()
        await self.ended()

    async def ended(self, *, seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for the exit; return the exit code."""
        async with asyncio.timeout(seconds):
            return await self.process.wait()

    def text(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def logged(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the logged events with this name and these fields, from all starts."""
        found = []
        for line in self.text().splitlines():
            if not line.startswith("{"):
                continue
            try:
                entry = json.loads(line)
            except ValueError:
                # the last line may be incomplete
                continue
            if entry.get("event") == event and fields.items() <= entry.items():
                found.append(entry)
        return found

    async def wait_for_log(
        self, event: str, *, count: int = 1, seconds: float = PATIENCE_SECONDS, **fields: Any
    ) -> None:
        async with asyncio.timeout(seconds):
            # another process writes the file, so poll it
            while len(self.logged(event, **fields)) < count:
                assert self.is_running, f"{self.name} has ended:\n{self.text()[-4000:]}"
                await asyncio.sleep(0.02)


async def run_command(*command: str, environment: Mapping[str, str], log: Path) -> tuple[int, str]:
    """Run a command; return its exit code and output."""
    service = Service(command[0], *command, environment=environment, log=log)
    before = len(service.text())
    await service.start()
    return await service.ended(), service.text()[before:]
