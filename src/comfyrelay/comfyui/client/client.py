"""Client for one ComfyUI server, over HTTP and WebSocket."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from comfyrelay.clock import utc_now
from comfyrelay.comfyui.client.replaced_nodes import with_replaced_nodes
from comfyrelay.comfyui.client.script_packs import with_script_packs
from comfyrelay.comfyui.client.uploads import Attachment, Uploaded, Uploader
from comfyrelay.comfyui.editor.loading import as_graph, load_workflow
from comfyrelay.comfyui.editor.packages import read_node_map
from comfyrelay.comfyui.graphs.dynamic_prompts import draw_prompts
from comfyrelay.comfyui.graphs.file_names import fill_file_names
from comfyrelay.comfyui.graphs.graph import Graph, check_graph
from comfyrelay.comfyui.graphs.hash import workflow_hash
from comfyrelay.comfyui.graphs.nodes import find_node, with_prefix
from comfyrelay.comfyui.graphs.preflight import file_query, graph_problems, uploaded_files
from comfyrelay.comfyui.outputs import OutputFile, RunResult, result_of
from comfyrelay.comfyui.runs.active_runs import ActiveRuns
from comfyrelay.comfyui.runs.events import (
    EventListener,
    Finished,
    Noted,
    OutputReady,
    RunEvent,
    guard_listener,
    stream_events,
)
from comfyrelay.comfyui.runs.history import (
    Prompt,
    cached_nodes,
    failure_in,
    log_unknown,
    outputs_in,
    position_in,
    prompts_in,
    run_seconds,
)
from comfyrelay.comfyui.runs.message_router import MessageRouter
from comfyrelay.comfyui.runs.submit import NotAccepted, has_run, post_graph, refused_outputs
from comfyrelay.comfyui.runs.timeouts import RunTimeouts, SilenceLimit, loading_factor
from comfyrelay.comfyui.runs.watch import sent_outputs
from comfyrelay.errors import (
    ComfyError,
    ComfyRelayError,
    GraphError,
    GraphRefused,
    InputMissing,
    NoOutput,
    NotInstalled,
    OutputGone,
    RunLost,
    RunRemoved,
    RunTimedOut,
    ServerRefused,
    ServerUnreachable,
)
from comfyrelay.http_client import Http, PortClosed, body_of, object_in, read_bounded, save

# A run does not wait longer for the WebSocket to open, because it also works without one.
SOCKET_WAIT_SECONDS = 2.0
STOP_SECONDS = 10.0
LATE_SUBMIT_SECONDS = 2.0
# How often to check whether an interrupted run has stopped.
FIRST_STOP_CHECK_SECONDS = 0.05
LAST_STOP_CHECK_SECONDS = 2.0
SUBMISSIONS = 3
MAX_LOADED_WORKFLOWS = 1000
# After these errors, there is no run on the server to stop.
_NOTHING_TO_STOP = (NotAccepted, PortClosed, RunLost, RunRemoved, GraphError, GraphRefused, NotInstalled, InputMissing)


@dataclass(frozen=True, kw_only=True, slots=True)
class _RunRequest:
    """Arguments of one `run` call that are the same for every attempt."""

    wanted: list[str]
    timeouts: RunTimeouts
    on_event: EventListener
    extra_data: Mapping[str, Any] | None
    loading_factor: int


class ComfyClient:
    """Client for one ComfyUI server.

        async with ComfyClient("http://127.0.0.1:8188") as comfy:
            result = await comfy.run(graph)

    Any number of runs may be active. ComfyUI executes them one after the other.
    """

    slots = 1

    def __init__(
        self,
        url: str = "http://127.0.0.1:8188",
        *,
        headers: Mapping[str, str] | None = None,
        timeouts: RunTimeouts | None = None,
        keep_prefixes: bool = False,
        delete_history: bool = False,
        node_map: Path | None = None,
    ) -> None:
        """Create a client without connecting.

        `headers` are sent with every request, for example for a proxy. Each run saves into a new folder, so no two runs
        share a file; `keep_prefixes` keeps the file names of the graph instead. `delete_history` removes each
        successful run from the server's history. Failed runs are kept, because only the history lists their outputs.
        `node_map` is a file that names the packages of missing nodes, as `comfyrelay nodes update` writes it.
        """
        self._http = Http(url, headers=headers)
        self._uploader = Uploader(self._http, path="/upload/image", view_path="/view")
        # After a reconnect, the server may be a new process with empty folders.
        self._router = MessageRouter(self._http, on_lost=self._uploader.forget_uploads)
        self._timeouts = timeouts or RunTimeouts()
        self._keep_prefixes = keep_prefixes
        self._deletes_history = delete_history
        self._node_map = node_map
        # Connection number of the last run of each workflow hash. A restarted server has unloaded its models.
        self._loaded: dict[str, int] = {}
        self._object_info: dict[str, Any] = {}
        # Number of the connection whose server has no route to cancel a run by its id.
        self._no_cancel_route: int | None = None
        self._runs = ActiveRuns()
        # Timed-out runs that may still be running.
        self._overdue_runs: set[str] = set()

    @property
    def url(self) -> str:
        return self._http.url

    @property
    def queue_remaining(self) -> int | None:
        """Number of runs of all clients on the server, as last reported; `None` if unknown."""
        return self._router.queue_remaining

    @property
    def connection(self) -> int:
        """Number of the current WebSocket connection. The next connection may reach another process."""
        return self._router.socket.connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop all active runs, also on the server, and close all connections."""
        await self._runs.close()
        await self._router.socket.close()
        await self._http.close()

    async def check(self) -> None:
        """Raise `ComfyError` unless ComfyUI responds and accepts runs."""
        if "exec_info" not in await self._http.object("/prompt"):
            raise ServerRefused(f"{self.url} responds, but is not ComfyUI.")
        if self._overdue_runs:
            queue = await self._router.queue.now()
            self._overdue_runs = {run for run in self._overdue_runs if position_in(queue, run) is not None}
        if self._overdue_runs:
            raise ServerRefused("The server is still busy with a run that timed out.")
        await self._router.socket.ready(SOCKET_WAIT_SECONDS)

    async def disconnected(self) -> None:
        """Wait until the WebSocket disconnects."""
        await self._router.socket.lost()

    async def system_stats(self) -> dict[str, Any]:
        """Return the server's version, devices and memory."""
        return await self._http.object("/system_stats")

    async def prompts(self) -> dict[str, Prompt]:
        """Return the queued and running prompts of all clients by prompt id."""
        return prompts_in(await self._router.queue.now())

    async def history(self, prompt_id: str) -> dict[str, Any] | None:
        """Return the history entry of a finished run."""
        entry = (await self._http.object(f"/history/{prompt_id}")).get(prompt_id)
        return entry if isinstance(entry, dict) else None

    async def log_lines(self) -> list[str]:
        """Return the last lines of the server's log, oldest first."""
        entries = (await self._http.object("/internal/logs/raw")).get("entries") or ()
        return "".join(str(entry.get("m")) for entry in entries if isinstance(entry, dict)).splitlines()

    async def newest_history(self, count: int) -> dict[str, dict[str, Any]]:
        """Return the newest history entries of all clients by prompt id."""
        found = await self._http.object(f"/history?max_items={count}")
        return {prompt_id: entry for prompt_id, entry in found.items() if isinstance(entry, dict)}

    async def delete_run(self, prompt_id: str) -> None:
        """Delete a finished run from the server's history."""
        await self._http.post("/history", {"delete": [prompt_id]})

    async def object_info(self, *, refresh: bool = False) -> dict[str, Any]:
        """Return the definitions of all nodes that can run. Cached, because the server is slow to build them."""
        if refresh or not self._object_info:
            installed = await self._http.object("/object_info")
            replacements: dict[str, Any] = {}
            with suppress(ServerRefused):
                # Older servers do not have this route.
                replacements = await self._http.object("/node_replacements")
            scripts: object = None
            with suppress(ServerRefused):
                scripts = await self._http.json("GET", "/extensions")
            self._object_info = with_script_packs(with_replaced_nodes(installed, replacements), scripts)
        return self._object_info

    async def load(self, source: Path) -> Graph:
        """Read a graph from a file and convert it for this server.

        The file is a graph in API format, a workflow saved by the editor, or an image, video or audio file made by
        ComfyUI.
        """
        return as_graph(load_workflow(source), await self.object_info(), node_map=self._node_map)

    async def preflight(self, graph: Graph) -> list[str]:
        """Return one sentence for each problem that would prevent this graph from running on this server."""
        info = await self.object_info(refresh=True)
        found = graph_problems(check_graph(graph), info, packages=await self._packages())
        problems = [problem.text for problem in found]
        for file in uploaded_files(graph, info):
            if not await self._has_file(file.name):
                where = f"{file.class_type} ({file.node_id})"
                problems.append(f"{where}: the file '{file.name}' is not on the server (input '{file.input}')")
        return problems

    async def upload(
        self, source: Path | bytes, *, name: str | None = None, content_hash: str | None = None
    ) -> Uploaded:
        """Upload a file to the server's input folder, once per content."""
        return await self._uploader.upload(source, name=name, content_hash=content_hash)

    def pop_unanswered_upload(self, folder: str) -> bool:
        """Return whether an upload into this run folder got no response, so the server may still write the file.

        The client then forgets the upload: the caller must clean up.
        """
        return self._uploader.pop_unanswered(folder)

    def forget_uploads(self) -> None:
        """Forget all uploads, because files were removed from the server's input folder."""
        self._uploader.forget_uploads()

    async def submit(
        self,
        graph: Graph,
        *,
        wanted: Sequence[str] = (),
        extra_data: Mapping[str, Any] | None = None,
        prompt_id: str | None = None,
        timeouts: RunTimeouts | None = None,
    ) -> str:
        """Queue a graph unchanged and return its prompt id. `run` also waits for the result."""
        prompt_id = prompt_id or str(uuid4())
        nodes = frozenset(find_node(graph, node) for node in wanted)
        errors = await post_graph(
            self._http,
            graph,
            prompt_id=prompt_id,
            client_id=self._router.socket.client_id,
            extra_data=extra_data,
            timeouts=timeouts or self._timeouts,
        )
        if (failure := refused_outputs(errors, nodes)) is not None:
            # The server would still run the rest of the graph.
            await self._stop(prompt_id)
            raise failure
        return prompt_id

    async def run(
        self,
        graph: Graph,
        *,
        wanted: Sequence[str] = (),
        attachments: Iterable[Attachment] = (),
        timeouts: RunTimeouts | None = None,
        on_event: EventListener | None = None,
        extra_data: Mapping[str, Any] | None = None,
    ) -> RunResult:
        """Run a graph and return its result. Canceling the call stops only this run on the server.

        Outputs of the nodes in `wanted`, given by id or title, come first. `attachments` are uploaded before the run.
        """
        graph = fill_file_names(draw_prompts(check_graph(graph)), utc_now())
        digest = workflow_hash(graph)
        is_loaded = self._loaded.get(digest) == self.connection
        request = _RunRequest(
            wanted=[find_node(graph, node) for node in wanted],
            timeouts=timeouts or self._timeouts,
            on_event=guard_listener(on_event),
            extra_data=extra_data,
            loading_factor=1 if is_loaded else loading_factor(graph),
        )
        result = await self._runs.run(self._run_with(graph, tuple(attachments), request))
        self._loaded[digest] = self.connection
        if len(self._loaded) > MAX_LOADED_WORKFLOWS:
            del self._loaded[next(iter(self._loaded))]
        request.on_event(Finished(prompt_id=result.prompt_id, result=result))
        return result

    def stream(self, graph: Graph, **options: Any) -> AsyncIterator[RunEvent]:
        """Run a graph and yield its events, `Finished` last. Leaving the loop early stops the run."""
        return stream_events(lambda on_event: self.run(graph, on_event=on_event, **options))

    async def cancel(self, prompt_id: str) -> None:
        """Remove a run from the queue, or interrupt it if it is running. Does nothing if it has finished."""
        # Newer servers find the run and stop it in one step, so that no other run can start in between.
        if self._no_cancel_route != self.connection:
            response = await self._http.send("POST", f"/api/jobs/{prompt_id}/cancel", json={})
            if response.is_success and "cancelled" in object_in(response):
                return
            self._no_cancel_route = self.connection
        await self.remove(prompt_id)
        await self.interrupt(prompt_id)

    async def wait_until_stopped(self, prompt_id: str) -> None:
        """Wait until a run is neither queued nor running, or the server is unreachable.

        ComfyUI finishes the current step first.
        """
        silence, pause = SilenceLimit(self._timeouts), FIRST_STOP_CHECK_SECONDS
        with suppress(ComfyRelayError):
            while await self._is_active(prompt_id, silence):
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, LAST_STOP_CHECK_SECONDS)

    async def remove(self, prompt_id: str) -> None:
        """Remove a run from the queue. Has no effect if the run has started."""
        await self._http.post("/queue", {"delete": [prompt_id]})

    async def interrupt(self, prompt_id: str) -> None:
        """Interrupt this run if it is running. It stops before the next node or step."""
        # ComfyUI before 0.3.57 ignores the id and interrupts the active run.
        if position_in(await self._router.queue.now(), prompt_id) == -1:
            await self._http.post("/interrupt", {"prompt_id": prompt_id})

    async def free(self, *, unload_models: bool = True, free_memory: bool = True) -> None:
        """Unload models and clear the cache after the current run."""
        await self._http.post("/free", {"unload_models": unload_models, "free_memory": free_memory})

    async def read(self, file: OutputFile) -> AsyncIterator[bytes]:
        """Yield the content of an output file in chunks."""
        if file.content is not None:
            yield file.content
            return
        async with self._http.stream("GET", "/view", params=file.query) as response:
            if response.status_code == 404:
                raise OutputGone(f"The file {file.filename} is no longer on the server.")
            if not response.is_success:
                raise self._http.refusal(await read_bounded(response))
            async for piece in body_of(response):
                yield piece

    async def download(self, file: OutputFile, to: Path) -> int:
        """Save an output file and return its size. `to` is created only after the download is complete."""
        return await save(self.read(file), to)

    async def _run_with(self, graph: Graph, attachments: tuple[Attachment, ...], request: _RunRequest) -> RunResult:
        attached = await self._uploader.attach(graph, attachments)
        try:
            result = await self._run_once(attached, request)
        except InputMissing:
            if not attachments:
                raise
            # The server's input folder has been emptied since the upload.
            self._uploader.forget_uploads()
            attached = await self._uploader.attach(graph, attachments)
            result = await self._run_once(attached, request)
        except NotInstalled as refusal:
            raise await self._with_all_missing(refusal, attached) from refusal
        except OutputGone:
            # The image was sent while the WebSocket was disconnected, and the server sends it only once.
            result = await self._run_once(attached, request)
        if not result.is_empty:
            return result
        # All nodes were cached, and older servers do not list cached outputs. With a new folder, the nodes save again.
        result = await self._run_once(attached, request)
        if result.is_empty:
            raise NoOutput
        return result

    async def _with_all_missing(self, refusal: NotInstalled, graph: Graph) -> NotInstalled:
        """Add all missing nodes and models. ComfyUI reports nodes one at a time, and models only after all nodes."""
        try:
            info = await self.object_info(refresh=True)
        except ComfyError:
            return refusal
        problems = graph_problems(graph, info, packages=await self._packages())
        missing = [problem.text for problem in problems if problem.kind is NotInstalled]
        # Our own texts may also name the package.
        others = [text for text in refusal.problems if not any(own.startswith(text) for own in missing)]
        texts = list(dict.fromkeys([*others, *missing]))
        return NotInstalled("; ".join(texts), node_id=refusal.node_id, problems=texts, raw=refusal.raw)

    async def _packages(self) -> Mapping[str, str]:
        return {} if self._node_map is None else await asyncio.to_thread(read_node_map, self._node_map)

    async def _run_once(self, graph: Graph, request: _RunRequest) -> RunResult:
        for _ in range(SUBMISSIONS - 1):
            with suppress(NotAccepted):
                return await self._run_attempt(graph, request)
        return await self._run_attempt(graph, request)

    async def _run_attempt(self, graph: Graph, request: _RunRequest) -> RunResult:
        # Use a new id for each attempt: a second run with the same id overwrites the first one's history.
        prompt_id = str(uuid4())
        sent = graph if self._keep_prefixes else with_prefix(graph, f"comfyrelay/{prompt_id}")
        await self._router.socket.ready(SOCKET_WAIT_SECONDS)
        with self._router.watching(
            sent, prompt_id, timeouts=request.timeouts, factor=request.loading_factor, on_event=request.on_event
        ) as watch:
            is_accepted = False
            try:
                await self.submit(
                    sent,
                    wanted=request.wanted,
                    extra_data=request.extra_data,
                    prompt_id=prompt_id,
                    timeouts=request.timeouts,
                )
                is_accepted = True
                watch.progress.mark_accepted()
                entry = await watch.wait_for_entry()
            except _NOTHING_TO_STOP:
                raise
            except BaseException as error:
                # The caller no longer waits for this run.
                if not is_accepted:
                    # The run may have saved files, which the listener can find only by the prompt id.
                    request.on_event(Noted(prompt_id=prompt_id, about={}))
                await self._stop(prompt_id, may_still_arrive=not is_accepted)
                if isinstance(error, RunTimedOut):
                    self._overdue_runs.add(prompt_id)
                raise
            if watch.was_ignored:
                # The server may be sending this client's messages to another connection.
                await self._router.socket.renew()
            if (failure := failure_in(entry)) is not None:
                raise failure
            log_unknown(entry, self._router.unknown_kinds)
            if self._deletes_history:
                with suppress(ComfyError):
                    await self.delete_run(prompt_id)
            received = await sent_outputs(watch, sent, entry)
        for node_id, files in groupby(received, key=lambda file: file.node_id):
            request.on_event(OutputReady(prompt_id=prompt_id, node_id=node_id, files=tuple(files), texts=()))
        return result_of(
            outputs_in(entry),
            prompt_id=prompt_id,
            sent=received,
            wanted=request.wanted,
            cached_nodes=cached_nodes(entry),
            seconds=run_seconds(entry),
            node_seconds=watch.progress.node_seconds,
        )

    async def _is_active(self, prompt_id: str, silence: SilenceLimit) -> bool:
        try:
            position = position_in(await self._router.queue.now(), prompt_id)
        except (ServerUnreachable, ServerRefused) as error:
            silence.record_failure(error)
            return True
        silence.record_response()
        return position is not None

    async def _has_file(self, name: str) -> bool:
        # Some proxies do not forward HEAD, so read one byte.
        one_byte = {"Range": "bytes=0-0"}
        async with self._http.stream("GET", "/view", params=file_query(name), headers=one_byte) as response:
            return response.is_success

    async def _stop(self, prompt_id: str, *, may_still_arrive: bool = False) -> None:
        """Cancel a run, ignoring errors: the server may be the cause of the failure."""
        await self._runs.finish_stop(self._try_to_cancel(prompt_id, may_still_arrive=may_still_arrive))

    async def _try_to_cancel(self, prompt_id: str, *, may_still_arrive: bool) -> None:
        with suppress(ComfyRelayError, TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self.cancel(prompt_id)
            async with asyncio.timeout(LATE_SUBMIT_SECONDS):
                # The submission was cut off, but may still be on its way through a proxy.
                while may_still_arrive and not await has_run(self._http, prompt_id):
                    await asyncio.sleep(0.2)
                    await self.cancel(prompt_id)
                if may_still_arrive:
                    # The run may have arrived after the last attempt to cancel it.
                    await self.cancel(prompt_id)
