"""Restart a ComfyUI that is unreachable or broken, with the operator's command."""

import asyncio
from asyncio.subprocess import DEVNULL
from collections.abc import Sequence
from contextlib import suppress

import structlog

from comfyrelay.comfyui.processes.launch import child_environment
from comfyrelay.errors import ComfyError
from comfyrelay.retry import Backoff, Retries
from comfyrelay.worker.comfyui.recovery import RecoveringClient

log = structlog.get_logger(__name__)

# How long a server may take to recover after a lost connection or during its start.
WAIT_SECONDS = 60.0
COMMAND_SECONDS = 180.0
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0


class Restarts:
    def __init__(
        self, command: Sequence[str], *, variables: Sequence[str] = (), wait_seconds: float = WAIT_SECONDS
    ) -> None:
        """`variables` are names of environment variables that the command gets in addition to the usual ones."""
        self._command = tuple(command)
        self._variables = tuple(variables)
        self._wait_seconds = wait_seconds
        self._tasks: dict[RecoveringClient, asyncio.Task[None]] = {}

    def restart_unless_recovered(self, client: RecoveringClient) -> None:
        """Restart an offline server unless it recovers in time."""
        if self._command and (client not in self._tasks or self._tasks[client].done()):
            self._tasks[client] = asyncio.create_task(self._restart(client))

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _restart(self, client: RecoveringClient) -> None:
        if not client.has_gpu_fault and await _recovers_within(client, self._wait_seconds):
            return
        client.is_restarting = True
        retries = Retries(Backoff(first_seconds=FIRST_PAUSE_SECONDS, max_seconds=LONGEST_PAUSE_SECONDS))
        while not (await self._run_command(client) and await _recovers_within(client, COMMAND_SECONDS)):
            await retries.wait()
        client.is_restarting = False

    async def _run_command(self, client: RecoveringClient) -> bool:
        log.warning("worker.restarting_comfyui", server=client.url)
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env={**child_environment(self._variables), "COMFYUI_URL": client.url},
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=DEVNULL,
            )
        except OSError as error:
            log.error("worker.restart_failed", server=client.url, why=f"the command cannot be run: {error.strerror}")
            return False
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                code = await process.wait()
        except TimeoutError:
            process.kill()
            log.error("worker.restart_failed", server=client.url, why="the command took too long")
            return False
        if code:
            log.error("worker.restart_failed", server=client.url, exit_code=code)
        return code == 0


async def _recovers_within(client: RecoveringClient, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                with suppress(ComfyError):
                    await client.check_health()
                    return True
                await asyncio.sleep(1.0)
    return False
