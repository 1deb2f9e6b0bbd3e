"""One run of a graph on a service: submit it once, follow its progress, and cancel it if the call is canceled."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import httpx

from comfyrelay.comfyui.client.uploads import Attachment
from comfyrelay.comfyui.comfy_api.assets import AssetUploader
from comfyrelay.comfyui.comfy_api.events import JobProgress, events_in
from comfyrelay.comfyui.comfy_api.http import error_code, is_busy
from comfyrelay.comfyui.comfy_api.job_api import JOBS, KEY_REUSED, JobApi, job_in, job_of_key
from comfyrelay.comfyui.comfy_api.jobs import Phase, failure_of_job, has_known_state, outputs_of, phase_of
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.outputs import RunResult, result_of
from comfyrelay.comfyui.runs.active_runs import ActiveRuns
from comfyrelay.comfyui.runs.events import EventListener
from comfyrelay.comfyui.runs.timeouts import RunTimeouts, SilenceLimit
from comfyrelay.comfyui.runs.unknown_kinds import UnknownKinds
from comfyrelay.errors import (
    ComfyError,
    ComfyRelayError,
    Fault,
    NoOutput,
    RateLimited,
    RunLost,
    RunTimedOut,
    ServerRefused,
    ServerUnreachable,
)
from comfyrelay.http_client import NotConnected
from comfyrelay.wakeup import Wakeup

STOP_SECONDS = 10.0
# While events arrive, the job is read only after this number of polls.
POLLS_SKIPPED = 10
# A healthy stream is never silent for longer.
STREAM_TIMEOUT = httpx.Timeout(30.0, read=90.0, pool=None)
# Lists the servers that a job has passed through, so that a server can refuse a job that returns to it.
VIA_HEADER = "ComfyRelay-Via"
UNKNOWN_OUTCOME = (
    "The cloud service may have received this job, but did not report its outcome. It is not sent again, because "
    "it could be charged twice."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """How a graph is submitted. A service accepts each key once. `job_id` is the job of an earlier process with this
    key, if it is known. `via` are the servers that the job has passed through."""

    key: str
    job_id: str | None = None
    via: Sequence[str] = ()


class ApiRun:
    """One run of a graph."""

    def __init__(
        self,
        api: JobApi,
        uploader: AssetUploader,
        runs: ActiveRuns,
        graph: Graph,
        *,
        attachments: Sequence[Attachment],
        timeouts: RunTimeouts,
        listener: EventListener,
        extra_data: Mapping[str, Any],
        submission: Submission,
        poll_seconds: float,
        unknown_kinds: UnknownKinds,
    ) -> None:
        self._api = api
        self._http = api.http
        self._uploader = uploader
        self._runs = runs
        self._poll_seconds = poll_seconds
        self._unknown_kinds = unknown_kinds
        self._graph = graph
        self._attachments = attachments
        self._timeouts = timeouts
        self._listener = listener
        self._extra_data = extra_data
        self._submission = submission
        self._changed = Wakeup()
        self._is_streaming = False

    async def run(self, wanted: Sequence[str]) -> RunResult:
        job = await self._submit_or_find()
        job_id = job["id"]
        progress = JobProgress(graph=self._graph, prompt_id=job_id, on_event=self._listener)
        progress.mark_accepted()
        events = self._http.path_of((job.get("urls") or {}).get("events"), f"{JOBS}/{job_id}/events")
        streaming = asyncio.create_task(self._stream(events, progress))
        try:
            job = await self._wait(progress, job)
        except (asyncio.CancelledError, RunTimedOut, ServerUnreachable, ServerRefused):
            # The job may still be running, and would be charged.
            await self._stop(job_id)
            raise
        finally:
            streaming.cancel()
            await asyncio.gather(streaming, return_exceptions=True)
        result = result_of({}, prompt_id=job_id, sent=outputs_of(job), wanted=wanted)
        if result.is_empty:
            raise NoOutput
        return result

    async def _submit_or_find(self) -> dict[str, Any]:
        """Return the submitted job, or the job of an earlier process."""
        if self._submission.job_id is not None:
            return await self._api.job(self._submission.job_id)
        graph = await self._uploader.attach(self._graph, self._attachments)
        submitting = asyncio.create_task(self._submit(graph))
        try:
            return await asyncio.shield(submitting)
        except asyncio.CancelledError:
            await self._runs.finish_stop(self._stop_submitted(submitting))
            raise

    async def _submit(self, graph: Graph) -> dict[str, Any]:
        response = await self._post(graph)
        if error_code(response) == "missing_asset" and self._attachments:
            # A remembered file no longer exists. The key can be used again after a refused submission.
            self._uploader.forget_uploads()
            response = await self._post(await self._uploader.attach(self._graph, self._attachments))
        if response.is_success:
            return job_in(response)
        if error_code(response) != KEY_REUSED:
            raise self._http.refusal(response)
        if (job_id := job_of_key(response)) is None:
            raise RunLost(UNKNOWN_OUTCOME, fault=Fault.JOB, raw=response.text[:2000])
        return await self._api.job(job_id)

    async def _post(self, graph: Graph) -> httpx.Response:
        """Post a graph, with retries. The key makes sure that at most one job is created."""
        body = {"workflow": graph, **({"extra_data": self._extra_data} if self._extra_data else {})}
        headers = {"Idempotency-Key": self._submission.key}
        if self._submission.via:
            headers[VIA_HEADER] = ", ".join(self._submission.via)
        may_exist, attempt = False, 0
        while True:
            response, error = None, None
            try:
                response = await self._http.send_once("POST", JOBS, json=body, headers=headers)
            except ServerUnreachable as failure:
                error = failure
                may_exist = may_exist or not isinstance(failure, NotConnected)
            if response is not None and not is_busy(response):
                return response
            # A response of 429 rejects the job. After any other error, the job may exist.
            may_exist = may_exist or (response is not None and response.status_code != 429)
            if attempt == self._http.retries:
                failed = self._http.refusal(response) if response is not None else error
                assert failed is not None
                raise RunLost(UNKNOWN_OUTCOME, fault=Fault.JOB, raw=failed.raw) if may_exist else failed
            await self._http.pause(attempt, response)
            attempt += 1

    async def _wait(self, progress: JobProgress, job: dict[str, Any]) -> dict[str, Any]:
        """Return the job once it has succeeded."""
        loop = asyncio.get_running_loop()
        since, polls = loop.time(), 0
        while True:
            phase = phase_of(job)
            if not has_known_state(job):
                self._unknown_kinds.log_once("comfyui.unknown_status", str(job.get("status")))
            if phase is Phase.DONE:
                return job
            if phase is Phase.FAILED:
                raise failure_of_job(job)
            if phase is Phase.RUNNING and not progress.started:
                progress.start()
                since = loop.time()
            progress.set_position(job.get("queue_position"))
            progress.show(job.get("progress"))
            limit = self._timeouts.run_seconds if progress.started else self._timeouts.queue_seconds
            while True:
                if limit is not None and loop.time() - since >= limit:
                    kind = "took" if progress.started else "waited"
                    raise RunTimedOut(f"The run {kind} too long ({limit:g} s).")
                polls += 1
                if await self._changed.wait(self._poll_seconds):
                    break
                if not self._is_streaming or polls % POLLS_SKIPPED == 0:
                    break
            job = await self._read(progress.prompt_id)

    async def _read(self, job_id: str) -> dict[str, Any]:
        """Read the job. The job does not depend on this client, so an unreachable service gets time to recover."""
        # Refused connections get the same time, because the service runs on several machines.
        silence = SilenceLimit(replace(self._timeouts, refused_seconds=self._timeouts.unreachable_seconds))
        while True:
            try:
                return await self._api.job(job_id)
            except (ServerUnreachable, ServerRefused, RateLimited) as error:
                if error.fault is Fault.JOB:
                    raise
                silence.record_failure(error)
                await asyncio.sleep(self._poll_seconds)

    async def _stream(self, path: str, progress: JobProgress) -> None:
        """Show progress and previews until the stream ends. Without a stream, the job is polled."""
        failures = 0
        while failures <= self._http.retries:
            with suppress(ComfyError, httpx.HTTPError):
                async with self._http.stream("GET", path, timeout=STREAM_TIMEOUT) as response:
                    if not response.is_success:
                        return
                    self._is_streaming = True
                    async for name, data in events_in(response):
                        failures = 0
                        self._show(name, data, progress)
            self._is_streaming = False
            self._changed.notify()
            failures += 1
            await self._http.pause(failures - 1)

    def _show(self, name: str, data: Mapping[str, Any], progress: JobProgress) -> None:
        if name == "progress":
            progress.show(data)
        elif name == "preview":
            progress.preview(data)
        elif name == "status":
            progress.set_position(data.get("queue_position"))
            if phase_of(data) is not Phase.WAITING:
                self._changed.notify()

    async def _stop(self, job_id: str) -> None:
        """Cancel a job, ignoring errors: the service may be the cause of the failure."""
        await self._runs.finish_stop(self._try_to_cancel(job_id))

    async def _stop_submitted(self, submitting: asyncio.Task[dict[str, Any]]) -> None:
        """Cancel the job of a submission after its response, which contains the job's id."""
        with suppress(ComfyRelayError, TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                job = await submitting
                await self._api.cancel(job["id"])

    async def _try_to_cancel(self, job_id: str) -> None:
        with suppress(ComfyError, TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._api.cancel(job_id)
