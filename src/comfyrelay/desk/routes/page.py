"""Data for the page in addition to the user API: queue summary and job details."""

import asyncio
from typing import Annotated

from fastapi import Path, Request, Response
from fastapi.responses import FileResponse

from comfyrelay.desk.batches.output_copies import copies_of
from comfyrelay.desk.batches.run_files import LocalRunFile, files_of
from comfyrelay.desk.examples import sample_picture
from comfyrelay.desk.state import DeskState
from comfyrelay.domain.queue.states import WorkerState
from comfyrelay.errors import NotFound
from comfyrelay.protocol import desk as wire
from comfyrelay.protocol.base import Answer
from comfyrelay.protocol.fields import MAX_ID
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import IdInPath, Router
from comfyrelay.server.operations.files import FILE_HEADERS
from comfyrelay.services.jobs.views.overview import JobDetails
from comfyrelay.storage.headers import content_disposition

router = Router(prefix="/api/desk", tags=["desk"])
# Most entries of each kind; the lists have the rest.
MAX_WAITING = 200
MAX_WORKERS = 100
AT_WORK = (WorkerState.IDLE, WorkerState.BUSY)


@router.get("/now", responses=error_responses(401, 503))
async def now(request: Request, context: ContextOf, user: CurrentUser) -> Answer[wire.DeskStatus]:
    """Whether the worker runs, counts of jobs, and what runs now and next."""
    state: DeskState = request.app.state.desk
    glance = await context.engine.jobs.overview.summary(user.tenant_id, limit=MAX_WAITING)
    workers = [item.worker for item in (await context.engine.workers.views.workers(limit=MAX_WORKERS)).items]
    # the worker with a job, of those for ComfyUI and the simulator
    worker = max(workers, key=lambda each: (each.leases, each.state in AT_WORK), default=None)
    busy = max(0, sum(each.leases for each in workers) - len(glance.fetched))
    return Answer(
        data=wire.DeskStatus.of(
            glance,
            worker=wire.DeskWorkerStatus.of(worker, leases=busy) if worker else None,
            comfyui_unreachable=state.comfyui_unreachable(),
            fetched=[wire.PrefetchedJob.of(each, id=each.job_id) for each in glance.fetched],
        )
    )


@router.get("/away", responses=error_responses(401))
async def away(request: Request, _user: CurrentUser) -> Answer[wire.UnreachableComfyui]:
    """Unusable ComfyUI servers and why. The page polls it, so it counts nothing."""
    state: DeskState = request.app.state.desk
    return Answer(data=wire.UnreachableComfyui.of(comfyui_unreachable=list(state.comfyui_unreachable())))


@router.get(
    "/sample",
    response_class=Response,
    responses={200: {"description": "A picture", "content": {"image/png": {}}}, **error_responses(401)},
)
async def sample(_user: CurrentUser) -> Response:
    """An image for a first job."""
    return Response(sample_picture(), media_type="image/png")


@router.get("/jobs/{job_id}", responses=error_responses(401, 404, 422, 503))
async def about_job(job_id: IdInPath, request: Request, context: ContextOf, user: CurrentUser) -> Answer[wire.AboutJob]:
    """The values of a job, its errors and its attempts."""
    about = await context.engine.jobs.overview.job_details(user.tenant_id, job_id)
    files = await asyncio.to_thread(_files, about, request)
    shown = [
        wire.RunFile.of(
            each,
            name=each.path.name,
            url=f"/api/desk/jobs/{job_id}/files/{number}" if each.place is not None else None,
        )
        for number, each in enumerate(files, start=1)
    ]
    state: DeskState = request.app.state.desk
    going = await asyncio.to_thread(copies_of, state.output_folder, about.attempts)
    return Answer(data=wire.AboutJob.of(about, files=shown, deleted_with_it=going))


@router.get(
    "/jobs/{job_id}/files/{number}",
    response_class=FileResponse,
    responses={
        200: {"description": "The file", "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}},
        206: {"description": "A part of it"},
        416: {"description": "There is no such part"},
        **error_responses(401, 404, 422, 503),
    },
)
async def run_file(
    job_id: IdInPath,
    number: Annotated[int, Path(ge=1, le=MAX_ID)],
    request: Request,
    context: ContextOf,
    user: CurrentUser,
) -> Response:
    """A file of a job's run, by number."""
    files = await asyncio.to_thread(
        _files, await context.engine.jobs.overview.job_details(user.tenant_id, job_id), request
    )
    file = files[number - 1] if number <= len(files) else None
    if file is None or file.place is None:
        raise NotFound("This job has no such file, or it was moved or deleted.")
    headers = {**FILE_HEADERS, "Content-Disposition": content_disposition(file.path.name)}
    return FileResponse(file.place, media_type=file.mime_type, headers=headers)


def _files(about: JobDetails, request: Request) -> list[LocalRunFile]:
    state: DeskState = request.app.state.desk
    return files_of(about.attempts, about.output_metadata, folders=state.own_folders)
