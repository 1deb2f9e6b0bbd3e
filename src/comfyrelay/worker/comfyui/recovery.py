"""A ComfyUI client that recovers the server after a failure, before the next job starts on it."""

from contextlib import suppress
from time import monotonic
from typing import Any, Protocol

import structlog

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.outputs import OutputFile, RunResult, result_of
from comfyrelay.comfyui.processes.supervisor import ProcessExit
from comfyrelay.comfyui.runs.events import RunEvent, Started
from comfyrelay.comfyui.runs.history import prompt_of
from comfyrelay.comfyui.runs.timeouts import RunTimeouts
from comfyrelay.errors import (
    ComfyError,
    DeviceFault,
    OutOfMemory,
    RunLost,
    RunTimedOut,
    ServerRefused,
    ServerUnreachable,
)
from comfyrelay.http_client import PortClosed
from comfyrelay.worker.state import HeldLease

log = structlog.get_logger(__name__)

# Sent with each graph and names its lease, so that a run can be found even if the worker was killed before recording
# it.
MARK = "comfyrelay_lease"
# Our runs are deleted from the history one by one, so more can only be other clients'.
NEWEST_RUNS = 100


class ProcessExits(Protocol):
    """What the supervisor knows about the process of a managed ComfyUI."""

    async def exit_since(self, began: float) -> ProcessExit | None:
        """How the process exited after this `monotonic` time, if it did."""

    async def mark_run_started(self) -> None:
        """Called before a run: make new files in ComfyUI's own input folder available to it."""

    def restart_stuck(self, why: str) -> None:
        """Restart the process because a run is stuck."""


class RecoveringClient(ComfyClient):
    """Frees ComfyUI's memory after it ran out.

    After a GPU fault it is unusable until ComfyUI restarts: until then ComfyUI looks healthy but fails every job.
    """

    def __init__(
        self, url: str, *, timeouts: RunTimeouts, deletes_history: bool = True, exits: ProcessExits | None = None
    ) -> None:
        """`deletes_history`: delete our finished runs from the server's history. `exits` is set for managed ComfyUI."""
        super().__init__(url, timeouts=timeouts, delete_history=deletes_history)
        self._deletes_history = deletes_history
        self._exits = exits
        # the connection on which the GPU failed; a new connection means a new process
        self._gpu_fault_connection: int | None = None
        # it may still answer while it is being stopped
        self.is_restarting = False
        self._runs_here = 0

    @property
    def has_gpu_fault(self) -> bool:
        return self._gpu_fault_connection is not None

    async def check(self) -> None:
        await self.check_health()
        if self.is_restarting:
            raise ServerRefused("ComfyUI is being restarted.")

    async def check_health(self) -> None:
        """Return if it answers and its GPU works."""
        try:
            await super().check()
        except PortClosed:
            # a restart makes a new process; connections alone do not show it where there is no socket, and a slow
            # answer is not a restart
            self._gpu_fault_connection = None if self._gpu_fault_connection is None else -1
            raise
        if self._gpu_fault_connection is not None and self._gpu_fault_connection == self.connection:
            raise ServerRefused("The GPU is in a bad state until ComfyUI is restarted.")
        self._gpu_fault_connection = None

    async def unfinished_prompts(self, held: HeldLease) -> list[str]:
        """Prompt ids that run, wait or have ended here for a lease of an earlier process."""
        found = await self.prompts()
        # in this order, so that a run that ends in between is seen at least once
        for prompt_id, entry in (await self.newest_history(NEWEST_RUNS)).items():
            found[prompt_id] = prompt_of(entry)
        return [each for each, prompt in found.items() if prompt.extra_data.get(MARK) == held.lease.name]

    async def delete_finished_run(self, prompt_id: str) -> tuple[OutputFile, ...]:
        """Delete one of our finished runs from the server's history. Returns the files it made."""
        entry = await self.history(prompt_id) if self._deletes_history else None
        if entry is None or MARK not in prompt_of(entry).extra_data:
            # it never started, is kept, or is a script's: its files belong to the user
            return ()
        await self.delete_run(prompt_id)
        return result_of(entry.get("outputs") or {}, prompt_id=prompt_id).files

    async def run(self, graph: Graph, **options: Any) -> RunResult:
        sent = monotonic()
        # while another run is active, output belongs to that one
        began: float | None = None if self._runs_here else sent
        listener = options.pop("on_event", None)

        def on_event(event: RunEvent) -> None:
            nonlocal began
            if began is None and isinstance(event, Started):
                began = monotonic()
            if listener is not None:
                listener(event)

        self._runs_here += 1
        try:
            if self._exits is not None:
                await self._exits.mark_run_started()
            return await super().run(graph, on_event=on_event, **options)
        except (RunLost, ServerUnreachable) as error:
            raise await self._with_last_lines(error, sent=sent, began=began) from error
        except RunTimedOut as error:
            if self._exits is not None:
                # the GPU may not recover
                self._exits.restart_stuck(error.detail)
            raise
        except OutOfMemory:
            with suppress(ComfyError):
                await self.free()
            raise
        except DeviceFault:
            log.warning("worker.comfyui_gpu_fault", server=self.url)
            self._gpu_fault_connection = self.connection
            raise
        finally:
            self._runs_here -= 1

    async def _with_last_lines(self, error: ComfyError, *, sent: float, began: float | None) -> ComfyError:
        """Add how the process exited and the last lines of this run to the error, if known."""
        process_exit = await self._exits.exit_since(sent) if self._exits is not None else None
        if process_exit is None:
            return error
        lines = process_exit.lines_since(began) if began is not None else []
        return RunLost(f"The run was lost: {process_exit.reason}", raw="\n".join(lines) or None)
