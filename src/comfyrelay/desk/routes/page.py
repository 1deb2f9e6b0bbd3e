"""Data for the page in addition to the user API, such as a summary of the queue and the details of a job."""

import asyncio
import json
from typing import Annotated

from fastapi import Path, Request, Response
from fastapi.responses import FileResponse

from comfyrelay.desk.batches.run_files import LocalRunFile, files_of
from comfyrelay.desk.comfyui_links import comfyui_link, is_on_this_machine
from comfyrelay.desk.examples import sample_image
from comfyrelay.desk.state import DeskState, DeskStateOf
from comfyrelay.domain.queue.states import WorkerState
from comfyrelay.errors import NotFound
from comfyrelay.protocol import desk as wire
from comfyrelay.protocol.base import Answer
from comfyrelay.protocol.fields import MAX_ID
from comfyrelay.protocol.user import EmbeddedWorkflow
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.guests import is_guest
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import IdInPath, Router
from comfyrelay.server.operations.files import FILE_HEADERS
from comfyrelay.services.jobs.views.overview import JobDetails
from comfyrelay.storage.headers import content_disposition

router = Router(prefix="/api/desk", tags=["desk"])
# The lists of the user API contain the rest.
MAX_WAITING = 200
MAX_WORKERS = 100
ONLINE = (WorkerState.IDLE, WorkerState.BUSY)


@router.get("/now", responses=error_responses(401, 503))
async def now(state: DeskStateOf, context: ContextOf, user: CurrentUser) -> Answer[wire.DeskStatus]:
    """Return whether the worker runs, the number of jobs, and the current and next jobs."""
    summary = await context.engine.jobs.overview.summary(user.tenant_id, limit=MAX_WAITING)
    workers = [item.worker for item in (await context.engine.workers.views.workers(limit=MAX_WORKERS)).items]
    # Of the workers for ComfyUI and the simulator, show the busier one.
    busiest = max(workers, key=lambda worker: (worker.leases, worker.state in ONLINE), default=None)
    leases = max(0, sum(worker.leases for worker in workers) - len(summary.fetched))
    return Answer(
        data=wire.DeskStatus.of(
            summary,
            worker=wire.DeskWorkerStatus.of(busiest, leases=leases) if busiest else None,
            comfyui_unreachable=state.comfyui_unreachable(),
            fetched=[wire.PrefetchedJob.of(lease, id=lease.job_id) for lease in summary.fetched],
        )
    )


@router.get("/unreachable-comfyui", responses=error_responses(401))
async def unreachable_comfyui(state: DeskStateOf, _user: CurrentUser) -> Answer[wire.UnreachableComfyui]:
    """Return the reasons why ComfyUI servers are unreachable. The page polls this, so it does not query the
    database."""
    return Answer(data=wire.UnreachableComfyui.of(comfyui_unreachable=list(state.comfyui_unreachable())))


@router.get(
    "/sample",
    response_class=Response,
    responses={200: {"description": "An image", "content": {"image/png": {}}}, **error_responses(401)},
)
async def sample(_user: CurrentUser) -> Response:
    """Return a sample image for a first job."""
    return Response(sample_image(), media_type="image/png")


@router.get("/files/{file_id}/workflow", responses=error_responses(401, 404, 422, 503))
async def workflow_in(file_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[EmbeddedWorkflow]:
    """Return the workflow that ComfyUI embedded in an uploaded file: the graph that ran, or else the editor's
    workflow."""
    file = await context.engine.jobs.uploads.find_file(user, file_id)
    return Answer(data=await context.engine.catalogue.embedded_workflows.read(file.path))


@router.get("/jobs/{job_id}", responses=error_responses(401, 404, 422, 503))
async def about_job(
    job_id: IdInPath, request: Request, state: DeskStateOf, context: ContextOf, user: CurrentUser
) -> Answer[wire.AboutJob]:
    """Return the values of a job, its errors and its attempts."""
    about = await context.engine.jobs.overview.job_details(user.tenant_id, job_id)
    files = [
        wire.RunFile.of(
            file,
            name=file.path.name,
            url=f"/api/desk/jobs/{job_id}/files/{number}" if file.place is not None else None,
        )
        for number, file in enumerate(await asyncio.to_thread(_files, about, state), start=1)
    ]
    copies = await asyncio.to_thread(state.outputs.deletable, about.attempts)
    by_number = await asyncio.to_thread(state.outputs.by_number, about.attempts)
    # ComfyUI needs no sign-in, so its address is for the owner only.
    link = (
        None
        if is_guest(request)
        else comfyui_link(
            about.attempts,
            urls=state.comfyui,
            public_urls=state.live.desk.comfyui_public_url,
            unreachable=state.comfyui_unreachable(),
            is_managed=state.live.desk.managed is not None,
            is_local=is_on_this_machine(request),
        )
    )
    return Answer(data=wire.AboutJob.of(about, files=files, deleted_with_it=copies, copies=by_number, comfyui_url=link))


@router.get(
    "/jobs/{job_id}/files/{number}",
    response_class=FileResponse,
    responses={
        200: {"description": "The file", "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}},
        206: {"description": "A part of it"},
        416: {"description": "The range is outside the file"},
        **error_responses(401, 404, 422, 503),
    },
)
async def run_file(
    job_id: IdInPath,
    number: Annotated[int, Path(ge=1, le=MAX_ID)],
    state: DeskStateOf,
    context: ContextOf,
    user: CurrentUser,
) -> Response:
    """Return a file of a job's run, by number."""
    about = await context.engine.jobs.overview.job_details(user.tenant_id, job_id)
    files = await asyncio.to_thread(_files, about, state)
    file = files[number - 1] if number <= len(files) else None
    if file is None or file.place is None:
        raise NotFound("This job has no such file, or it was moved or deleted.")
    headers = {**FILE_HEADERS, "Content-Disposition": content_disposition(file.path.name)}
    return FileResponse(file.place, media_type=file.mime_type, headers=headers)


@router.get(
    "/jobs/{job_id}/workflow",
    response_class=Response,
    responses={
        200: {"description": "The workflow", "content": {"application/json": {}}},
        **error_responses(401, 404, 422, 503),
    },
)
async def workflow_of(job_id: IdInPath, context: ContextOf, user: CurrentUser) -> Response:
    """Return the workflow with the values of a job, as a file that ComfyUI opens. A workflow that was added as an
    editor file keeps its layout."""
    jobs = context.engine.jobs
    name = (await jobs.views.job_record(user.tenant_id, job_id)).label or job_id
    workflow = await jobs.job_workflows.filled(user.tenant_id, job_id)
    headers = {**FILE_HEADERS, "Content-Disposition": content_disposition(f"{name}.json")}
    return Response(await asyncio.to_thread(json.dumps, workflow), media_type="application/json", headers=headers)


def _files(about: JobDetails, state: DeskState) -> list[LocalRunFile]:
    return files_of(about.attempts, about.outputs_metadata, folders=state.own_folders, root_of=state.outputs.root_of)
