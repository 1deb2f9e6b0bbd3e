"""A ComfyUI that is taken care of after a failure, before the next job can begin on it."""

from contextlib import suppress
from time import monotonic
from typing import Any, Protocol

import structlog

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.outputs import OutputFile, RunResult, result_of
from comfyrelay.comfyui.processes.supervisor import Ending
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

# Goes to ComfyUI beside each graph and names its lease: a run can be found again even if we were killed before we could
# write down that it has begun.
MARK = "comfyrelay_lease"
# Runs of ours are deleted from the history one by one: only somebody else's could be more.
NEWEST_RUNS = 100


class ProcessEndings(Protocol):
    """Of the process of a ComfyUI that this worker has started: how it ended, and what it needs before it runs."""

    async def since(self, began: float) -> Ending | None:
        """How it ended after this time of `monotonic`; nothing when it did not."""

    async def run_begins(self) -> None:
        """It is used from here on: let it find what its user has put into ComfyUI's own input folder since."""

    def stuck(self, why: str) -> None:
        """A run there does not go on: it is to be started anew."""


class RecoveringClient(ComfyClient):
    """After running out of memory it frees what ComfyUI holds. After a fault of the GPU it is not fit until ComfyUI was
    restarted: until then ComfyUI answers as if nothing were wrong, and fails every job."""

    def __init__(
        self, url: str, *, timeouts: RunTimeouts, is_tidied: bool = True, endings: ProcessEndings | None = None
    ) -> None:
        """`is_tidied` is whether runs of ours are deleted from the server's history when they are over. `endings` knows
        how the process ended, where this worker has started it."""
        super().__init__(url, timeouts=timeouts, forget_history=is_tidied)
        self._is_tidied = is_tidied
        self._endings = endings
        # the connection on which the GPU failed; another one is to another process
        self._sick_on: int | None = None
        # it may answer meanwhile, and is about to be stopped
        self.is_restarting = False
        self._runs_here = 0

    @property
    def is_sick(self) -> bool:
        return self._sick_on is not None

    async def check(self) -> None:
        await self.check_health()
        if self.is_restarting:
            raise ServerRefused("ComfyUI is being restarted.")

    async def check_health(self) -> None:
        """Return when it answers and its GPU is well."""
        try:
            await super().check()
        except PortClosed:
            # it went away, and what comes back is new; connections alone do not tell where there is no socket. One that
            # only takes long to answer has not gone.
            self._sick_on = None if self._sick_on is None else -1
            raise
        if self._sick_on is not None and self._sick_on == self.connection:
            raise ServerRefused("The GPU is in a bad state until ComfyUI is restarted.")
        self._sick_on = None

    async def unfinished_prompts(self, held: HeldLease) -> list[str]:
        """The prompt ids of what still runs or waits here for a lease of an earlier process, or has ended meanwhile."""
        found = await self.prompts()
        # in this order: what ends in between is seen at least once
        for prompt_id, entry in (await self.newest_history(NEWEST_RUNS)).items():
            found[prompt_id] = prompt_of(entry)
        return [each for each, prompt in found.items() if prompt.extra_data.get(MARK) == held.lease.name]

    async def forget(self, prompt_id: str) -> tuple[OutputFile, ...]:
        """Delete a run of ours that is over from the server's history; returns the files that it made."""
        entry = await self.history(prompt_id) if self._is_tidied else None
        if entry is None or MARK not in prompt_of(entry).extra_data:
            # it never began, is to be kept, or is a script's: what that makes is its user's
            return ()
        await self.forget_run(prompt_id)
        return result_of(entry.get("outputs") or {}, prompt_id=prompt_id).files

    async def run(self, graph: Graph, **options: Any) -> RunResult:
        sent = monotonic()
        # while another runs here, what is said is of that one
        began: float | None = None if self._runs_here else sent
        told = options.pop("on_event", None)

        def on_event(event: RunEvent) -> None:
            nonlocal began
            if began is None and isinstance(event, Started):
                began = monotonic()
            if told is not None:
                told(event)

        self._runs_here += 1
        try:
            if self._endings is not None:
                await self._endings.run_begins()
            return await super().run(graph, on_event=on_event, **options)
        except (RunLost, ServerUnreachable) as error:
            raise await self._with_last_lines(error, sent=sent, began=began) from error
        except RunTimedOut as error:
            if self._endings is not None:
                # it may never come back to its senses
                self._endings.stuck(error.detail)
            raise
        except OutOfMemory:
            with suppress(ComfyError):
                await self.free()
            raise
        except DeviceFault:
            log.warning("worker.comfyui_sick", server=self.url)
            self._sick_on = self.connection
            raise
        finally:
            self._runs_here -= 1

    async def _with_last_lines(self, error: ComfyError, *, sent: float, began: float | None) -> ComfyError:
        """How the process ended that was lost, with what it said last of this run, where that is known."""
        ending = await self._endings.since(sent) if self._endings is not None else None
        if ending is None:
            return error
        lines = ending.lines_since(began) if began is not None else []
        return RunLost(f"The run was lost: {ending.reason}", raw="\n".join(lines) or None)
