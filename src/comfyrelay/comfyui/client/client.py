"""A ComfyUI server, spoken to over its HTTP routes and its WebSocket."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from comfyrelay.comfyui.client.uploads import Attachment, Uploaded, Uploader
from comfyrelay.comfyui.editor.loading import as_graph, load_workflow
from comfyrelay.comfyui.graphs.graph import Graph, check_graph
from comfyrelay.comfyui.graphs.hash import workflow_hash
from comfyrelay.comfyui.graphs.nodes import find_node, with_prefix
from comfyrelay.comfyui.graphs.preflight import file_query, graph_problems, uploaded_files
from comfyrelay.comfyui.outputs import OutputFile, RunResult, result_of
from comfyrelay.comfyui.runs.active_runs import RunsUnderWay
from comfyrelay.comfyui.runs.events import EventListener, Finished, OutputReady, RunEvent
from comfyrelay.comfyui.runs.history import Prompt, cached_nodes, failure_in, position_in, prompts_in, run_seconds
from comfyrelay.comfyui.runs.message_router import Switchboard
from comfyrelay.comfyui.runs.silence_limits import Patience
from comfyrelay.comfyui.runs.streams import safely, stream_of
from comfyrelay.comfyui.runs.submit import NotTaken, knows, post_graph, refused_outputs
from comfyrelay.comfyui.runs.timeouts import RunTimeouts, loading_factor
from comfyrelay.comfyui.runs.websocket_outputs import sent_outputs
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
from comfyrelay.http_client import Http, PortClosed, body_of, save

# A socket that does not open does not hold up a run: it only makes it faster.
SOCKET_WAIT_SECONDS = 2.0
STOP_SECONDS = 10.0
COMING_SECONDS = 2.0
# How often a server is asked whether a run that was interrupted has stopped.
FIRST_LOOK_SECONDS = 0.05
LAST_LOOK_SECONDS = 2.0
SUBMISSIONS = 3
MOST_LOADED = 1000
# After these there is nothing on the server that could be stopped.
_NOT_THERE = (NotTaken, PortClosed, RunLost, RunRemoved, GraphError, GraphRefused, NotInstalled, InputMissing)


@dataclass(frozen=True, kw_only=True, slots=True)
class _RunRequest:
    """What is the same in every try of one call of `run`."""

    wanted: list[str]
    timeouts: RunTimeouts
    on_event: EventListener
    extra_data: Mapping[str, Any] | None
    loading_factor: int


class ComfyClient:
    """One ComfyUI server: `async with ComfyClient("http://127.0.0.1:8188") as comfy: result = await comfy.run(graph)`.

    Any number of runs may be under way; ComfyUI does them one after the other.
    """

    slots = 1

    def __init__(
        self,
        url: str = "http://127.0.0.1:8188",
        *,
        headers: Mapping[str, str] | None = None,
        timeouts: RunTimeouts | None = None,
        keep_prefixes: bool = False,
        forget_history: bool = False,
    ) -> None:
        """Make a client; nothing is sent yet.

        `headers` go with every request, for a proxy that wants them. Each run saves into a new folder, so that no two
        runs share a file; `keep_prefixes` leaves the names as the graph has them. `forget_history` deletes each run
        that succeeded from the server's history; of one that failed, only the history says what it made.
        """
        self._http = Http(url, headers=headers)
        self._uploader = Uploader(self._http, path="/upload/image", view_path="/view")
        # a server that comes back may be another one, with empty folders
        self._board = Switchboard(self._http, on_lost=self._uploader.forget)
        self._timeouts = timeouts or RunTimeouts()
        self._keep_prefixes = keep_prefixes
        self._forget_history = forget_history
        # workflow hash → the connection on which it ran: a server that restarted has unloaded its models
        self._loaded: dict[str, int] = {}
        self._object_info: dict[str, Any] = {}
        self._runs = RunsUnderWay()
        # runs that took too long and may not have stopped
        self._overdue_runs: set[str] = set()

    @property
    def url(self) -> str:
        return self._http.url

    @property
    def queue_remaining(self) -> int | None:
        """How many runs the server last said it holds, of whoever they are; `None` when it has not said."""
        return self._board.queue_remaining

    @property
    def connection(self) -> int:
        """The number of the present connection; behind the next one may be another process."""
        return self._board.socket.connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the runs that are under way, on the server too, and close all connections."""
        await self._runs.close()
        await self._board.socket.close()
        await self._http.close()

    async def check(self) -> None:
        """Return when the server answers like ComfyUI and can be used; `ComfyError` says why not."""
        if "exec_info" not in await self._http.object("/prompt"):
            raise ServerRefused(f"{self.url} answers, but not like ComfyUI.")
        if self._overdue_runs:
            queue = await self._board.queue.now()
            self._overdue_runs = {each for each in self._overdue_runs if position_in(queue, each) is not None}
        if self._overdue_runs:
            raise ServerRefused("The server is still busy with a run that took too long.")
        await self._board.socket.ready(SOCKET_WAIT_SECONDS)

    async def disconnected(self) -> None:
        """Wait until the socket to the server is lost."""
        await self._board.socket.lost()

    async def system_stats(self) -> dict[str, Any]:
        """The server's version, its devices and their memory."""
        return await self._http.object("/system_stats")

    async def prompts(self) -> dict[str, Prompt]:
        """What runs or waits on the server, of whoever it is, by prompt id."""
        return prompts_in(await self._board.queue.now())

    async def history(self, prompt_id: str) -> dict[str, Any] | None:
        """What the server keeps of a run that is over."""
        entry = (await self._http.object(f"/history/{prompt_id}")).get(prompt_id)
        return entry if isinstance(entry, dict) else None

    async def newest_history(self, count: int) -> dict[str, dict[str, Any]]:
        """What the server keeps of the runs that were over last, of whoever they are, by prompt id."""
        found = await self._http.object(f"/history?max_items={count}")
        return {prompt_id: entry for prompt_id, entry in found.items() if isinstance(entry, dict)}

    async def forget_run(self, prompt_id: str) -> None:
        """Delete a run that is over from the server's history."""
        await self._http.post("/history", {"delete": [prompt_id]})

    async def object_info(self, *, refresh: bool = False) -> dict[str, Any]:
        """The definitions of all installed nodes. Kept, because a server takes long to make them."""
        if refresh or not self._object_info:
            self._object_info = await self._http.object("/object_info")
        return self._object_info

    async def load(self, source: Path) -> Graph:
        """Read a file and make of it a graph for this server: one in the API's format, a workflow as the editor saves
        it, or a picture, video or sound that ComfyUI has made."""
        return as_graph(load_workflow(source), await self.object_info())

    async def preflight(self, graph: Graph) -> list[str]:
        """Everything that would stop this graph on this server, in words; empty when nothing would."""
        info = await self.object_info(refresh=True)
        problems = [problem.text for problem in graph_problems(check_graph(graph), info)]
        for file in uploaded_files(graph, info):
            if not await self._has(file.name):
                where = f"{file.class_type} ({file.node_id})"
                problems.append(f"{where}: the file '{file.name}' is not on the server (input '{file.input}')")
        return problems

    async def upload(
        self, source: Path | bytes, *, name: str | None = None, content_hash: str | None = None
    ) -> Uploaded:
        """Put a file of any kind into the server's input folder, once per content; returns how a graph names it."""
        return await self._uploader.upload(source, name=name, content_hash=content_hash)

    def take_unanswered_upload(self, folder: str) -> bool:
        """Whether the server was sent a file for this folder of a run and has not answered: it may yet write it. Who
        asks looks after that from here on."""
        return self._uploader.take_unanswered(folder)

    def forget_uploads(self) -> None:
        """Files were removed from the server's input folder: what a run needs of them is uploaded again."""
        self._uploader.forget()

    async def submit(
        self,
        graph: Graph,
        *,
        wanted: Sequence[str] = (),
        extra_data: Mapping[str, Any] | None = None,
        prompt_id: str | None = None,
        timeouts: RunTimeouts | None = None,
    ) -> str:
        """Queue a graph as it is and return its prompt id. `run` does this and everything after it."""
        prompt_id = prompt_id or str(uuid4())
        nodes = frozenset(find_node(graph, node) for node in wanted)
        client_id = self._board.socket.client_id
        errors = await post_graph(
            self._http,
            graph,
            prompt_id=prompt_id,
            client_id=client_id,
            extra_data=extra_data,
            timeouts=timeouts or self._timeouts,
        )
        if (failure := refused_outputs(errors, nodes)) is not None:
            # the server would run the rest of it for nothing
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
        """Run a graph to its end. Canceling the call stops this run on the server, and no other.

        `wanted` are nodes, by id or title, whose outputs go first. `attachments` are uploaded before.
        """
        digest = workflow_hash(check_graph(graph))
        is_loaded = self._loaded.get(digest) == self.connection
        order = _RunRequest(
            wanted=[find_node(graph, node) for node in wanted],
            timeouts=timeouts or self._timeouts,
            on_event=safely(on_event),
            extra_data=extra_data,
            loading_factor=1 if is_loaded else loading_factor(graph),
        )
        result = await self._runs.keep(self._run_with(graph, tuple(attachments), order))
        self._note_loaded(digest)
        order.on_event(Finished(prompt_id=result.prompt_id, result=result))
        return result

    def stream(self, graph: Graph, **options: Any) -> AsyncIterator[RunEvent]:
        """Run a graph and yield its events, `Finished` last. Leaving the loop early stops the run."""
        return stream_of(lambda on_event: self.run(graph, on_event=on_event, **options))

    async def cancel(self, prompt_id: str) -> None:
        """Take a run out of the queue, or interrupt it if it is running; nothing happens when it is over."""
        await self.remove(prompt_id)
        await self.interrupt(prompt_id)

    async def until_stopped(self, prompt_id: str) -> None:
        """Return when a run neither waits nor runs any more, or when the server is gone: a node that is in the middle
        of something ends it first."""
        patience, pause = Patience(self._timeouts), FIRST_LOOK_SECONDS
        with suppress(ComfyRelayError):
            while await self._holds(prompt_id, patience):
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, LAST_LOOK_SECONDS)

    async def remove(self, prompt_id: str) -> None:
        """Take a pending run out of the queue; a running one is left alone."""
        await self._http.post("/queue", {"delete": [prompt_id]})

    async def interrupt(self, prompt_id: str) -> None:
        """Interrupt this run if it is the one that is running; it stops at its next node or step."""
        # a server older than 0.3.57 does not read the id and stops whatever is running
        if position_in(await self._board.queue.now(), prompt_id) == -1:
            await self._http.post("/interrupt", {"prompt_id": prompt_id})

    async def free(self, *, unload_models: bool = True, free_memory: bool = True) -> None:
        """Unload models and empty the cache, once the present run is over."""
        await self._http.post("/free", {"unload_models": unload_models, "free_memory": free_memory})

    async def read(self, file: OutputFile) -> AsyncIterator[bytes]:
        """The content of an output file, in pieces."""
        if file.content is not None:
            yield file.content
            return
        async with self._http.stream("GET", "/view", params=file.query) as response:
            if response.status_code == 404:
                raise OutputGone(f"The file {file.filename} is no longer on the server.")
            if not response.is_success:
                await response.aread()
                raise self._http.refused(response)
            async for piece in body_of(response):
                yield piece

    async def download(self, file: OutputFile, to: Path) -> int:
        """Save an output file; `to` appears only when it is complete. Returns its size."""
        return await save(self.read(file), to)

    async def _run_with(self, graph: Graph, attachments: tuple[Attachment, ...], order: _RunRequest) -> RunResult:
        attached = await self._uploader.attach(graph, attachments)
        try:
            result = await self._run_once(attached, order)
        except InputMissing:
            if not attachments:
                raise
            # the server's folder was emptied since the upload
            self._uploader.forget()
            attached = await self._uploader.attach(graph, attachments)
            result = await self._run_once(attached, order)
        except NotInstalled as refusal:
            raise await self._with_all_missing(refusal, attached) from refusal
        except OutputGone:
            # it was sent while nobody listened, and the server sends it but once
            result = await self._run_once(attached, order)
        if not result.is_empty:
            return result
        # everything was cached, and an older server does not say what: a new folder makes it save again
        result = await self._run_once(attached, order)
        if result.is_empty:
            raise NoOutput
        return result

    async def _with_all_missing(self, refusal: NotInstalled, graph: Graph) -> NotInstalled:
        """ComfyUI names the first node that it misses, and no model as long as a node is missing."""
        try:
            found = graph_problems(graph, await self.object_info(refresh=True))
        except ComfyError:
            return refusal
        missing = [each.text for each in found if each.kind is NotInstalled]
        texts = list(dict.fromkeys([*refusal.problems, *missing]))
        return NotInstalled("; ".join(texts), node_id=refusal.node_id, problems=texts, raw=refusal.raw)

    async def _run_once(self, graph: Graph, order: _RunRequest) -> RunResult:
        for _ in range(SUBMISSIONS - 1):
            with suppress(NotTaken):
                return await self._try(graph, order)
        return await self._try(graph, order)

    async def _try(self, graph: Graph, order: _RunRequest) -> RunResult:
        # a new id each time: the server lets a second run with the same id overwrite the first one's history
        prompt_id = str(uuid4())
        sent = graph if self._keep_prefixes else with_prefix(graph, f"comfyrelay/{prompt_id}")
        await self._board.socket.ready(SOCKET_WAIT_SECONDS)
        with self._board.watching(
            sent, prompt_id, timeouts=order.timeouts, factor=order.loading_factor, on_event=order.on_event
        ) as watch:
            is_accepted = False
            try:
                await self.submit(
                    sent,
                    wanted=order.wanted,
                    extra_data=order.extra_data,
                    prompt_id=prompt_id,
                    timeouts=order.timeouts,
                )
                is_accepted = True
                watch.progress.accepted()
                entry = await watch.entry()
            except _NOT_THERE:
                raise
            except BaseException as error:
                # whatever it is, nobody waits for this run any more
                await self._stop(prompt_id, may_be_coming=not is_accepted)
                if isinstance(error, RunTimedOut):
                    self._overdue_runs.add(prompt_id)
                raise
            if watch.was_ignored:
                # the server may have mixed up its connections
                await self._board.socket.renew()
            if (failure := failure_in(entry)) is not None:
                raise failure
            if self._forget_history:
                with suppress(ComfyError):
                    await self.forget_run(prompt_id)
            received = await sent_outputs(watch, sent, entry)
        for node_id, files in groupby(received, key=lambda file: file.node_id):
            order.on_event(OutputReady(prompt_id=prompt_id, node_id=node_id, files=tuple(files), texts=()))
        return result_of(
            entry.get("outputs") or {},
            prompt_id=prompt_id,
            sent=received,
            wanted=order.wanted,
            cached_nodes=cached_nodes(entry),
            seconds=run_seconds(entry),
        )

    async def _holds(self, prompt_id: str, patience: Patience) -> bool:
        try:
            position = position_in(await self._board.queue.now(), prompt_id)
        except (ServerUnreachable, ServerRefused) as error:
            patience.failed(error)
            return True
        patience.answered()
        return position is not None

    async def _has(self, name: str) -> bool:
        # one byte is enough; a HEAD is not passed on by every proxy
        wanted = {"params": file_query(name), "headers": {"Range": "bytes=0-0"}}
        async with self._http.stream("GET", "/view", **wanted) as response:
            return response.is_success

    def _note_loaded(self, digest: str) -> None:
        self._loaded[digest] = self.connection
        if len(self._loaded) > MOST_LOADED:
            del self._loaded[next(iter(self._loaded))]

    async def _stop(self, prompt_id: str, *, may_be_coming: bool = False) -> None:
        """Cancel as well as can be: the server may be the reason why."""
        await self._runs.finish_stop(self._try_to_cancel(prompt_id, may_be_coming=may_be_coming))

    async def _try_to_cancel(self, prompt_id: str, *, may_be_coming: bool) -> None:
        with suppress(ComfyRelayError, TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self.cancel(prompt_id)
            async with asyncio.timeout(COMING_SECONDS):
                # a request that was cut off may still be on its way through a proxy
                while may_be_coming and not await knows(self._http, prompt_id):
                    await asyncio.sleep(0.2)
                    await self.cancel(prompt_id)
