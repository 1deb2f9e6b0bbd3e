"""Client for services that speak the Comfy API v2, with the interface of a ComfyUI server."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import httpx

from comfyrelay.clock import utc_now
from comfyrelay.comfyui.client.uploads import Attachment, Uploaded
from comfyrelay.comfyui.comfy_api.assets import ASSETS, AssetUploader
from comfyrelay.comfyui.comfy_api.http import ApiHttp
from comfyrelay.comfyui.comfy_api.job_api import JobApi
from comfyrelay.comfyui.comfy_api.jobs import Phase, phase_of
from comfyrelay.comfyui.comfy_api.run import ApiRun, Submission
from comfyrelay.comfyui.graphs.dynamic_prompts import draw_prompts
from comfyrelay.comfyui.graphs.file_names import fill_file_names
from comfyrelay.comfyui.graphs.graph import Graph, check_graph
from comfyrelay.comfyui.graphs.nodes import find_node
from comfyrelay.comfyui.outputs import OutputFile, RunResult
from comfyrelay.comfyui.runs.active_runs import ActiveRuns
from comfyrelay.comfyui.runs.events import EventListener, Finished, RunEvent, guard_listener, stream_events
from comfyrelay.comfyui.runs.timeouts import RunTimeouts
from comfyrelay.comfyui.runs.unknown_kinds import UnknownKinds
from comfyrelay.errors import ComfyRelayError, OutputGone, ServerUnreachable
from comfyrelay.http_client import Http, body_of, read_bounded, save

PARTNER_KEY = "api_key_comfy_org"


class ComfyApiClient:
    """Run graphs on a service. The API key is never sent to the storage hosts that downloads redirect to."""

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
        `retries` times. `uploads` is a file that stores the ids of shared files, so that later processes do not upload
        them again.
        """
        self._http = ApiHttp(url, api_key=api_key, retries=retries, first_pause_seconds=first_pause_seconds)
        # Downloads redirect to signed URLs, which must not receive the key.
        self._storage = Http(url)
        self._api = JobApi(self._http)
        self._uploader = AssetUploader(self._http, ids_file=uploads)
        self._timeouts = timeouts or RunTimeouts()
        self._poll_seconds = poll_seconds
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
        """Raise `ComfyError` unless the service responds and accepts the key."""
        await self._api.check()

    async def disconnected(self) -> None:
        """Never return: there is no connection to lose."""
        await asyncio.Event().wait()

    async def object_info(self, *, refresh: bool = False) -> dict[str, Any]:  # noqa: ARG002  (the interface of a server)
        """Return an empty dictionary: the Comfy API has no node definitions."""
        return {}

    async def preflight(self, graph: Graph) -> list[str]:
        """Return an empty list: the service checks a graph when it is submitted."""
        check_graph(graph)
        return []

    async def upload(
        self, source: Path | bytes, *, name: str | None = None, content_hash: str | None = None
    ) -> Uploaded:
        """Upload a file, once per content. The `name` of the result is the id of the asset."""
        return await self._uploader.upload(source, name=name, content_hash=content_hash)

    async def run(
        self,
        graph: Graph,
        *,
        wanted: Sequence[str] = (),
        attachments: Iterable[Attachment] = (),
        timeouts: RunTimeouts | None = None,
        on_event: EventListener | None = None,
        extra_data: Mapping[str, Any] | None = None,
        submission: Submission | None = None,
    ) -> RunResult:
        """Run a graph and return its result. Canceling the call cancels only this job.

        If the service already knows the key of the submission, the existing job is continued. Of `extra_data`, only the
        API key for partner nodes is sent.
        """
        graph = fill_file_names(draw_prompts(check_graph(graph)), utc_now())
        nodes = [find_node(graph, node) for node in wanted]
        listener = guard_listener(on_event)
        run = ApiRun(
            self._api,
            self._uploader,
            self._runs,
            graph,
            attachments=tuple(attachments),
            timeouts=timeouts or self._timeouts,
            listener=listener,
            extra_data={PARTNER_KEY: extra_data[PARTNER_KEY]} if extra_data and PARTNER_KEY in extra_data else {},
            submission=submission or Submission(key=str(uuid4())),
            poll_seconds=self._poll_seconds,
            unknown_kinds=self._unknown_kinds,
        )
        result = await self._runs.run(run.run(nodes))
        listener(Finished(prompt_id=result.prompt_id, result=result))
        return result

    def stream(self, graph: Graph, **options: Any) -> AsyncIterator[RunEvent]:
        """Run a graph and yield its events, `Finished` last. Leaving the loop early cancels the job."""
        return stream_events(lambda on_event: self.run(graph, on_event=on_event, **options))

    async def cancel(self, prompt_id: str) -> None:
        """Cancel this job. Does nothing if it has finished."""
        await self._api.cancel(prompt_id)

    async def wait_until_stopped(self, prompt_id: str) -> None:
        """Wait until this job has finished or the service no longer reports its status."""
        with suppress(ComfyRelayError):
            while True:
                if phase_of(await self._api.job(prompt_id)) in (Phase.DONE, Phase.FAILED):
                    return
                await asyncio.sleep(self._poll_seconds)

    async def read(self, file: OutputFile) -> AsyncIterator[bytes]:
        """Yield the content of an output in chunks. An interrupted download is resumed."""
        size, failures = 0, 0
        while True:
            try:
                async for piece in self._read_from(file, size):
                    size += len(piece)
                    yield piece
                return
            except ServerUnreachable:
                failures += 1
                if failures > self._http.retries:
                    raise
                await self._http.pause(failures - 1)

    async def download(self, file: OutputFile, to: Path) -> int:
        """Save an output file and return its size. `to` is created only after the download is complete."""
        return await save(self.read(file), to)

    async def find_job(self, key: str) -> str | None:
        """Return the id of the job with this idempotency key, if the service reports it."""
        return await self._api.find(key)

    async def _read_from(self, file: OutputFile, start: int) -> AsyncIterator[bytes]:
        headers = {"Range": f"bytes={start}-"} if start else {}
        async with self._http.stream("GET", f"{ASSETS}/{file.asset_id}/content", headers=headers) as response:
            if response.status_code == 404:
                raise OutputGone(f"The file {file.filename} is no longer on the cloud service.")
            if not response.has_redirect_location:
                async for piece in self._pieces(response, self._http, start):
                    yield piece
                return
            place = str(response.url.join(response.headers["Location"]))
        async with self._storage.stream("GET", place, headers=headers, follow_redirects=True) as response:
            async for piece in self._pieces(response, self._storage, start):
                yield piece

    async def _pieces(self, response: httpx.Response, http: Http, start: int) -> AsyncIterator[bytes]:
        if not response.is_success:
            raise http.refusal(await read_bounded(response))
        # A server that does not support ranges sends the whole file.
        skip = start if response.status_code != 206 else 0
        async for piece in body_of(response):
            yield piece[skip:]
            skip = max(0, skip - len(piece))
