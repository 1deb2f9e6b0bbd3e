"""Run one leased job, from fetching its inputs to settling the lease and cleaning up."""

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from comfyrelay.clock import utc_now
from comfyrelay.comfyui.client.uploads import Attachment
from comfyrelay.comfyui.graphs.graph import Graph, check_graph
from comfyrelay.comfyui.graphs.nodes import title_of
from comfyrelay.comfyui.graphs.policy import GraphPolicy
from comfyrelay.comfyui.pool import (
    JobAccepted,
    JobNoted,
    JobPreview,
    JobPrinted,
    JobProgress,
    JobRetrying,
    JobStarted,
    PoolJobEvent,
)
from comfyrelay.error_text import user_sentence
from comfyrelay.errors import (
    ComfyError,
    ComfyRelayError,
    Fault,
    Forbidden,
    GraphError,
    InvalidInput,
    LeaseLost,
    ModelUnreadable,
    NotFound,
    NotInstalled,
    OutOfMemory,
    OutputGone,
    RunLost,
    TooLarge,
    TransferFailed,
    Unauthorized,
)
from comfyrelay.protocol.base import checked
from comfyrelay.protocol.progress import Phase
from comfyrelay.protocol.worker import RunReport
from comfyrelay.worker.comfyui.orphaned_files import OrphanedFiles
from comfyrelay.worker.comfyui.out_of_memory import runs_again, too_large_for
from comfyrelay.worker.comfyui.servers import RunHistory, Servers
from comfyrelay.worker.control import ControlPlane, retry_until_reachable
from comfyrelay.worker.estimate import Typical
from comfyrelay.worker.files.inputs import Inputs, job_folder
from comfyrelay.worker.files.outputs import CollectedOutput, collect, collect_more, others
from comfyrelay.worker.files.run_folders import ComfyFolders
from comfyrelay.worker.files.transfers import Transfers
from comfyrelay.worker.heartbeats import HeartbeatLoop
from comfyrelay.worker.lease import Lease, LeaseStop
from comfyrelay.worker.metrics import WorkerMetrics
from comfyrelay.worker.previews import PreviewUploader
from comfyrelay.worker.settings import WorkerSettings
from comfyrelay.worker.state import HeldLease, StateFolder

log = structlog.get_logger(__name__)

# How often an output is uploaded if the control plane finds it unreadable.
UPLOADS = 2
LONGEST_RAW = 200_000
LONGEST_RETRY_SECONDS = 86_400.0
# A control plane that has answered no heartbeat for this long counts as unreachable.
AWAY_SECONDS = 90.0
LOG_SECONDS = 60.0
# The lease has ended for this worker.
_NOT_OURS = (LeaseLost, NotFound, Unauthorized, Forbidden)


# Called with a function that saves the lease to disk. Returns a line for the job's log, if any.
OutputListener = Callable[[Lease, CollectedOutput, Callable[[], None]], Awaitable[str | None]]


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Shared by all jobs of a worker."""

    control: ControlPlane
    servers: Servers
    state: StateFolder
    transfers: Transfers
    inputs: Inputs
    folders: ComfyFolders
    orphaned_files: OrphanedFiles
    typical: Typical
    metrics: WorkerMetrics
    settings: WorkerSettings
    policy: GraphPolicy
    # node classes that ComfyUI never sees; the code that runs them checks the files they name
    own_nodes: frozenset[str]
    # a job entered another phase
    on_change: Callable[[], None]
    on_progress: Callable[[], None]
    # this machine's disk refuses writes
    on_disk_error: Callable[[], None]
    # an output is stored and about to be reported
    on_output: OutputListener | None = None


class Work:
    """The work on one lease. `run` returns when it is settled or lost and everything is cleaned up."""

    def __init__(self, lease: Lease, tools: Tools) -> None:
        self.lease = lease
        # reason for requeueing when this worker shuts down
        self.drain_reason = "shutdown"
        self._tools = tools
        self._heartbeats = HeartbeatLoop(
            tools.control, lease, interval_seconds=tools.settings.heartbeat_interval_seconds
        )
        self._previews = PreviewUploader(lease, tools.transfers)
        self._history = RunHistory()
        # runs that another component stops and cleans up
        self._handed_over: set[tuple[str, str]] = set()
        # the output as saved in the state folder
        self._output: Mapping[str, Any] | None = None
        self._was_killed = self._was_behind = False
        # an earlier process cannot know whether its inputs were read
        self._may_have_sent = False
        # runs of an earlier process, while no server is reachable
        self._runs_to_stop: Sequence[tuple[str, str]] | None = None
        self._began_at: float | None = None
        self._history_seconds: float | None = None
        self._outcome = "lost"

    @property
    def running_seconds(self) -> float:
        """How long it ran, or has been running so far."""
        if self._history_seconds is not None or self._began_at is None:
            return self._history_seconds or 0.0
        return asyncio.get_running_loop().time() - self._began_at

    async def run(self) -> str:
        """Do the work. Returns the outcome: completed, failed, requeued or lost."""
        return await self._while_held(self._until_stopped(self._work()))

    async def settle_after_kill(self, held: HeldLease) -> str:
        """Settle a lease that was held by a killed process of this worker."""
        self._was_killed = True
        # it waited in ComfyUI's queue and had not started
        self._was_behind = bool(held.runs) and held.lease.began_after_seconds is None
        self._history.runs.extend(held.runs)
        self._output = held.output
        collected = _recalled(held.output)
        self._may_have_sent = collected is None and self.lease.provider == "self_hosted"
        if collected is None and not self._tools.servers.is_away:
            await self._stop_runs(held)
        elif collected is None:
            # no server can stop them now: settle the lease and stop them later
            self._runs_to_stop = held.runs
        return await self._while_held(self._until_stopped(self._settle_after_kill(collected)))

    async def stop_runs(self, held: HeldLease) -> str:
        """Stop runs of a lease that was settled while no server was reachable."""
        if self._tools.servers.is_away:
            return self._outcome
        self._history.runs.extend(held.runs)
        await self._stop_runs(held)
        self._clean_server()
        self._tools.state.forget(self.lease)
        return self._outcome

    async def _stop_runs(self, held: HeldLease) -> None:
        """Stop them in any case: none may run in parallel with a new attempt."""
        found = await self._tools.servers.unfinished_runs(held)
        self._history.runs.extend(each for each in found if each not in held.runs)
        await self._tools.servers.stop(self._history.runs)

    async def _while_held(self, work: Coroutine[Any, Any, None]) -> str:
        """Run `work` while heartbeats keep the lease alive, then clean up."""
        self._heartbeats.start()
        is_cut_off = False
        try:
            await work
        except _NOT_OURS as error:
            # report nothing: another worker has the job, or will get it
            log.warning("worker.job_lost", **self._names, why=error.detail)
        except asyncio.CancelledError:
            # this process exits before the control plane answered: the next process reports
            is_cut_off = True
            raise
        except Exception:
            # leave the lease to expire
            log.exception("worker.job_broke", **self._names)
        finally:
            await self._heartbeats.close()
            self._clean_server()
            self._tools.inputs.clean(self.lease)
            if not is_cut_off:
                self._release()
        self._tools.metrics.ended(self._outcome)
        return self._outcome

    def _release(self) -> None:
        if self._runs_to_stop is None:
            self._tools.state.forget(self.lease)
        else:
            self._tools.state.note(self.lease, runs=self._runs_to_stop, is_settled=True)

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        doing = asyncio.create_task(work)
        stopped = asyncio.create_task(self.lease.stopped.wait())
        try:
            await asyncio.wait({doing, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done() and self.lease.phase is Phase.SETTLING and self.lease.stop is not LeaseStop.DRAINING:
                # the report is on its way, and the control plane decides whether it counts
                await asyncio.wait({doing})
        finally:
            stopped.cancel()
            if not doing.done():
                doing.cancel()
                await asyncio.wait({doing})
        if not doing.cancelled():
            # re-raise its error
            doing.result()
        elif self.lease.stop is not None:
            await self._stopped(self.lease.stop)

    async def _settle_after_kill(self, collected: CollectedOutput | None) -> None:
        killed_jobs = self._tools.settings.killed_jobs
        if not self._tools.control.token:
            # without a token every report is refused
            raise LeaseLost
        if collected is not None:
            self._move(Phase.STORING)
            await self._store(collected, prompt_id=self._prompt_id)
        elif not self._history.runs or killed_jobs == "requeue" or self._was_behind:
            await self._requeue("worker_restart")
        else:
            # a job that kills its worker must run out of attempts
            fault = Fault.JOB if killed_jobs == "fail" else Fault.WORKER
            await self._fail("The worker was killed while it ran this job.", fault)

    async def _work(self) -> None:
        try:
            self._tools.state.note(self.lease)
            collected = await self._made()
            await self._store(collected, prompt_id=self._prompt_id)
        except _NOT_OURS:
            raise
        except ComfyError as error:
            await self._failed(error)
        except TransferFailed as error:
            if isinstance(error.__cause__, OSError):
                self._tools.on_disk_error()
            await self._fail(error.detail, error.fault)
        except (GraphError, InvalidInput, TooLarge) as error:
            await self._fail(error.detail, Fault.JOB, code=error.code)
        except OSError as error:
            self._tools.on_disk_error()
            await self._fail(f"The worker could not write its files: {error.strerror}.", Fault.WORKER)
        except Exception as error:
            log.exception("worker.job_broke", **self._names)
            await self._fail(f"The worker failed unexpectedly ({type(error).__name__}).", Fault.WORKER)

    async def _made(self) -> CollectedOutput:
        """Fetch the inputs, run the graph and collect the output on this machine's disk."""
        lease, tools = self.lease, self._tools
        graph = check_graph(lease.graph)
        await self._check_graph()
        attachments = await tools.inputs.fetch(lease, refresh=self._heartbeats.refresh)
        self._move(Phase.WAITING)
        try:
            return await self._run(graph, attachments)
        except OutputGone:
            # everything was cached, but the file of the earlier run is gone: run again without the cache
            comfyui = tools.servers.find(self._history.client_id)
            if comfyui is None:
                raise
            await comfyui.free()
            self._wait_for_server()
            return await self._run(graph, attachments)

    async def _run(self, graph: Graph, attachments: Sequence[Attachment]) -> CollectedOutput:
        lease, tools = self.lease, self._tools
        async with self._previews.being_sent():
            result = await tools.servers.run(
                lease,
                graph,
                attachments,
                history=self._history,
                on_event=self._on_event,
                on_move=self._wait_for_server,
                usual_seconds=tools.typical.run_seconds(lease.workflow_hash),
                cache_key=_cache_key(lease, tools.own_nodes),
            )
        self._note_run()
        self._move(Phase.STORING)
        self._heartbeats.progress(1.0)
        assert self._history.server is not None
        place = tools.state.folder_of(lease) / f"output.{lease.payload.output_extension}"
        collected = await collect(self._history.server, result, lease, place)
        if tools.on_output is not None:
            more, left_out = await collect_more(self._history.server, result, lease, place.parent)
            collected = replace(collected, more=more)
            if left_out:
                self._heartbeats.log(f"{left_out} more files of the run are not kept: too many, or too large.")
        elif dropped := others(result, lease):
            self._heartbeats.log(f"The run made {len(dropped)} more files, which are not kept: a job has one output.")
        self._output = collected.to_json()
        self._save_output()
        # the output is local now, so the server's files can go
        self._clean_server()
        return collected

    def _save_output(self) -> None:
        self._tools.state.note(self.lease, runs=self._history.runs, output=self._output)

    async def _check_graph(self) -> None:
        """Check the graph against the policy. A graph without an effect is the tenant's own."""
        lease = self.lease
        servers = self._tools.servers
        info = await servers.node_definitions(lease.provider)
        if not info and lease.provider != "cloud":
            # with no fault of the worker, the job would be leased to it again at once
            fault = Fault.WORKER if servers.online(lease.provider) else Fault.INTERRUPTED
            raise ComfyError("No ComfyUI of this worker can say what its nodes are.", fault=fault)
        own = [asset.placeholder for asset in lease.payload.assets]
        graph = {name: node for name, node in lease.graph.items() if node["class_type"] not in self._tools.own_nodes}
        self._tools.policy.check(graph, own=own, object_info=info, is_effect=lease.job.effect_id is not None)

    async def _store(self, collected: CollectedOutput, *, prompt_id: str) -> None:
        """Upload the output and complete the lease, waiting for an unreachable control plane."""
        lease, tools = self.lease, self._tools
        started_at = asyncio.get_running_loop().time()
        for attempt in range(UPLOADS):
            try:
                await tools.transfers.upload(collected.path, lambda: lease.urls, refresh=self._heartbeats.refresh)
            except TransferFailed as error:
                await self._fail(f"The output could not be stored. {error.detail}", Fault.WORKER)
                return
            if tools.on_output is not None:
                line = await tools.on_output(lease, collected, self._save_output)
                if line is not None:
                    self._heartbeats.log(line)
            try:
                await self._settle(
                    lambda: tools.control.complete(
                        lease, self._report, output=collected.as_output, provider_job_id=prompt_id
                    )
                )
            except InvalidInput as error:
                if attempt + 1 == UPLOADS:
                    await self._fail(_sentence(error), Fault.JOB)
                    return
                self._move(Phase.STORING)
                await self._heartbeats.refresh()
            else:
                break
        tools.typical.stored(lease.workflow_hash, asyncio.get_running_loop().time() - started_at)
        self._end("completed")

    async def _failed(self, error: ComfyError) -> None:
        if error.fault is Fault.INTERRUPTED:
            await self._requeue(error.detail)
        else:
            self._log_last_lines(error)
            # a sentence for the user and full details for the operator
            raw = (error.raw or "")[:LONGEST_RAW]
            gpu_bytes = error.gpu_bytes if isinstance(error, OutOfMemory) else None
            detail = too_large_for(error, self.lease.graph) if isinstance(error, OutOfMemory) else error.detail
            text = json.dumps({"error_message": detail, "raw": raw}) if raw else detail
            # a missing node or model would fail every other attempt here
            is_final = isinstance(error, NotInstalled | ModelUnreadable) and self._tools.settings.is_only_worker
            fault = Fault.JOB if is_final else error.fault
            await self._fail(
                text,
                fault,
                retry_after_seconds=min(error.retry_after_seconds or 0.0, LONGEST_RETRY_SECONDS),
                code=error.code,
                gpu_memory_bytes=gpu_bytes,
            )

    async def _stopped(self, why: LeaseStop) -> None:
        self._clean_server()
        if why is LeaseStop.LOST:
            raise LeaseLost
        if why is LeaseStop.DRAINING and self._was_killed:
            # leave the saved state as it is: the next process reports it
            raise asyncio.CancelledError
        # If the control plane does not answer now, the next process must not count this job as killed, and may still
        # deliver its output.
        output = self._output if why is LeaseStop.DRAINING else None
        with suppress(OSError):
            self._tools.state.note(self.lease, runs=self._history.runs if output else (), output=output)
        reason = {LeaseStop.RELEASE: "released", LeaseStop.DRAINING: self.drain_reason}.get(why, why.value)
        await self._requeue(reason)

    async def _fail(
        self,
        error: str,
        fault: Fault,
        *,
        retry_after_seconds: float = 0.0,
        code: str | None = None,
        gpu_memory_bytes: int | None = None,
    ) -> None:
        self._heartbeats.log(f"Failed: {user_sentence(error)}")
        await self._settle(
            lambda: self._tools.control.fail(
                self.lease,
                self._report,
                error=error,
                fault=fault,
                retry_after_seconds=retry_after_seconds,
                code=code,
                gpu_memory_bytes=gpu_memory_bytes,
            )
        )
        self._end("failed", fault=fault.value, error=user_sentence(error))

    async def _requeue(self, reason: str) -> None:
        await self._settle(lambda: self._tools.control.requeue(self.lease, self._report, reason=reason[:500]))
        self._end("requeued", reason=reason)

    async def _settle(self, verdict: Callable[[], Awaitable[None]]) -> None:
        """Report the outcome until the control plane answers.

        An unreachable control plane is retried without limit, because only it knows whether the lease is valid. One
        that accepts heartbeats but answers each report with an error would keep the job leased for ever, so after a
        while the lease is left to expire.
        """
        self._move(Phase.SETTLING)
        await self._heartbeats.flush()
        loop = asyncio.get_running_loop()
        since, next_log = loop.time(), 0.0

        def on_pause(error: ComfyRelayError, _seconds: float) -> None:
            nonlocal since, next_log
            now = loop.time()
            if self.lease.stop is LeaseStop.LOST:
                raise LeaseLost
            if now - self._heartbeats.answered_at > AWAY_SECONDS:
                since = now
            # an older heartbeat says nothing about the control plane now
            if self._heartbeats.sent_at - since >= self._tools.settings.verdict_timeout_seconds:
                raise LeaseLost("The control plane takes heartbeats, but not what became of the job.")
            if now >= next_log:
                next_log = now + LOG_SECONDS
                log.warning("worker.not_settled_yet", **self._names, why=error.detail)

        await retry_until_reachable(verdict, on_pause=on_pause)

    def _on_event(self, event: PoolJobEvent) -> None:
        lease = self.lease
        # a run in ComfyUI's queue has not started and may be withdrawn
        has_begun = isinstance(event, JobStarted) or (isinstance(event, JobAccepted) and not event.position)
        if has_begun and lease.phase is Phase.WAITING:
            self._move(Phase.RUNNING)
            self._began_at = asyncio.get_running_loop().time()
            lease.began_at = utc_now()
            lease.server = event.client_id
            lease.began_after_seconds = time.monotonic() - lease.received_at
            # at once: until its first node reports, it would look like a waiting job
            self._heartbeats.progress(0.0)
            self._heartbeats.log(f"Running on {event.client_id}.")
            log.info("worker.job_runs", **self._names, server=event.client_id)
        elif isinstance(event, JobProgress):
            title = title_of(lease.graph, event.node_id) if event.node_id in lease.graph else event.class_type
            if title != lease.node_title:
                lease.node_title = title
                self._heartbeats.log(f"{title} ({event.node_id})")
            self._heartbeats.progress(
                event.progress, node_id=event.node_id, node=title, step=event.value, steps=event.maximum
            )
            self._tools.on_progress()
        elif isinstance(event, JobPreview):
            self._previews.take(event.image)
        elif isinstance(event, JobPrinted):
            self._heartbeats.log(event.line)
        elif isinstance(event, JobNoted):
            lease.about |= event.about
        elif isinstance(event, JobRetrying):
            self._log_last_lines(event.error)
            if isinstance(event.error, OutOfMemory):
                self._heartbeats.log(runs_again(event.error))
        if isinstance(event, JobAccepted | JobStarted | JobNoted):
            self._note_runs()

    def _log_last_lines(self, error: ComfyError) -> None:
        """Log the last output of a ComfyUI that died.

        It is for the machine's owner, because it may contain other users' text.
        """
        if isinstance(error, RunLost) and error.raw and not self._tools.policy.is_shared:
            for line in error.raw.splitlines():
                self._heartbeats.log(f"ComfyUI: {line}")

    def _wait_for_server(self) -> None:
        """Mark the job as waiting again: it needs another run."""
        self._began_at = self._history_seconds = self.lease.began_at = self.lease.server = None
        self.lease.node_title = ""
        self._move(Phase.WAITING)
        self._heartbeats.progress(0.0)

    def _note_runs(self) -> None:
        try:
            self._tools.state.note(self.lease, runs=self._history.runs)
        except OSError as error:
            log.warning("worker.not_written_down", **self._names, why=str(error))

    def _note_run(self) -> None:
        seconds = self._history_seconds = self.running_seconds
        self._tools.typical.ran(self.lease.workflow_hash, seconds)
        self._tools.metrics.ran(seconds)

    def _move(self, phase: Phase) -> None:
        self.lease.phase = phase
        self._tools.on_change()

    def _end(self, outcome: str, **more: Any) -> None:
        self._outcome = outcome
        log.info(f"worker.job_{outcome}", **self._names, seconds=round(self.running_seconds, 2), **more)

    @property
    def _report(self) -> RunReport:
        lease = self.lease
        return checked(
            RunReport,
            seed=_seed_of(lease.graph, lease.about),
            began_after_seconds=lease.began_after_seconds,
            about={name: value for name, value in lease.about.items() if not name.startswith("_")} or None,
        )

    @property
    def _prompt_id(self) -> str:
        return self._history.prompt_ids[-1] if self._history.runs else ""

    @property
    def _names(self) -> dict[str, Any]:
        return {
            "job_id": self.lease.job_id,
            "dispatch_id": self.lease.dispatch_id,
            "workflow": self.lease.workflow_hash,
            "attempt": self.lease.job.attempt,
        }

    def _clean_server(self) -> None:
        # on every server: inputs may also be left where a run was refused
        result = self._history.result
        self._tools.folders.remove(lease=self.lease, result=result, prompt_ids=self._history.prompt_ids)
        folder = job_folder(self.lease)
        for client_id, server in self._tools.servers.named.items():
            if server.pop_unanswered_upload(folder) or self._may_have_sent:
                self._tools.orphaned_files.add_upload(client_id, folder)
        self._may_have_sent = False
        unfinished = {run for run in self._history.runs if result is None or run[1] != result.prompt_id}
        self._tools.orphaned_files.add(unfinished - self._handed_over)
        self._handed_over |= unfinished


def _cache_key(lease: Lease, own_nodes: Set[str]) -> str | None:
    """Return the same key for jobs of one tenant that ComfyUI could serve from its cache, if any.

    Uploaded files get a new name in each job, and nodes that we run ourselves never reach ComfyUI's cache.
    """
    is_private = any(asset.content_hash is None for asset in lease.payload.assets)
    if is_private or not own_nodes.isdisjoint(node["class_type"] for node in lease.graph.values()):
        return None
    assets = {asset.placeholder: asset.content_hash for asset in lease.payload.assets}
    return hashlib.sha256(json.dumps([lease.job.tenant_id, lease.graph, assets], sort_keys=True).encode()).hexdigest()


def _recalled(output: Mapping[str, Any] | None) -> CollectedOutput | None:
    collected = CollectedOutput.from_json(output) if output else None
    return collected if collected is not None and Path(collected.path).is_file() else None


def _sentence(error: ComfyRelayError) -> str:
    reasons = " ".join(error.errors.values()) if isinstance(error, InvalidInput) else ""
    return reasons or error.detail


def _seed_of(graph: dict[str, Any], about: Mapping[str, Any]) -> int | None:
    """Return the reported seed, or the one in the graph."""
    if isinstance(seed := about.get("seed"), int):
        return seed
    # a sampler that adds no noise ignores its seed
    makers = [each for each in graph.values() if each["inputs"].get("add_noise") not in ("disable", False)]
    for node in makers or graph.values():
        for name in ("seed", "noise_seed"):
            value = node["inputs"].get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
    return None
