"""A ComfyUI client that recovers the server after a failure, before the next job starts on it."""

from collections import OrderedDict
from contextlib import suppress
from time import monotonic
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import structlog

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.comfyui.comfy_api.client import ComfyApiClient
from comfyrelay.comfyui.comfy_api.run import Submission
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.outputs import OutputFile, RunResult, result_of
from comfyrelay.comfyui.processes.supervisor import ProcessExit, Supervisor
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

# Each graph is sent with the name of its lease, so that its run can be found even if the worker was killed before it
# recorded the run.
MARK = "comfyrelay_lease"
# Our runs are deleted from the history one by one, so any further entries belong to other clients.
NEWEST_RUNS = 100
# Number of runs per lease that are looked up on a cloud service. A lease has one run, or two if memory ran out.
MAX_CLOUD_TRIES = 2
# In `extra_data`: the servers that the job has passed through.
VIA = "comfyrelay_via"
MAX_KNOWN_LEASES = 1000
# A run may notice the exit of its process before or after the supervisor does.
EXIT_SECONDS = 3.0
# Time within which a process that is being restarted must exit.
STOP_SECONDS = 30.0


class SupervisedProcess:
    """The process of a managed ComfyUI."""

    def __init__(self, supervisor: Supervisor, name: str) -> None:
        self._supervisor = supervisor
        self._name = name

    async def exit_since(self, began: float) -> ProcessExit | None:
        """Return the exit of the process after this `monotonic` time, if any."""
        return await self._supervisor.wait_for_exit(self._name, since=began, seconds=EXIT_SECONDS)

    async def mark_run_started(self) -> None:
        """Make new files in ComfyUI's own input folder available to the next run."""
        # A missing file is reported by the run.
        with suppress(OSError):
            await self._supervisor.mark_run_started(self._name)

    def restart_stuck(self, why: str) -> None:
        """Restart the process because a run is stuck."""
        self._supervisor.restart(self._name, f"A run is stuck. {why}")

    async def restart_out_of_memory(self) -> None:
        """Restart the process because it ran out of memory, and return when it has exited."""
        asked_at = monotonic()
        self._supervisor.restart(self._name, "It ran out of memory.")
        await self._supervisor.wait_for_exit(self._name, since=asked_at, seconds=STOP_SECONDS)


class RecoveringApiClient(ComfyApiClient):
    """Derives the idempotency keys of runs from their lease, so that a restarted worker continues a run instead of
    starting, and paying for, a second run."""

    def __init__(self, api_key: str, **options: Any) -> None:
        super().__init__(api_key, **options)
        self._tries: OrderedDict[str, int] = OrderedDict()
        # The jobs of an earlier process by lease, in the order in which they were started.
        self._earlier: OrderedDict[str, list[str]] = OrderedDict()

    async def run(self, graph: Graph, **options: Any) -> RunResult:
        extra_data = dict(options.pop("extra_data", None) or {})
        lease_name = extra_data.pop(MARK)
        number = self._tries[lease_name] = self._tries.pop(lease_name, 0) + 1
        if len(self._tries) > MAX_KNOWN_LEASES:
            self._tries.popitem(last=False)
        earlier = self._earlier.get(lease_name, [])
        submission = Submission(
            key=_key(lease_name, number),
            job_id=earlier[number - 1] if len(earlier) >= number else None,
            via=extra_data.pop(VIA, ()),
        )
        return await super().run(graph, extra_data=extra_data, submission=submission, **options)

    def resume(self, held: HeldLease, job_ids: list[str]) -> None:
        """Let the next runs of a lease continue these jobs of an earlier process."""
        self._earlier[held.lease.name] = job_ids
        if len(self._earlier) > MAX_KNOWN_LEASES:
            self._earlier.popitem(last=False)

    async def unfinished_prompts(self, held: HeldLease) -> list[str]:
        """Return the jobs that an earlier process started for a lease, as far as the service finds them by key."""
        keys = [_key(held.lease.name, number) for number in range(1, MAX_CLOUD_TRIES + 1)]
        return [job_id for key in keys if (job_id := await self.find_job(key)) is not None]


def _key(lease_name: str, number: int) -> str:
    return str(uuid5(NAMESPACE_OID, f"{MARK}/{lease_name}/{number}"))


class RecoveringClient(ComfyClient):
    """Frees ComfyUI's memory after it ran out.

    After a GPU fault, the server is unusable until ComfyUI restarts: ComfyUI appears healthy but fails every job.
    """

    def __init__(
        self, url: str, *, timeouts: RunTimeouts, deletes_history: bool = True, process: SupervisedProcess | None = None
    ) -> None:
        """`deletes_history`: delete our finished runs from the history. `process` is set for a managed ComfyUI."""
        super().__init__(url, timeouts=timeouts, delete_history=deletes_history)
        self._deletes_history = deletes_history
        self._process = process
        # The connection on which the GPU failed. A new connection means a new process.
        self._gpu_fault_connection: int | None = None
        # ComfyUI may still respond while it is being stopped.
        self.is_restarting = False
        self._active_runs = 0

    @property
    def has_gpu_fault(self) -> bool:
        return self._gpu_fault_connection is not None

    async def check(self) -> None:
        await self.check_health()
        if self.is_restarting:
            raise ServerRefused("ComfyUI is being restarted.")

    async def check_health(self) -> None:
        """Raise `ComfyError` unless the server responds and its GPU works."""
        try:
            await super().check()
        except PortClosed:
            # ComfyUI has exited, so the next process has no GPU fault. Without a WebSocket, connection numbers do not
            # show a restart. A slow response is not a restart.
            self._gpu_fault_connection = None if self._gpu_fault_connection is None else -1
            raise
        if self._gpu_fault_connection is not None and self._gpu_fault_connection == self.connection:
            raise ServerRefused("The GPU is in a bad state until ComfyUI is restarted.")
        self._gpu_fault_connection = None

    @property
    def is_managed(self) -> bool:
        return self._process is not None

    async def restart_out_of_memory(self) -> None:
        """Restart a managed ComfyUI. The server is not usable until its process has exited."""
        if self._process is None:
            return
        self.is_restarting = True
        try:
            await self._process.restart_out_of_memory()
        finally:
            self.is_restarting = False

    async def unfinished_prompts(self, held: HeldLease) -> list[str]:
        """Return the ids of waiting, running and finished prompts on this server for a lease of an earlier process."""
        prompts = await self.prompts()
        # Read the history last, so that a run that ends in between is seen at least once.
        for prompt_id, entry in (await self.newest_history(NEWEST_RUNS)).items():
            prompts[prompt_id] = prompt_of(entry)
        return [prompt_id for prompt_id, prompt in prompts.items() if prompt.extra_data.get(MARK) == held.lease.name]

    async def delete_finished_run(self, prompt_id: str) -> tuple[OutputFile, ...]:
        """Delete one of our finished runs from the server's history. Returns the run's files."""
        entry = await self.history(prompt_id) if self._deletes_history else None
        if entry is None or MARK not in prompt_of(entry).extra_data:
            # The run never started, must remain in the history, or belongs to a script, whose files are the user's.
            return ()
        await self.delete_run(prompt_id)
        return result_of(entry.get("outputs") or {}, prompt_id=prompt_id).files

    async def run(self, graph: Graph, **options: Any) -> RunResult:
        sent_at = monotonic()
        # While another run is active, printed lines belong to that run.
        began_at: float | None = None if self._active_runs else sent_at
        listener = options.pop("on_event", None)

        def on_event(event: RunEvent) -> None:
            nonlocal began_at
            if began_at is None and isinstance(event, Started):
                began_at = monotonic()
            if listener is not None:
                listener(event)

        self._active_runs += 1
        try:
            if self._process is not None:
                await self._process.mark_run_started()
            return await super().run(graph, on_event=on_event, **options)
        except (RunLost, ServerUnreachable) as error:
            raise await self._with_last_lines(error, sent_at=sent_at, began_at=began_at) from error
        except RunTimedOut as error:
            if self._process is not None:
                # The GPU may not recover without a restart.
                self._process.restart_stuck(error.detail)
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
            self._active_runs -= 1

    async def _with_last_lines(self, error: ComfyError, *, sent_at: float, began_at: float | None) -> ComfyError:
        """Add the exit of the process and the last lines of this run to the error, if known."""
        process_exit = await self._process.exit_since(sent_at) if self._process is not None else None
        if process_exit is None:
            return error
        lines = process_exit.lines_since(began_at) if began_at is not None else []
        return RunLost(f"The run was lost: {process_exit.reason}", raw="\n".join(lines) or None)
