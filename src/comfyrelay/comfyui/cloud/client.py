"""Client for Comfy Cloud with the interface of a ComfyUI server."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import httpx

from comfyrelay.clock import utc_now
from comfyrelay.comfyui.client.uploads import Attachment, Uploaded
from comfyrelay.comfyui.cloud.http import CloudHttp, is_busy
from comfyrelay.comfyui.cloud.status import CloudPhase, failure_of_job, has_known_state, phase_of
from comfyrelay.comfyui.cloud.uploads import CloudUploader
from comfyrelay.comfyui.graphs.dynamic_prompts import draw_prompts
from comfyrelay.comfyui.graphs.explain import explain_refusal
from comfyrelay.comfyui.graphs.file_names import fill_file_names
from comfyrelay.comfyui.graphs.graph import Graph, check_graph
from comfyrelay.comfyui.graphs.nodes import find_node, with_prefix
from comfyrelay.comfyui.graphs.preflight import graph_problems
from comfyrelay.comfyui.outputs import OutputFile, RunResult, result_of
from comfyrelay.comfyui.runs.active_runs import ActiveRuns
from comfyrelay.comfyui.runs.events import EventListener, Finished, RunEvent, guard_listener, stream_events
from comfyrelay.comfyui.runs.history import failure_in, log_unknown, outputs_in
from comfyrelay.comfyui.runs.progress import RunProgress
from comfyrelay.comfyui.runs.submit import refused_outputs
from comfyrelay.comfyui.runs.timeouts import RunTimeouts, SilenceLimit
from comfyrelay.comfyui.runs.unknown_kinds import UnknownKinds
from comfyrelay.errors import (
    ComfyError,
    ComfyRelayError,
    Fault,
    NoOutput,
    OutputGone,
    RateLimited,
    RunTimedOut,
    ServerRefused,
    ServerUnreachable,
)
from comfyrelay.http_client import Http, body_of, object_in, read_bounded, save

STOP_SECONDS = 10.0


class CloudClient:
    """Run graphs on Comfy Cloud. The API key is never sent to the storage hosts that downloads redirect to."""

    queue_remaining: int | None = None

    def __init__(
        self,
        api_key: str,
        *,
        url: str = "https://cloud.comfy.org",
        slots: int = 1,
        timeouts: RunTimeouts | None = None,
        poll_seconds: float = 2.0,
        retries: int = 4,
        first_pause_seconds: float = 1.0,
        uploads: Path | None = None,
    ) -> None:
        """Create a client without connecting.

        `slots` is the number of simultaneous runs that the plan allows. Requests to a busy service are retried
        `retries` times. `uploads` is a file that stores the names of shared files, so that later processes do not
        upload them again.
        """
        self._http = CloudHttp(url, api_key=api_key, retries=retries, first_pause_seconds=first_pause_seconds)
        # Downloads redirect to signed URLs, which must not receive the key.
        self._storage = Http(url)
        self._uploader = CloudUploader(self._http, path="/api/upload/image", names_file=uploads)
        self._timeouts = timeouts or RunTimeouts()
        self._poll_seconds = poll_seconds
        self._object_info: dict[str, Any] = {}
        self._runs = ActiveRuns()
        self._unknown_kinds = UnknownKinds(url)
        self.slots = slots

    @property
    def url(self) -> str:
        return self._http.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel active jobs and close all connections."""
        await self._runs.close()
        await self._http.close()
        await self._storage.close()

    async def check(self) -> None:
        """Return if the service responds and accepts the key."""
        await self._http.json("GET", "/api/queue")

    async def disconnected(self) -> None:
        """Never return: there is no connection to lose."""
        await asyncio.Event().wait()

    async def system_stats(self) -> dict[str, Any]:
        return await self._http.object("/api/system_stats")

    async def object_info(self, *, refresh: bool = False) -> dict[str, Any]:
        """Return the definitions of all nodes of the service, cached after the first call."""
        if refresh or not self._object_info:
            self._object_info = await self._http.object("/api/object_info")
        return self._object_info

    async def preflight(self, graph: Graph) -> list[str]:
        """Return one sentence for each missing node, model or input. Input files are not checked."""
        info = await self.object_info(refresh=True)
        return [problem.text for problem in graph_problems(check_graph(graph), info)]

    async def upload(
        self, source: Path | bytes, *, name: str | None = None, content_hash: str | None = None
    ) -> Uploaded:
        """Upload a file, once per content."""
        return await self._uploader.upload(source, name=name, content_hash=content_hash)

    async def submit(
        self,
        graph: Graph,
        *,
        wanted: Sequence[str] = (),
        extra_data: Mapping[str, Any] | None = None,
        prompt_id: str | None = None,
    ) -> str:
        """Queue a graph unchanged and return the job id."""
        job_id, node_errors = await self._post(graph, prompt_id or str(uuid4()), extra_data)
        if (failure := refused_outputs(node_errors, frozenset(find_node(graph, node) for node in wanted))) is not None:
            await self._stop(job_id)
            raise failure
        return job_id

    async def run(
        self,
        graph: Graph,
        *,
        wanted: Sequence[str] = (),
        attachments: Iterable[Attachment] = (),
        timeouts: RunTimeouts | None = None,
        on_event: EventListener | None = None,
        extra_data: Mapping[str, Any] | None = None,
        prompt_id: str | None = None,
    ) -> RunResult:
        """Run a graph and return its result. Canceling the call cancels only this job.

        With a `prompt_id`, a later process can find and cancel the job. It must be new.
        """
        graph = fill_file_names(draw_prompts(check_graph(graph)), utc_now())
        nodes = [find_node(graph, node) for node in wanted]
        listener = guard_listener(on_event)
        result = await self._runs.run(
            self._run(
                graph,
                wanted=nodes,
                attachments=attachments,
                timeouts=timeouts or self._timeouts,
                listener=listener,
                extra_data=extra_data,
                job_id=prompt_id or str(uuid4()),
            )
        )
        listener(Finished(prompt_id=result.prompt_id, result=result))
        return result

    def stream(self, graph: Graph, **options: Any) -> AsyncIterator[RunEvent]:
        """Run a graph and yield its events, `Finished` last. Leaving the loop early cancels the job."""
        return stream_events(lambda on_event: self.run(graph, on_event=on_event, **options))

    async def cancel(self, prompt_id: str) -> None:
        """Cancel this job. Does nothing if it has finished."""
        response = await self._http.send("POST", f"/api/jobs/{prompt_id}/cancel")
        if response.status_code in (404, 405):
            # The older route cancels pending jobs. `/api/interrupt` would stop every job of the account.
            await self._http.post("/api/queue", {"delete": [prompt_id]})
        elif not response.is_success:
            raise self._http.refusal(response)

    async def wait_until_stopped(self, prompt_id: str) -> None:
        """Wait until this job has finished or the service does not report its status."""
        with suppress(ComfyRelayError):
            while True:
                if phase_of(await self._status(prompt_id, self._timeouts)) in (CloudPhase.DONE, CloudPhase.FAILED):
                    return
                await asyncio.sleep(self._poll_seconds)

    async def read(self, file: OutputFile) -> AsyncIterator[bytes]:
        """Yield the content of an output file in chunks."""
        async with self._http.stream("GET", "/api/view", params=file.query) as response:
            if response.status_code == 404:
                raise OutputGone(f"The file {file.filename} is no longer on Comfy Cloud.")
            if not response.has_redirect_location:
                async for piece in self._pieces(response, self._http):
                    yield piece
                return
            place = str(response.url.join(response.headers["Location"]))
        async with self._storage.stream("GET", place, follow_redirects=True) as response:
            async for piece in self._pieces(response, self._storage):
                yield piece

    async def download(self, file: OutputFile, to: Path) -> int:
        """Save an output file and return its size. `to` appears only when it is complete."""
        return await save(self.read(file), to)

    async def _run(
        self,
        graph: Graph,
        *,
        wanted: Sequence[str],
        attachments: Iterable[Attachment],
        timeouts: RunTimeouts,
        listener: EventListener,
        extra_data: Mapping[str, Any] | None,
        job_id: str,
    ) -> RunResult:
        sent = with_prefix(await self._uploader.attach(graph, attachments), f"comfyrelay/{job_id}")
        try:
            job_id = await self.submit(sent, wanted=wanted, extra_data=extra_data, prompt_id=job_id)
            progress = RunProgress(graph=sent, prompt_id=job_id, on_event=listener)
            progress.mark_accepted()
            await self._wait(progress, timeouts)
        except (asyncio.CancelledError, RunTimedOut, ServerUnreachable, ServerRefused):
            # The job may be running and would be charged.
            await self._stop(job_id)
            raise
        result = result_of(await self._outputs(job_id), prompt_id=job_id, wanted=wanted)
        if result.is_empty:
            raise NoOutput
        return result

    async def _pieces(self, response: httpx.Response, http: Http) -> AsyncIterator[bytes]:
        if not response.is_success:
            raise http.refusal(await read_bounded(response))
        async for piece in body_of(response):
            yield piece

    async def _post(
        self, graph: Graph, prompt_id: str, extra_data: Mapping[str, Any] | None
    ) -> tuple[str, dict[str, Any]]:
        body = {"prompt": graph, "prompt_id": prompt_id, "extra_data": dict(extra_data or {})}
        response = await self._post_with_retries(prompt_id, body)
        if response is None:
            return prompt_id, {}
        answer = object_in(response)
        if response.status_code == 400 or (response.is_success and answer.get("error")):
            raise explain_refusal(answer, raw=response.text)
        if not response.is_success:
            raise self._http.refusal(response)
        errors = answer.get("node_errors")
        return str(answer.get("prompt_id") or prompt_id), errors if isinstance(errors, dict) else {}

    async def _post_with_retries(self, prompt_id: str, body: dict[str, Any]) -> httpx.Response | None:
        """Post a graph until the service responds. Return `None` if the response was lost but the job exists."""
        attempt = 0
        while True:
            try:
                response = await self._http.send_once("POST", "/api/prompt", json=body)
            except ServerUnreachable:
                if await self.has_job(prompt_id):
                    return None
                if attempt == self._http.retries:
                    raise
                await self._http.pause(attempt)
            else:
                # 429 rejects the job. After any other error the job may exist.
                if not is_busy(response) or attempt == self._http.retries:
                    return response
                if response.status_code != 429 and await self.has_job(prompt_id):
                    return None
                await self._http.pause(attempt, response)
            attempt += 1

    async def has_job(self, job_id: str) -> bool:
        """Whether the service knows this job, running or ended."""
        response = await self._http.send("GET", f"/api/job/{job_id}/status")
        if response.is_success or response.status_code == 404:
            return response.is_success
        # An error does not mean that the job is missing.
        raise self._http.refusal(response)

    async def _wait(self, progress: RunProgress, timeouts: RunTimeouts) -> None:
        loop = asyncio.get_running_loop()
        since = loop.time()
        while True:
            job = await self._status(progress.prompt_id, timeouts)
            phase = phase_of(job)
            if not has_known_state(job):
                self._unknown_kinds.log_once("comfyui.unknown_status", str(job.get("status")))
            if phase is CloudPhase.DONE:
                return
            if phase is CloudPhase.FAILED:
                raise failure_of_job(job, await self._details(progress.prompt_id))
            if phase is CloudPhase.RUNNING and not progress.started:
                progress.start()
                since = loop.time()
            limit = timeouts.run_seconds if progress.started else timeouts.queue_seconds
            if limit is not None and loop.time() - since >= limit:
                raise RunTimedOut(f"The run {'took' if progress.started else 'waited'} too long ({limit:g} s).")
            await asyncio.sleep(self._poll_seconds)

    async def _status(self, job_id: str, timeouts: RunTimeouts) -> dict[str, Any]:
        """Return the status of a job. It runs without us, so an unreachable service gets time to recover."""
        # Refused connections get the same time: the service runs on more than one machine.
        silence = SilenceLimit(replace(timeouts, refused_seconds=timeouts.unreachable_seconds))
        while True:
            try:
                return await self._http.object(f"/api/job/{job_id}/status")
            except (ServerUnreachable, ServerRefused, RateLimited) as error:
                if error.fault is Fault.JOB:
                    raise
                silence.record_failure(error)
            await asyncio.sleep(self._poll_seconds)

    async def _outputs(self, job_id: str) -> dict[str, Any]:
        try:
            history = await self._http.object(f"/api/history_v2/{job_id}")
        except ServerRefused:
            # The service has deprecated that route; this one returns the outputs, too.
            history = await self._http.object(f"/api/jobs/{job_id}")
        entry = history.get(job_id, history)
        if (failure := failure_in(entry)) is not None:
            raise failure
        log_unknown(entry, self._unknown_kinds)
        return outputs_in(entry)

    async def _details(self, job_id: str) -> dict[str, Any]:
        with suppress(ComfyError):
            return await self._http.object(f"/api/jobs/{job_id}")
        return {}

    async def _stop(self, job_id: str) -> None:
        """Cancel a job, ignoring errors: the service may be the cause of the failure."""
        await self._runs.finish_stop(self._try_to_cancel(job_id))

    async def _try_to_cancel(self, job_id: str) -> None:
        with suppress(ComfyError, TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self.cancel(job_id)
