"""A client of the user API."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal, Self
from urllib.parse import quote
from uuid import uuid4

from comfyrelay.client.calls import DEFAULT_URL, Calls, Done
from comfyrelay.client.events import follow
from comfyrelay.client.files import Files, LinkExpired, media_type, safe_name
from comfyrelay.errors import ComfyRelayError, InvalidInput, NotFound
from comfyrelay.protocol.admin.workers import WorkerSummary
from comfyrelay.protocol.desk import (
    AboutJob,
    DeskInfo,
    Link,
    NewDeskBatch,
    DeskStatus,
    RunFile,
    ScriptCommand,
    ScriptJob,
)
from comfyrelay.protocol.jobs import (
    Batch,
    BulkRequest,
    Job,
    JobEvent,
    LogLine,
    MoveRequest,
    NewBatch,
    NewJob,
    NewUpload,
    Output,
    Pause,
    Retry,
    Upload,
)
from comfyrelay.protocol.records import BulkResult
from comfyrelay.protocol.user import (
    AddedWorkflow,
    Deleted,
    Effect,
    NewPreset,
    NewWorkflow,
    OwnWorkflowPatch,
    Preset,
    WorkerSlot,
    Workflow,
)

Kind = Literal["job", "batch"]
PATHS: dict[Kind, str] = {"job": "/api/ai-jobs", "batch": "/api/batches"}
BODIES: dict[Kind, type[Job | Batch]] = {"job": Job, "batch": Batch}
LARGEST_PAGE = 200
UPLOADS_AT_ONCE = 4
# How often a followed log is polled.
LOG_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribedGraph:
    """The workflow made from a graph. `graph` is in the API format; `roles` names the properties that are the prompt,
    the seed and so on; `positions` has the inputs that each property sets; `remarks` are notes; `message` is the
    server's message with the remarks."""

    workflow: Workflow
    graph: dict[str, Any]
    roles: dict[str, str]
    positions: dict[str, list[str]]
    remarks: list[str]
    message: str


class Client:
    """For one event loop; close it, or use `async with`.

    Raises the error that the server returned, or `ControlPlaneUnreachable` if there is no response, or not one of
    ComfyRelay.
    """

    def __init__(self, url: str | None = None, *, token: str | None = None) -> None:
        """The default address is `COMFYRELAY_URL`, else this machine. The default token is `COMFYRELAY_TOKEN`, else the
        secret of your desk."""
        url = url or os.environ.get("COMFYRELAY_URL") or DEFAULT_URL
        self._calls = Calls(url, token=token or os.environ.get("COMFYRELAY_TOKEN"))
        self._files = Files()

    @property
    def url(self) -> str:
        return self._calls.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._calls.close()
        await self._files.close()

    # Files

    async def upload(self, path: Path, *, mime_type: str | None = None) -> str:
        """Upload a file in chunks. Returns its id."""
        if not await asyncio.to_thread(path.is_file):
            raise InvalidInput(f"There is no file {path}.")
        size = (await asyncio.to_thread(path.stat)).st_size
        if not size:
            raise InvalidInput(f"{path} is empty.")
        begun = await self._calls.send(
            "/api/videos/uploads",
            Upload,
            NewUpload,
            mime_type=mime_type or media_type(path),
            size=size,
            original_filename=path.name,
        )
        upload = begun.data
        await self._files.send(path, upload.upload_url, headers=upload.upload_headers, size=size)
        return upload.file.id

    async def upload_all(
        self, paths: Iterable[Path], *, on_sent: Callable[[Path], None] | None = None
    ) -> dict[Path, str]:
        """Upload each file once, a few at a time. Returns the ids by path."""
        turn = asyncio.Semaphore(UPLOADS_AT_ONCE)
        wanted = list(dict.fromkeys(paths))

        async def send(path: Path) -> str:
            async with turn:
                id_ = await self.upload(path)
            if on_sent is not None:
                on_sent(path)
            return id_

        try:
            async with asyncio.TaskGroup() as group:
                tasks = {path: group.create_task(send(path)) for path in wanted}
        except* ComfyRelayError as failed:
            # one error is enough
            raise failed.exceptions[0] from None
        return {path: task.result() for path, task in tasks.items()}

    async def download_outputs(
        self, job_id: str, folder: Path, *, name: Callable[[Output], str] | None = None
    ) -> list[Path]:
        """Download the outputs of a job into a folder, under the server's names or the names from `name`.

        A desk also has the other files of the run: `cat.png` is followed by `cat_2.png` and so on.
        """
        saved = [
            await self._download(job_id, output, folder / safe_name(name(output) if name else output.filename))
            for output in (await self.job(job_id)).outputs
        ]
        about = await self.about(job_id) if saved else None
        others = [file for file in about.files if not file.is_output] if about else []
        for number, each in enumerate(others, start=2):
            if each.url is not None:
                place = folder / f"{saved[0].stem}_{number}{PurePath(each.name).suffix}"
                saved.append(await self._files.fetch(_as_output(each, self.url), place, through=self._calls.http))
        return saved

    async def _download(self, job_id: str, output: Output, to: Path) -> Path:
        try:
            return await self._files.fetch(output, to)
        except LinkExpired:
            # URLs expire: for many files, later ones get new URLs
            [fresh] = [each for each in (await self.job(job_id)).outputs if each.file_id == output.file_id]
            return await self._files.fetch(fresh, to)

    # What can be run

    async def create_workflow(
        self,
        graph: Mapping[str, Any],
        *,
        name: str | None = None,
        properties: Sequence[Mapping[str, Any]] | None = None,
        output_node_id: str | None = None,
        output_extension: str | None = None,
        output_mime_type: str | None = None,
    ) -> Workflow:
        """Make your own workflow from a graph or an editor file. Properties are detected unless given. The same graph
        again returns the existing workflow."""
        done = await self._calls.send(
            "/api/workflows",
            Workflow,
            NewWorkflow,
            graph=graph,
            properties=None if properties is None else list(properties),
            name=name,
            output_node_id=output_node_id,
            output_extension=output_extension,
            output_mime_type=output_mime_type,
        )
        return done.data

    async def add_graph(
        self, graph: Mapping[str, Any], *, name: str | None = None, wait_for_missing: bool = False
    ) -> DescribedGraph:
        """The same, with everything detected in the graph. An editor file with nodes that no worker has raises
        `MissingOnWorkers`; with `wait_for_missing` it is stored, and `waiting` until a worker has them."""
        done = await self._calls.send(
            "/api/workflows",
            AddedWorkflow,
            NewWorkflow,
            graph=graph,
            name=name,
            wait_for_missing=wait_for_missing or None,
        )
        return DescribedGraph(
            workflow=done.data,
            graph=done.data.graph,
            roles=done.data.roles,
            positions=done.data.positions,
            remarks=done.data.remarks,
            message=done.message,
        )

    async def workflows(self) -> list[Workflow]:
        """Your own workflows, newest first."""
        return [page async for page in self._calls.pages("/api/workflows", Workflow, limit=LARGEST_PAGE)]

    async def rename_workflow(self, slug: str, name: str) -> Done[Workflow]:
        return await self._calls.send(_workflow(slug), Workflow, OwnWorkflowPatch, method="PATCH", name=name)

    async def replace_workflow(self, slug: str, graph: Mapping[str, Any]) -> Done[Workflow]:
        """Run another version from now on. Submitted jobs keep their graph."""
        return await self._calls.send(_workflow(slug), Workflow, OwnWorkflowPatch, method="PATCH", graph=graph)

    async def remove_workflow(self, slug: str) -> Done[Deleted]:
        """It can no longer be run; existing jobs stay. Raises `Conflict` while one of them has not ended."""
        return await self._calls.delete(_workflow(slug), Deleted)

    async def effects(self) -> list[Effect]:
        return [page async for page in self._calls.pages("/api/effects", Effect, limit=LARGEST_PAGE)]

    # Jobs

    async def submit(
        self,
        *,
        effect_id: int | None = None,
        workflow_slug: str | None = None,
        input_payload: Mapping[str, Any] | None = None,
        input_file_id: str | None = None,
        label: str | None = None,
        priority: int = 0,
        webhook_url: str | None = None,
        idempotency_key: str | None = None,
        wait_for_missing: bool = False,
        max_wait_seconds: int | None = None,
        reuse: bool = False,
    ) -> Job:
        """Submit a job. If it is unknown whether the request arrived, send it again with the same key.

        Raises `MissingOnWorkers` if no worker meets its requirements, unless it may wait for them. With `reuse`, a copy
        of the output of an equal completed job completes it at once.
        """
        done = await self._calls.send(
            PATHS["job"],
            Job,
            NewJob,
            effect_id=effect_id,
            workflow_slug=workflow_slug,
            input_payload=input_payload,
            input_file_id=input_file_id,
            label=label,
            priority=priority,
            webhook_url=webhook_url,
            idempotency_key=idempotency_key or uuid4().hex,
            wait_for_missing=wait_for_missing or None,
            max_wait_seconds=max_wait_seconds,
            reuse=reuse or None,
        )
        return done.data

    async def job(self, job_id: str) -> Job:
        return await self._calls.get(_path("job", job_id), Job)

    def jobs(
        self,
        *,
        status: str | None = None,
        batch_id: str | None = None,
        no_batch: bool | None = None,
        search: str | None = None,
        page: int = LARGEST_PAGE,
    ) -> AsyncIterator[Job]:
        """Newest first, fetched page by page. `search` is part of a label (also of its batch), error or id."""
        limit = min(page, LARGEST_PAGE)
        query = {"status": status, "batch_id": batch_id, "no_batch": no_batch, "q": search}
        return self._calls.pages(PATHS["job"], Job, **query, limit=limit)

    async def some_jobs(self, *, status: str, limit: int) -> tuple[list[Job], bool]:
        """The newest jobs of a status, and whether there are more."""
        page = await self._calls.page(PATHS["job"], Job, status=status, limit=limit)
        return page.items, page.next_cursor is not None

    def events(self, job_id: str, *, after: int = 0, patience_seconds: float = 60.0) -> AsyncGenerator[JobEvent, None]:
        """The events of a job after the given one, until its end; reconnects if needed."""
        return follow(self._calls, job_id, after=after, patience_seconds=patience_seconds)

    async def logs(self, job_id: str, *, is_followed: bool = False) -> AsyncGenerator[LogLine, None]:
        """The log of the workers, oldest first; with `follow`, until the job ends."""
        path, cursor, seen = f"{_path('job', job_id)}/logs", None, 0
        while True:
            # checked first, so that all lines before the end are read
            has_ended = not is_followed or (await self.job(job_id)).has_ended
            while True:
                page = await self._calls.page(path, LogLine, limit=LARGEST_PAGE, cursor=cursor)
                for line in page.items[seen:]:
                    yield line
                seen = len(page.items)
                if page.next_cursor is None:
                    break
                cursor, seen = page.next_cursor, 0
            if has_ended:
                return
            await asyncio.sleep(LOG_SECONDS)

    # Verbs of jobs and batches

    async def cancel(self, kind: Kind, id_: str) -> Done[Job | Batch]:
        return await self._calls.post(f"{_path(kind, id_)}/cancel", BODIES[kind])

    async def pause(self, kind: Kind, id_: str, *, now: bool = False) -> Done[Job | Batch]:
        return await self._calls.send(f"{_path(kind, id_)}/pause", BODIES[kind], Pause, mode="now" if now else "after")

    async def resume(self, kind: Kind, id_: str) -> Done[Job | Batch]:
        return await self._calls.post(f"{_path(kind, id_)}/resume", BODIES[kind])

    async def move(
        self, kind: Kind, id_: str, to: str | None = None, *, before: str | None = None
    ) -> Done[Job | Batch]:
        """Move to an end, by one place, or before the job or batch of that id."""
        return await self._calls.send(f"{_path(kind, id_)}/move", BODIES[kind], MoveRequest, to=to, before=before)

    async def retry(self, kind: Kind, id_: str, *, new_seeds: bool = False) -> Done[Job | Batch]:
        """Retry a failed or canceled job, as a new one; for a batch, the failed items."""
        verb = "retry" if kind == "job" else "retry-failed"
        return await self._calls.send(f"{_path(kind, id_)}/{verb}", BODIES[kind], Retry, new_seeds=new_seeds)

    async def rerun(self, batch_id: str, *, new_seeds: bool = False) -> Done[Batch]:
        """Run all items of a batch again as a new batch, also completed ones."""
        return await self._calls.send(f"{_path('batch', batch_id)}/again", Batch, Retry, new_seeds=new_seeds)

    async def run_again(self, job_id: str, *, new_seeds: bool = False) -> Done[Job]:
        """Run a job that has ended again as a new one, also a completed one."""
        return await self._calls.send(f"{_path('job', job_id)}/again", Job, Retry, new_seeds=new_seeds)

    async def delete_job(self, job_id: str, *, keep_files: bool = False) -> Done[Deleted]:
        """Delete a job that has ended, with its log and output; on a desk, `keep_files` keeps the files in the output
        folder."""
        return await self._calls.delete(_path("job", job_id), Deleted, keep_files=keep_files)

    async def delete_batch(self, batch_id: str, *, keep_files: bool = False) -> Done[BulkResult]:
        """Delete all jobs of a batch that have ended."""
        wish: dict[str, Any] = {"action": "delete", "filter": {"batch_id": batch_id}, "keep_files": keep_files}
        return await self._calls.send(f"{PATHS['job']}/bulk", BulkResult, BulkRequest, **wish)

    # Batches

    async def submit_batch(
        self,
        items: Sequence[Mapping[str, Any]],
        *,
        effect_id: int | None = None,
        workflow_slug: str | None = None,
        label: str | None = None,
        priority: int = 0,
        webhook_url: str | None = None,
        idempotency_key: str | None = None,
        wait_for_missing: bool = False,
        max_wait_seconds: int | None = None,
        reuse: bool = False,
    ) -> Batch:
        """Submit jobs together, all or none. An item may have `input_payload`, `input_file_id` and `label`."""
        done = await self._calls.send(
            PATHS["batch"],
            Batch,
            NewBatch,
            effect_id=effect_id,
            workflow_slug=workflow_slug,
            items=list(items),
            label=label,
            priority=priority,
            webhook_url=webhook_url,
            idempotency_key=idempotency_key or uuid4().hex,
            wait_for_missing=wait_for_missing or None,
            max_wait_seconds=max_wait_seconds,
            reuse=reuse or None,
        )
        return done.data

    async def batch(self, batch_id: str) -> Batch:
        return await self._calls.get(_path("batch", batch_id), Batch)

    def batches(self) -> AsyncIterator[Batch]:
        return self._calls.pages(PATHS["batch"], Batch, limit=LARGEST_PAGE)

    async def some_batches(self, *, limit: int) -> list[Batch]:
        return (await self._calls.page(PATHS["batch"], Batch, limit=limit)).items

    async def batches_before(self, id_: str, *, limit: int) -> list[Batch]:
        """The newest batches before this id, which need not exist."""
        return (await self._calls.page(PATHS["batch"], Batch, cursor=id_, limit=limit)).items

    async def jobs_before(self, id_: str, *, limit: int) -> list[Job]:
        return (await self._calls.page(PATHS["job"], Job, cursor=id_, limit=limit)).items

    # Presets

    async def presets(self) -> list[Preset]:
        return [page async for page in self._calls.pages("/api/presets", Preset, limit=LARGEST_PAGE)]

    async def preset(self, name: str) -> Preset:
        for preset in await self.presets():
            if preset.name == name:
                return preset
        raise NotFound(f"There is no preset {name!r}.")

    async def create_preset(self, name: str, values: Mapping[str, Any]) -> Preset:
        return (await self._calls.send("/api/presets", Preset, NewPreset, name=name, values=values)).data

    async def remove_preset(self, preset_id: str) -> None:
        await self._calls.delete(f"/api/presets/{quote(preset_id, safe='')}", Deleted)

    # Only where there is a desk

    async def now(self) -> DeskStatus | None:
        """A summary of the queue; `None` without a desk."""
        try:
            return await self._calls.get("/api/desk/now", DeskStatus)
        except NotFound:
            return None

    async def about(self, job_id: str) -> AboutJob | None:
        """The inputs and attempts of a job; `None` without a desk."""
        try:
            return await self._calls.get(f"/api/desk/jobs/{quote(job_id, safe='')}", AboutJob)
        except NotFound:
            return None

    # Only on a desk

    async def desk(self) -> DeskInfo:
        """The configuration of the desk; raises `NotFound` if there is none."""
        return await self._calls.get("/api/desk", DeskInfo)

    async def is_desk(self) -> bool:
        try:
            await self.desk()
        except NotFound:
            return False
        return True

    async def add_link(self) -> Link:
        """Create a link that opens the page in a browser, once."""
        if not await self.is_desk():
            raise NotFound(f"{self.url} is a server, and only a desk has a page.")
        return (await self._calls.post("/api/desk/links", Link)).data

    async def script_workflow(self) -> str | None:
        """The workflow of the user's own script; `None` without a desk or script."""
        try:
            return (await self.desk()).script_workflow
        except NotFound:
            return None

    async def script_command(self, values: Mapping[str, Any]) -> str:
        """The command line of a script job, quoted for a shell."""
        return (await self._calls.send("/api/desk/script/preview", ScriptCommand, ScriptJob, **values)).data.command

    async def add_batch(self, wish: Mapping[str, Any]) -> Batch:
        """Add a batch from folders and lists; `wish` is the body of `POST /api/desk/batches`."""
        return (await self.add_batch_with_message(wish)).data

    async def add_batch_with_message(self, wish: Mapping[str, Any]) -> Done[Batch]:
        """The same, with the server's message."""
        wish = {"idempotency_key": uuid4().hex, **wish}
        return await self._calls.send("/api/desk/batches", Batch, NewDeskBatch, **wish)

    # Only for administrators

    async def slots(self) -> list[WorkerSlot]:
        return (await self._calls.page("/api/slots", WorkerSlot, limit=LARGEST_PAGE)).items

    async def workers(self) -> list[WorkerSummary]:
        return (await self._calls.page("/api/admin/workers", WorkerSummary, limit=LARGEST_PAGE)).items


def _workflow(slug: str) -> str:
    return f"/api/workflows/{quote(slug, safe='')}"


def _path(kind: Kind, id_: str) -> str:
    return f"{PATHS[kind]}/{quote(id_, safe='')}"


def _as_output(file: RunFile, url: str) -> Output:
    return Output.of(file, file_id="", url=f"{url}{file.url}", filename=file.name, content_hash=None)
