"""Run one leased job, from fetching its inputs to settling the lease and cleaning up."""

import asyncio
import hashlib
import json
import time
from collections.abc import Coroutine, Mapping, Sequence, Set
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

import structlog

from comfyrelay import traces
from comfyrelay.clock import utc_now
from comfyrelay.comfyui.client.uploads import Attachment
from comfyrelay.comfyui.graphs.graph import Graph, check_graph
from comfyrelay.comfyui.graphs.nodes import title_of
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
from comfyrelay.domain.records.jobs import FailedNode
from comfyrelay.errors import (
    ComfyError,
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
    RunTimedOut,
    TooLarge,
    TransferFailed,
    Unauthorized,
)
from comfyrelay.protocol.progress import Phase
from comfyrelay.worker.comfyui.out_of_memory import retry_line, too_large_message
from comfyrelay.worker.comfyui.servers import RunHistory
from comfyrelay.worker.files.inputs import job_folder
from comfyrelay.worker.files.output_uploads import upload_outputs
from comfyrelay.worker.files.outputs import CollectedOutput, collect, collect_more
from comfyrelay.worker.jobs.heartbeats import HeartbeatLoop
from comfyrelay.worker.jobs.outcome import OutcomeReporter
from comfyrelay.worker.jobs.previews import PreviewUploader
from comfyrelay.worker.jobs.run_limit import RunLimit
from comfyrelay.worker.jobs.tools import JobTools
from comfyrelay.worker.lease import Lease, LeaseStop
from comfyrelay.worker.state import HeldLease

log = structlog.get_logger(__name__)

# An output is uploaded again if the control plane finds it unreadable.
MAX_UPLOADS = 2
MAX_RAW_ERROR = 200_000
MAX_RETRY_SECONDS = 86_400.0
# Key in `about`: how often later processes have continued the run. Names that start with _ are not sent to the server.
RESUMES = "_resumes"
MAX_RESUMES = 3
# After these errors, the lease no longer belongs to this worker.
_LEASE_ENDED = (LeaseLost, NotFound, Unauthorized, Forbidden)


class JobRunner:
    """Runs one leased job. `run` returns after the lease has been settled or lost, and all files have been cleaned
    up."""

    def __init__(self, lease: Lease, tools: JobTools) -> None:
        self.lease = lease
        # The reason for requeueing the job when this worker shuts down.
        self.drain_reason = "shutdown"
        self._tools = tools
        self._heartbeats = HeartbeatLoop(
            tools.control, lease, interval_seconds=tools.settings.heartbeat_interval_seconds
        )
        self._previews = PreviewUploader(lease, tools.transfers)
        self._reporter = OutcomeReporter(lease, tools, self._heartbeats, running_seconds=lambda: self.running_seconds)
        self._history = RunHistory()
        self._limit = RunLimit(lease.job.max_run_seconds)
        # Runs that `orphaned_files` cleans up.
        self._handed_over: set[tuple[str, str]] = set()
        # The output in the format of the state folder.
        self._output: Mapping[str, Any] | None = None
        self._was_killed = self._was_queued = False
        # An earlier process may have uploaded inputs without knowing whether ComfyUI has read them.
        self._may_have_sent = False
        # Runs of an earlier process that no reachable server can stop now.
        self._runs_to_stop: Sequence[tuple[str, str]] | None = None
        self._began_at: float | None = None
        self._run_seconds: float | None = None

    @property
    def running_seconds(self) -> float:
        """Number of seconds for which the job has run so far."""
        if self._run_seconds is not None or self._began_at is None:
            return self._run_seconds or 0.0
        return asyncio.get_running_loop().time() - self._began_at

    async def run(self) -> None:
        lease, about = self.lease.job.lease_token, {"worker_id": self._tools.control.worker_id}
        with traces.span("job.run", self.lease.job_id, key=traces.run_key(lease), parent=lease, about=about):
            await self._while_held(self._until_stopped(self._work()))

    def _span(self, name: str) -> AbstractContextManager[None]:
        return traces.span(name, self.lease.job_id, parent=traces.run_key(self.lease.job.lease_token))

    async def settle_after_kill(self, held: HeldLease) -> None:
        """Settle a lease that a killed process of this worker held."""
        self._was_killed = True
        # The run was in ComfyUI's queue and had not started.
        self._was_queued = bool(held.runs) and held.lease.began_after_seconds is None
        self._history.runs.extend(held.runs)
        self._output = held.output
        collected = _load_output(held)
        if collected is None and self._may_resume(held):
            self._was_killed = False
            await self._while_held(self._resume(held))
            return
        self._may_have_sent = collected is None and self.lease.provider == "self_hosted"
        if collected is None and not self._tools.servers.is_unreachable:
            await self._stop_runs(held)
        elif collected is None:
            # No server can stop the runs now, so settle the lease and stop them later.
            self._runs_to_stop = held.runs
        await self._while_held(self._until_stopped(self._settle_after_kill(collected)))

    def _may_resume(self, held: HeldLease) -> bool:
        """Whether to continue the run of an earlier process. A cloud run does not end with the worker, and is charged.
        A job that repeatedly kills its worker is not continued."""
        is_cloud = self.lease.provider == "cloud" and not self._tools.servers.is_unreachable
        return is_cloud and held.about.get(RESUMES, 0) < MAX_RESUMES

    async def _resume(self, held: HeldLease) -> None:
        self.lease.about[RESUMES] = held.about.get(RESUMES, 0) + 1
        self._tools.servers.resume(held)
        try:
            await self._until_stopped(self._work())
        except _LEASE_ENDED:
            await self._stop_runs(held)
            raise
        if self.lease.stop is not None:
            # The job may have been stopped before the run was found.
            await self._stop_runs(held)

    async def stop_runs(self, held: HeldLease) -> None:
        """Stop runs of a lease that was settled while no server was reachable."""
        if self._tools.servers.is_unreachable:
            return
        self._history.runs.extend(held.runs)
        await self._stop_runs(held)
        self._clean_server()
        self._tools.state.forget(self.lease)

    async def _stop_runs(self, held: HeldLease) -> None:
        """Stop the runs of an earlier process, which must not continue in parallel with a new attempt."""
        found = await self._tools.servers.unfinished_runs(held)
        self._history.runs.extend(run for run in found if run not in held.runs)
        await self._tools.servers.stop(self._history.runs)

    async def _while_held(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` while heartbeats keep the lease alive, then clean up."""
        self._heartbeats.start()
        is_cancelled = False
        try:
            await work
        except _LEASE_ENDED as error:
            # Report nothing, because another worker has the job or will get it.
            log.warning("worker.job_lost", **self.lease.log_fields, why=error.detail)
        except asyncio.CancelledError:
            # This process exits before the control plane responds. The next process reports the outcome.
            is_cancelled = True
            raise
        except Exception:
            # The lease will expire.
            log.exception("worker.job_crashed", **self.lease.log_fields)
        finally:
            await self._heartbeats.close()
            self._clean_server()
            self._tools.inputs.clean(self.lease)
            if not is_cancelled and self._runs_to_stop is None:
                self._tools.state.forget(self.lease)
            elif not is_cancelled:
                self._tools.state.note(self.lease, runs=self._runs_to_stop or (), is_settled=True)
        self._tools.metrics.count_job(self._reporter.outcome)

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        working = asyncio.create_task(work)
        stopped = asyncio.create_task(self.lease.stopped.wait())
        try:
            await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done() and self.lease.phase is Phase.SETTLING and self.lease.stop is not LeaseStop.DRAINING:
                # The report is on its way, and the control plane decides whether to accept it.
                await asyncio.wait({working})
        finally:
            stopped.cancel()
            if not working.done():
                working.cancel()
                await asyncio.wait({working})
        if not working.cancelled():
            working.result()
        elif self.lease.stop is not None:
            await self._requeue_stopped(self.lease.stop)

    async def _settle_after_kill(self, collected: CollectedOutput | None) -> None:
        interrupted_jobs = self._tools.settings.interrupted_jobs
        if not self._tools.control.token:
            # Without a token, every report is refused.
            raise LeaseLost
        if collected is not None:
            self._enter(Phase.STORING)
            await self._store(collected)
        elif not self._history.runs or interrupted_jobs == "requeue" or self._was_queued:
            await self._reporter.requeue("worker_restart")
        else:
            # A job that kills its worker must run out of attempts.
            fault = Fault.JOB if interrupted_jobs == "fail" else Fault.WORKER
            await self._reporter.fail("The worker was killed while it ran this job.", fault)

    async def _work(self) -> None:
        fail = self._reporter.fail
        try:
            self._tools.state.note(self.lease, runs=self._history.runs)
            await self._store(await self._run_graph())
        except _LEASE_ENDED:
            raise
        except ComfyError as error:
            await self._report_error(error)
        except TransferFailed as error:
            if isinstance(error.__cause__, OSError):
                self._tools.on_disk_error()
            await fail(error.detail, error.fault)
        except (GraphError, InvalidInput, TooLarge) as error:
            await fail(error.detail, Fault.JOB, code=error.code)
        except OSError as error:
            self._tools.on_disk_error()
            await fail(f"The worker could not write its files: {error.strerror}.", Fault.WORKER)
        except Exception as error:
            log.exception("worker.job_crashed", **self.lease.log_fields)
            await fail(f"The worker failed unexpectedly ({type(error).__name__}).", Fault.WORKER)

    async def _run_graph(self) -> CollectedOutput:
        """Fetch the inputs, run the graph and collect the outputs on this machine's disk."""
        lease, tools = self.lease, self._tools
        graph = check_graph(lease.graph)
        await self._check_policy()
        with self._span("job.inputs"):
            attachments = await tools.inputs.fetch(lease, refresh=self._heartbeats.refresh)
        self._enter(Phase.WAITING)
        try:
            return await self._run_once(graph, attachments)
        except OutputGone:
            # ComfyUI cached all nodes, but the file of the earlier run no longer exists. Run again without the cache.
            comfyui = tools.servers.own.get(self._history.client_id or "")
            if comfyui is None:
                raise
            await comfyui.free()
            self._wait_for_server()
            return await self._run_once(graph, attachments)

    async def _run_once(self, graph: Graph, attachments: Sequence[Attachment]) -> CollectedOutput:
        lease, tools = self.lease, self._tools
        with self._span("comfyui.run"):
            try:
                async with self._previews.sending(), self._limit.enforced():
                    result = await tools.servers.run(
                        lease,
                        graph,
                        attachments,
                        history=self._history,
                        on_event=self._on_event,
                        on_move=self._wait_for_server,
                        usual_seconds=tools.durations.run_seconds(lease.workflow_hash),
                        cache_key=_cache_key(lease, tools.own_nodes),
                    )
            except RunTimedOut as error:
                if error.fault is Fault.JOB:
                    # If ComfyUI hangs, the job is not at fault.
                    await tools.servers.require_response(self._history.client_id)
                raise
        seconds = self._run_seconds = self.running_seconds
        tools.durations.record_run(lease.workflow_hash, seconds)
        tools.metrics.observe_run(seconds)
        self._enter(Phase.STORING)
        self._heartbeats.progress(1.0)
        assert self._history.server is not None
        path = tools.state.folder_of(lease) / f"output.{lease.payload.output_extension}"
        collected = await collect(self._history.server, result, lease, path)
        more, left_out = await collect_more(self._history.server, result, lease, path.parent)
        collected = replace(collected, more=more)
        if left_out is not None:
            self._heartbeats.log(left_out)
        self._output = collected.to_json()
        self._save_output()
        # The output is on this machine now, so the server no longer needs its files.
        self._clean_server()
        return collected

    def _save_output(self) -> None:
        self._tools.state.note(self.lease, runs=self._history.runs, output=self._output)

    async def _check_policy(self) -> None:
        """Check the graph against the policy. A graph without an effect is the tenant's own."""
        lease = self.lease
        servers = self._tools.servers
        definitions = await servers.node_definitions(lease.provider)
        if not definitions and lease.provider != "cloud":
            # Without the fault WORKER, the control plane would lease the job to this worker again at once.
            fault = Fault.WORKER if servers.online(lease.provider) else Fault.INTERRUPTED
            raise ComfyError("No ComfyUI of this worker returned its node definitions.", fault=fault)
        own = [asset.placeholder for asset in lease.payload.assets]
        graph = {name: node for name, node in lease.graph.items() if node["class_type"] not in self._tools.own_nodes}
        self._tools.policy.check(graph, own=own, object_info=definitions, is_effect=lease.job.effect_id is not None)

    async def _store(self, collected: CollectedOutput) -> None:
        """Upload the outputs and complete the lease, waiting for an unreachable control plane."""
        lease, tools = self.lease, self._tools
        prompt_id = self._history.runs[-1][1] if self._history.runs else ""
        started_at = asyncio.get_running_loop().time()
        for uploads_left in reversed(range(MAX_UPLOADS)):
            try:
                with self._span("job.upload"):
                    await upload_outputs(
                        lease, collected, tools.control, tools.transfers, refresh=self._heartbeats.refresh
                    )
            except TransferFailed as error:
                await self._reporter.fail(f"The output could not be stored. {error.detail}", Fault.WORKER)
                return
            if tools.on_output is not None:
                line = await tools.on_output(lease, collected, self._save_output)
                if line is not None:
                    self._heartbeats.log(line)
            try:
                await self._reporter.complete(collected, provider_job_id=prompt_id)
            except InvalidInput as error:
                if not uploads_left:
                    await self._reporter.fail(" ".join(error.errors.values()) or error.detail, Fault.JOB)
                    return
                self._enter(Phase.STORING)
                await self._heartbeats.refresh()
            else:
                break
        tools.durations.record_upload(lease.workflow_hash, asyncio.get_running_loop().time() - started_at)

    async def _report_error(self, error: ComfyError) -> None:
        if error.fault is Fault.INTERRUPTED:
            await self._reporter.requeue(error.detail)
            return
        self._log_last_lines(error)
        if error.node_id is not None:
            class_type = self.lease.graph.get(error.node_id, {}).get("class_type", "")
            self.lease.about |= FailedNode(node_id=error.node_id, class_type=class_type).to_about()
        detail, gpu_bytes = error.detail, None
        if isinstance(error, OutOfMemory):
            detail, gpu_bytes = too_large_message(error, self.lease.graph), error.gpu_bytes
        # Users get a sentence, and operators get all details.
        raw = (error.raw or "")[:MAX_RAW_ERROR]
        # Other attempts on this worker would fail too, if a node or model is missing, or memory is short without a GPU.
        is_repeatable = isinstance(error, NotInstalled | ModelUnreadable) or gpu_bytes == 0
        is_final = is_repeatable and self._tools.settings.is_only_worker
        is_blocked = await self._reporter.fail(
            json.dumps({"error_message": detail, "raw": raw}) if raw else detail,
            Fault.JOB if is_final else error.fault,
            retry_after_seconds=min(error.retry_after_seconds or 0.0, MAX_RETRY_SECONDS),
            code=error.code,
            gpu_memory_bytes=gpu_bytes or None,
        )
        if is_blocked and self._history.client_id is not None:
            self._tools.servers.restart_blocked(self._history.client_id)

    async def _requeue_stopped(self, why: LeaseStop) -> None:
        self._clean_server()
        if why is LeaseStop.LOST:
            raise LeaseLost
        if why is LeaseStop.DRAINING and self._was_killed:
            # The next process reports the outcome from the saved state.
            raise asyncio.CancelledError
        # If the control plane does not respond now, the next process must not count this job as killed, and may still
        # deliver its output.
        output = self._output if why is LeaseStop.DRAINING else None
        with suppress(OSError):
            self._tools.state.note(self.lease, runs=self._history.runs if output else (), output=output)
        reason = {LeaseStop.RELEASE: "released", LeaseStop.DRAINING: self.drain_reason}.get(why, why.value)
        await self._reporter.requeue(reason)

    def _on_event(self, event: PoolJobEvent) -> None:
        # A run that is waiting in ComfyUI's queue has not started and may be withdrawn.
        has_begun = isinstance(event, JobStarted) or (isinstance(event, JobAccepted) and not event.position)
        if has_begun and self.lease.phase is Phase.WAITING:
            self._start_run(event.client_id)
        elif isinstance(event, JobProgress):
            self._report_progress(event)
        elif isinstance(event, JobPreview):
            self._previews.take(event.image)
        elif isinstance(event, JobPrinted):
            self._heartbeats.log(event.line)
        elif isinstance(event, JobNoted):
            self.lease.about |= event.about
        elif isinstance(event, JobRetrying):
            self._log_last_lines(event.error)
            if isinstance(event.error, OutOfMemory):
                self._heartbeats.log(retry_line(event.error))
        if isinstance(event, JobAccepted | JobStarted | JobNoted):
            try:
                self._tools.state.note(self.lease, runs=self._history.runs)
            except OSError as error:
                log.warning("worker.state_not_saved", **self.lease.log_fields, why=str(error))

    def _start_run(self, server: str | None) -> None:
        lease = self.lease
        self._enter(Phase.RUNNING)
        self._limit.start()
        self._began_at = asyncio.get_running_loop().time()
        lease.began_at = utc_now()
        lease.server = server
        lease.began_after_seconds = time.monotonic() - lease.received_at
        # Without this, the job would appear to be waiting until its first node reports progress.
        self._heartbeats.progress(0.0)
        self._heartbeats.log(f"Running on {server}.")
        log.info("worker.job_started", **lease.log_fields, server=server)

    def _report_progress(self, event: JobProgress) -> None:
        graph = self.lease.graph
        title = title_of(graph, event.node_id) if event.node_id in graph else event.class_type
        if title != self.lease.node_title:
            self.lease.node_title = title
            self._heartbeats.log(f"{title} ({event.node_id})")
        self._heartbeats.progress(
            event.progress,
            node_id=event.node_id,
            node=title,
            node_class=event.class_type or None,
            step=event.value,
            steps=event.maximum,
        )
        self._tools.on_progress()

    def _log_last_lines(self, error: ComfyError) -> None:
        """Log the last output of a ComfyUI that died, unless other users may read it."""
        if isinstance(error, RunLost) and error.raw and not self._tools.policy.is_shared:
            for line in error.raw.splitlines():
                self._heartbeats.log(f"ComfyUI: {line}")

    def _wait_for_server(self) -> None:
        """Mark the job as waiting again, because it needs another run."""
        self._began_at = self._run_seconds = self.lease.began_at = self.lease.server = None
        self.lease.node_title = ""
        self._limit.reset()
        self._enter(Phase.WAITING)
        self._heartbeats.progress(0.0)

    def _enter(self, phase: Phase) -> None:
        self.lease.phase = phase
        self._tools.on_change()

    def _clean_server(self) -> None:
        """Delete the job's files on every server, because a server that refused the run may also have inputs."""
        result = self._history.result
        self._tools.folders.remove(lease=self.lease, result=result, prompt_ids=self._history.prompt_ids)
        folder = job_folder(self.lease)
        for client_id, server in self._tools.servers.own.items():
            if server.pop_unanswered_upload(folder) or self._may_have_sent:
                self._tools.orphaned_files.add_upload(client_id, folder)
        self._may_have_sent = False
        unfinished = {run for run in self._history.runs if result is None or run[1] != result.prompt_id}
        self._tools.orphaned_files.add(unfinished - self._handed_over)
        self._handed_over |= unfinished


def _load_output(held: HeldLease) -> CollectedOutput | None:
    collected = CollectedOutput.from_json(held.output) if held.output else None
    return collected if collected is not None and collected.is_complete else None


def _cache_key(lease: Lease, own_nodes: Set[str]) -> str | None:
    """Return an equal key for jobs of one tenant whose results ComfyUI could take from its cache, or `None`.

    Uploaded files get a new name in each job, and nodes that we run ourselves are never in ComfyUI's cache.
    """
    is_private = any(asset.content_hash is None for asset in lease.payload.assets)
    if is_private or not own_nodes.isdisjoint(node["class_type"] for node in lease.graph.values()):
        return None
    assets = {asset.placeholder: asset.content_hash for asset in lease.payload.assets}
    return hashlib.sha256(json.dumps([lease.job.tenant_id, lease.graph, assets], sort_keys=True).encode()).hexdigest()
