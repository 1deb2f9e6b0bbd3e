"""A client of the user API."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote
from uuid import uuid4

from comfyrelay import protocol
from comfyrelay.client.calls import DEFAULT_URL, ActionResult, Calls
from comfyrelay.client.events import follow
from comfyrelay.client.files import Files, LinkExpired, media_type, safe_name
from comfyrelay.errors import ComfyRelayError, InvalidInput, NotFound
from comfyrelay.protocol.jobs import (
    Batch,
    BulkRequest,
    Job,
    JobEvent,
    LogLine,
    MoveRequest,
    NewBatch,
    NewJob,
    Output,
    Pause,
    QueueCounts,
    Retry,
)

if TYPE_CHECKING:
    from comfyrelay.protocol.admin.workers import WorkerSummary
    from comfyrelay.protocol.desk import (
        AboutJob,
        DeskInfo,
        DeskStatus,
        Link,
    )
    from comfyrelay.protocol.records import BulkResult
    from comfyrelay.protocol.uploads import Upload
    from comfyrelay.protocol.user import (
        AddedWorkflow,
        Deleted,
        Effect,
        OwnWorkflowVersion,
        Preset,
        SameName,
        WorkerSlot,
        Workflow,
    )

Kind = Literal["job", "batch"]
PATHS: dict[Kind, str] = {"job": "/api/ai-jobs", "batch": "/api/batches"}
BODIES: dict[Kind, type[Job | Batch]] = {"job": Job, "batch": Batch}
MAX_PAGE = 200
MAX_CONCURRENT_UPLOADS = 4
# A followed log is polled at this interval.
LOG_SECONDS = 0.5
T = TypeVar("T")


class SubmitOptions(TypedDict, total=False):
    """Options of a job or a batch. The effect or the workflow is required."""

    effect_id: int | None
    workflow_slug: str | None
    label: str | None
    priority: int
    webhook_url: str | None
    idempotency_key: str | None
    wait_for_missing: bool
    max_wait_seconds: int | None
    reuse: bool


class Client:
    """A client for one event loop. Close it, or use `async with`.

    Methods raise the error that the server returned, or `ControlPlaneUnreachable` if no ComfyRelay server answers.
    """

    def __init__(self, url: str | None = None, *, token: str | None = None) -> None:
        """The default address is `COMFYRELAY_URL`, or else this machine. The default token is `COMFYRELAY_TOKEN`, or
        else the secret of your desk."""
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
        created = await self._calls.send(
            "/api/videos/uploads",
            protocol.uploads.Upload,
            protocol.uploads.NewUpload,
            mime_type=mime_type or media_type(path),
            size=size,
            original_filename=path.name,
        )
        upload: Upload = created.data
        await self._files.send(path, upload.upload_url, headers=upload.upload_headers, size=size)
        return upload.file.id

    async def upload_all(
        self, paths: Iterable[Path], *, on_sent: Callable[[Path], None] | None = None
    ) -> dict[Path, str]:
        """Upload each file once, a few at a time. Returns the ids by path."""
        slots = asyncio.Semaphore(MAX_CONCURRENT_UPLOADS)

        async def send(path: Path) -> str:
            async with slots:
                id_ = await self.upload(path)
            if on_sent is not None:
                on_sent(path)
            return id_

        try:
            async with asyncio.TaskGroup() as group:
                tasks = {path: group.create_task(send(path)) for path in dict.fromkeys(paths)}
        except* ComfyRelayError as failed:
            # The first error is enough.
            raise failed.exceptions[0] from None
        return {path: task.result() for path, task in tasks.items()}

    async def download_outputs(
        self, job_id: str, folder: Path, *, name: Callable[[Output], str] | None = None
    ) -> list[Path]:
        """Download the outputs of a job into a folder, under the server's names or the names from `name`.

        From a desk, files that a script saved are downloaded even if they are not outputs: `cat_2.png` and so on.
        """
        saved = [
            await self._download(job_id, output, folder / safe_name(name(output) if name else output.filename))
            for output in (await self.job(job_id)).outputs
        ]
        about = await self.about(job_id) if saved else None
        others = [file for file in about.files if file.output_number is None] if about else []
        for number, file in enumerate(others, start=len(saved) + 1):
            if file.url is not None:
                path = folder / f"{saved[0].stem}_{number}{PurePath(file.name).suffix}"
                output = Output.of(file, file_id="", url=f"{self.url}{file.url}", filename=file.name, content_hash=None)
                saved.append(await self._files.fetch(output, path, through=self._calls.http))
        return saved

    async def _download(self, job_id: str, output: Output, to: Path) -> Path:
        try:
            return await self._files.fetch(output, to)
        except LinkExpired:
            # Earlier downloads may have taken longer than the URL is valid.
            [renewed] = [fresh for fresh in (await self.job(job_id)).outputs if fresh.file_id == output.file_id]
            return await self._files.fetch(renewed, to)

    # Workflows and effects

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
        """Create your own workflow from a graph or an editor file. Properties are detected unless given. For a known
        graph, the existing workflow is returned."""
        done = await self._calls.send(
            "/api/workflows",
            protocol.user.Workflow,
            protocol.user.NewWorkflow,
            graph=graph,
            properties=None if properties is None else list(properties),
            name=name,
            output_node_id=output_node_id,
            output_extension=output_extension,
            output_mime_type=output_mime_type,
        )
        return done.data

    async def add_graph(
        self,
        graph: Mapping[str, Any],
        *,
        name: str | None = None,
        wait_for_missing: bool = False,
        same_name: SameName = "allow",
    ) -> ActionResult[AddedWorkflow]:
        """Create a workflow and return it with the details that were detected in the graph. Raises `MissingOnWorkers`
        for an editor file with nodes that no worker has; with `wait_for_missing`, the workflow waits for them.
        `same_name` determines the result if another workflow has the name: `refuse` raises `WorkflowNameTaken`."""
        return await self._calls.send(
            "/api/workflows",
            protocol.user.AddedWorkflow,
            protocol.user.NewWorkflow,
            graph=graph,
            name=name,
            wait_for_missing=wait_for_missing or None,
            same_name=None if same_name == "allow" else same_name,
        )

    async def workflows(self) -> list[Workflow]:
        """Return your own workflows, newest first."""
        return [
            workflow async for workflow in self._calls.pages("/api/workflows", protocol.user.Workflow, limit=MAX_PAGE)
        ]

    async def rename_workflow(self, slug: str, name: str) -> ActionResult[Workflow]:
        return await self._calls.send(
            _workflow(slug), protocol.user.Workflow, protocol.user.OwnWorkflowPatch, method="PATCH", name=name
        )

    async def replace_workflow(self, slug: str, graph: Mapping[str, Any]) -> ActionResult[Workflow]:
        """Replace the graph of a workflow. Submitted jobs keep their graph."""
        return await self._calls.send(
            _workflow(slug), protocol.user.Workflow, protocol.user.OwnWorkflowPatch, method="PATCH", graph=graph
        )

    async def workflow_versions(self, slug: str) -> list[OwnWorkflowVersion]:
        """Return the stored versions of a workflow, newest first."""
        items = protocol.base.Items[protocol.user.OwnWorkflowVersion]
        return (await self._calls.get(f"{_workflow(slug)}/versions", items)).items

    async def bring_back_workflow(self, slug: str, number: int) -> ActionResult[Workflow]:
        """Use an earlier version for new jobs again."""
        return await self._calls.post(f"{_workflow(slug)}/versions/{number}/bring-back", protocol.user.Workflow)

    async def remove_workflow(self, slug: str, *, unless_needed: bool = False) -> ActionResult[Deleted]:
        """Remove a workflow, but not its jobs. Raises `Conflict` while one of its jobs has not ended; with
        `unless_needed`, also if the workflow was added again or changed, or if it has several jobs or a job that did
        not complete."""
        return await self._calls.delete(_workflow(slug), protocol.user.Deleted, unless_needed=unless_needed)

    async def effects(self) -> list[Effect]:
        return [effect async for effect in self._calls.pages("/api/effects", protocol.user.Effect, limit=MAX_PAGE)]

    # Jobs

    async def submit(
        self,
        *,
        input_payload: Mapping[str, Any] | None = None,
        input_file_id: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Job:
        """Submit a job. If it is unknown whether the request arrived, send it again with the same key.

        Raises `MissingOnWorkers` if no worker meets the job's requirements, unless `wait_for_missing` is set. With
        `reuse`, the job completes at once with the output of an equal completed job.
        """
        fields = {"input_payload": input_payload, "input_file_id": input_file_id, **_submit_fields(options)}
        return (await self._calls.send(PATHS["job"], Job, NewJob, **fields)).data

    async def job(self, job_id: str) -> Job:
        return await self._calls.get(_path("job", job_id), Job)

    def jobs(
        self,
        *,
        status: str | None = None,
        batch_id: str | None = None,
        no_batch: bool | None = None,
        search: str | None = None,
        page: int = MAX_PAGE,
    ) -> AsyncIterator[Job]:
        """Yield jobs, newest first, fetched page by page. `search` matches part of an id, an error, or the label of a
        job or its batch."""
        query = {"status": status, "batch_id": batch_id, "no_batch": no_batch, "q": search}
        return self._calls.pages(PATHS["job"], Job, **query, limit=min(page, MAX_PAGE))

    async def recent_jobs(self, *, status: str, limit: int) -> tuple[list[Job], bool]:
        """Return the newest jobs of a status, and whether there are more."""
        page = await self._calls.page(PATHS["job"], Job, status=status, limit=limit)
        return page.items, page.next_cursor is not None

    async def jobs_before(self, id_: str, *, limit: int) -> list[Job]:
        """Return the newest jobs before this id, which need not exist."""
        return (await self._calls.page(PATHS["job"], Job, cursor=id_, limit=limit)).items

    def events(self, job_id: str, *, after: int = 0, patience_seconds: float = 60.0) -> AsyncGenerator[JobEvent, None]:
        """Yield the events of a job after the given one until its end. A lost connection is reopened."""
        return follow(self._calls, job_id, after=after, patience_seconds=patience_seconds)

    async def logs(self, job_id: str, *, is_followed: bool = False) -> AsyncGenerator[LogLine, None]:
        """Yield the log lines of the workers, oldest first; with `is_followed`, until the job ends."""
        path, cursor, read = f"{_path('job', job_id)}/logs", None, 0
        while True:
            # Check the status first, so that all lines before the end are read.
            has_ended = not is_followed or (await self.job(job_id)).has_ended
            while True:
                page = await self._calls.page(path, LogLine, limit=MAX_PAGE, cursor=cursor)
                for line in page.items[read:]:
                    yield line
                read = len(page.items)
                if page.next_cursor is None:
                    break
                cursor, read = page.next_cursor, 0
            if has_ended:
                return
            await asyncio.sleep(LOG_SECONDS)

    # The queue

    async def queue_counts(self) -> QueueCounts:
        """Count your jobs by status, and tell whether the queue is paused."""
        return await self._calls.get("/api/queue/counts", QueueCounts)

    async def pause_queue(self, *, now: bool = False) -> ActionResult[QueueCounts]:
        """Pause the queue: no job starts until it is resumed. With `now`, also interrupt and requeue running jobs."""
        return await self._calls.send("/api/queue/pause", QueueCounts, Pause, mode="now" if now else "after")

    async def resume_queue(self) -> ActionResult[QueueCounts]:
        return await self._calls.post("/api/queue/resume", QueueCounts)

    # Actions on jobs and batches

    async def cancel(self, kind: Kind, id_: str) -> ActionResult[Job | Batch]:
        return await self._calls.post(f"{_path(kind, id_)}/cancel", BODIES[kind])

    async def pause(self, kind: Kind, id_: str, *, now: bool = False) -> ActionResult[Job | Batch]:
        return await self._calls.send(f"{_path(kind, id_)}/pause", BODIES[kind], Pause, mode="now" if now else "after")

    async def resume(self, kind: Kind, id_: str) -> ActionResult[Job | Batch]:
        return await self._calls.post(f"{_path(kind, id_)}/resume", BODIES[kind])

    async def move(
        self, kind: Kind, id_: str, to: str | None = None, *, before: str | None = None
    ) -> ActionResult[Job | Batch]:
        """Move to an end, by one place, or before the job or batch with another id."""
        return await self._calls.send(f"{_path(kind, id_)}/move", BODIES[kind], MoveRequest, to=to, before=before)

    async def retry(self, kind: Kind, id_: str, *, new_seeds: bool = False) -> ActionResult[Job | Batch]:
        """Retry a failed or canceled job as a new job, or the failed items of a batch."""
        action = "retry" if kind == "job" else "retry-failed"
        return await self._calls.send(f"{_path(kind, id_)}/{action}", BODIES[kind], Retry, new_seeds=new_seeds)

    async def rerun_job(self, job_id: str, *, new_seeds: bool = False) -> ActionResult[Job]:
        """Run an ended job again as a new job."""
        return await self._calls.send(f"{_path('job', job_id)}/again", Job, Retry, new_seeds=new_seeds)

    async def rerun_batch(self, batch_id: str, *, new_seeds: bool = False) -> ActionResult[Batch]:
        """Run all items of a batch again as a new batch."""
        return await self._calls.send(f"{_path('batch', batch_id)}/again", Batch, Retry, new_seeds=new_seeds)

    async def delete_job(self, job_id: str, *, keep_files: bool = False) -> ActionResult[Deleted]:
        """Delete a job that has ended, with its log and output. On a desk, `keep_files` keeps the files in the output
        folder."""
        return await self._calls.delete(_path("job", job_id), protocol.user.Deleted, keep_files=keep_files)

    async def delete_batch(self, batch_id: str, *, keep_files: bool = False) -> ActionResult[BulkResult]:
        """Delete all jobs of a batch that have ended."""
        fields: dict[str, Any] = {"action": "delete", "filter": {"batch_id": batch_id}, "keep_files": keep_files}
        return await self._calls.send(f"{PATHS['job']}/bulk", protocol.records.BulkResult, BulkRequest, **fields)

    # Batches

    async def submit_batch(
        self,
        items: Sequence[Mapping[str, Any]],
        *,
        axes: Sequence[Mapping[str, Any]] = (),
        **options: Unpack[SubmitOptions],
    ) -> Batch:
        """Submit jobs together, all or none. An item may have `input_payload`, `input_file_id` and `label`. `axes` are
        the lists that were combined into the items."""
        fields = {"items": list(items), **({"axes": list(axes)} if axes else {}), **_submit_fields(options)}
        return (await self._calls.send(PATHS["batch"], Batch, NewBatch, **fields)).data

    async def batch(self, batch_id: str) -> Batch:
        return await self._calls.get(_path("batch", batch_id), Batch)

    def batches(self) -> AsyncIterator[Batch]:
        return self._calls.pages(PATHS["batch"], Batch, limit=MAX_PAGE)

    async def recent_batches(self, *, limit: int, before: str | None = None) -> list[Batch]:
        """Return the newest batches, or those before an id, which need not exist."""
        return (await self._calls.page(PATHS["batch"], Batch, cursor=before, limit=limit)).items

    # Presets

    async def presets(self) -> list[Preset]:
        return [preset async for preset in self._calls.pages("/api/presets", protocol.user.Preset, limit=MAX_PAGE)]

    async def preset(self, name: str) -> Preset:
        for preset in await self.presets():
            if preset.name == name:
                return preset
        raise NotFound(f"There is no preset {name!r}.")

    async def create_preset(self, name: str, values: Mapping[str, Any]) -> Preset:
        return (
            await self._calls.send(
                "/api/presets", protocol.user.Preset, protocol.user.NewPreset, name=name, values=values
            )
        ).data

    async def remove_preset(self, preset_id: str) -> None:
        await self._calls.delete(f"/api/presets/{quote(preset_id, safe='')}", protocol.user.Deleted)

    # Desk

    async def now(self) -> DeskStatus | None:
        """Return a summary of the queue; `None` if the server is not a desk."""
        return await self._get_if_found("/api/desk/now", protocol.desk.DeskStatus)

    async def about(self, job_id: str) -> AboutJob | None:
        """Return the inputs and attempts of a job; `None` if the server is not a desk."""
        return await self._get_if_found(f"/api/desk/jobs/{quote(job_id, safe='')}", protocol.desk.AboutJob)

    async def desk(self) -> DeskInfo:
        """Return the configuration of the desk. Raises `NotFound` if the server is not a desk."""
        return await self._calls.get("/api/desk", protocol.desk.DeskInfo)

    async def is_desk(self) -> bool:
        return await self._get_if_found("/api/desk", protocol.desk.DeskInfo) is not None

    async def add_link(self) -> Link:
        """Create a link that opens the page in a browser. The link works once."""
        if not await self.is_desk():
            raise NotFound(
                f"{self.url} is a server, and only a desk creates such links. Sign in at {self.url} instead."
            )
        return (await self._calls.post("/api/desk/links", protocol.desk.Link)).data

    async def script_workflow(self) -> str | None:
        """Return the workflow of the user's own script, if one is configured."""
        desk = await self._get_if_found("/api/desk", protocol.desk.DeskInfo)
        return desk.script_workflow if desk is not None else None

    async def script_command(self, values: Mapping[str, Any]) -> str:
        """Return the command line of a script job, quoted for a shell."""
        return (
            await self._calls.send(
                "/api/desk/script/preview", protocol.desk.ScriptCommand, protocol.desk.ScriptJob, **values
            )
        ).data.command

    async def add_batch(self, fields: Mapping[str, Any]) -> Batch:
        """Add a batch from folders and lists. `fields` is the body of `POST /api/desk/batches`."""
        return (await self.add_batch_with_message(fields)).data

    async def add_batch_with_message(self, fields: Mapping[str, Any]) -> ActionResult[Batch]:
        """Add a batch, and return the server's message as well."""
        body = {"idempotency_key": uuid4().hex, **fields}
        return await self._calls.send("/api/desk/batches", Batch, protocol.desk.NewDeskBatch, **body)

    async def _get_if_found(self, path: str, answer: type[T]) -> T | None:
        try:
            return await self._calls.get(path, answer)
        except NotFound:
            return None

    # Administration

    async def slots(self) -> list[WorkerSlot]:
        return (await self._calls.page("/api/slots", protocol.user.WorkerSlot, limit=MAX_PAGE)).items

    async def workers(self) -> list[WorkerSummary]:
        from comfyrelay.protocol.admin.workers import WorkerSummary  # noqa: PLC0415 - other calls do without it

        return (await self._calls.page("/api/admin/workers", WorkerSummary, limit=MAX_PAGE)).items


def _submit_fields(options: SubmitOptions) -> dict[str, Any]:
    # Older servers do not know all options, so disabled ones are omitted.
    given = {name: value for name, value in options.items() if value is not False}
    return {**given, "idempotency_key": options.get("idempotency_key") or uuid4().hex}


def _workflow(slug: str) -> str:
    return f"/api/workflows/{quote(slug, safe='')}"


def _path(kind: Kind, id_: str) -> str:
    return f"{PATHS[kind]}/{quote(id_, safe='')}"
