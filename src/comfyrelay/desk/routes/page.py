"""What the page asks for beside the user's API: the queue at a glance, and all that is known of one job."""

import asyncio
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import FileResponse

from comfyrelay.desk.batches.run_files import RunFile, files_of
from comfyrelay.desk.examples import sample_picture
from comfyrelay.desk.state import DeskState
from comfyrelay.domain.records.jobs import Unit
from comfyrelay.domain.states import JobStatus, WorkerState
from comfyrelay.errors import NotFound
from comfyrelay.server.base.answers import Answer, Body
from comfyrelay.server.base.auth import CurrentUser
from comfyrelay.server.base.context import Context, ContextOf
from comfyrelay.server.base.fields import LARGEST_ID
from comfyrelay.server.base.problems import may_answer
from comfyrelay.server.operation.files import CAREFUL
from comfyrelay.server.user.models import IdInPath
from comfyrelay.services.jobs.overview import AboutJob, Overview
from comfyrelay.storage.headers import content_disposition

__all__ = ["router"]

router = APIRouter(prefix="/api/desk", tags=["desk"])
# More than anybody looks through; what comes later is in the lists.
MOST_WAITING = 200


class WorkerNow(Body):
    state: WorkerState
    leases: int
    max_concurrency: int


class UnitBody(Body):
    """A batch, or a job that belongs to none."""

    id: str
    is_batch: bool


class FetchedBody(Body):
    """A job whose inputs the worker has fetched, to run it next."""

    id: str
    batch_id: str | None


class NowBody(Body):
    """`waiting` is in the order in which it will run; `worker` is null until it has registered. What is only fetched
    counts as waiting, although the job's own status is `processing`. `comfyui_away` says of each ComfyUI
    server that cannot be used why."""

    worker: WorkerNow | None
    comfyui_away: list[str]
    counts: dict[JobStatus, int]
    running: list[UnitBody]
    waiting: list[UnitBody]
    fetched: list[FetchedBody]


class InputValueBody(Body):
    """A value; of a file, its name and a URL that works for a while. `is_default`: nobody changed it for this job."""

    key: str
    type: str
    value: Any
    url: str | None
    is_default: bool


class RunFileBody(Body):
    """A file that the run made, where it is on this machine. `size` and `url` are null once it is gone from there.
    `is_output` is the one that is also the job's output."""

    name: str
    path: str
    mime_type: str
    size: int | None
    url: str | None
    is_output: bool


class AttemptBody(Body):
    """`started_at` is when its run began; while that is not over, when the worker took it. `about` is what is kept of
    the run: of a script `argv`, `exit_code`, `outputs`, `seed` and `log`."""

    number: int
    started_at: datetime | None
    ended_at: datetime | None
    outcome: str | None
    fault: str | None
    error: str | None
    seed: int | None
    about: dict[str, Any] | None


class AboutJobBody(Body):
    """`error_detail` is what the program itself said; `output_metadata`, what was told of the output; `files`, all that
    the run made."""

    workflow_slug: str
    workflow_name: str
    inputs: list[InputValueBody]
    error_detail: str | None
    attempts: list[AttemptBody]
    output_metadata: dict[str, Any] | None
    files: list[RunFileBody]


@router.get("/now", responses=may_answer(401, 503))
async def now(request: Request, context: ContextOf, user: CurrentUser) -> Answer[NowBody]:
    """Whether the worker is well, how many jobs are where, and what runs and comes next."""
    state: DeskState = request.app.state.desk
    glance = await _overview(context).glance(user.tenant_id, limit=MOST_WAITING)
    workers = (await context.engine.fleet.views.workers(limit=1)).items
    worker = (
        WorkerNow(
            state=WorkerState(workers[0].state),
            leases=max(0, workers[0].leases - len(glance.fetched)),
            max_concurrency=workers[0].max_concurrency,
        )
        if workers
        else None
    )
    return Answer(
        data=NowBody(
            worker=worker,
            comfyui_away=list(state.comfyui_away()),
            counts={JobStatus(status): count for status, count in glance.counts.items()},
            running=_units(glance.running),
            waiting=_units(glance.waiting),
            fetched=[FetchedBody(id=each.job_id, batch_id=each.batch_id) for each in glance.fetched],
        )
    )


@router.get(
    "/sample",
    response_class=Response,
    responses={200: {"description": "A picture", "content": {"image/png": {}}}, **may_answer(401)},
)
async def sample(_user: CurrentUser) -> Response:
    """A picture for a first job."""
    return Response(sample_picture(), media_type="image/png")


@router.get("/jobs/{job_id}", responses=may_answer(401, 404, 422, 503))
async def about_job(job_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[AboutJobBody]:
    """What a job was made of, what was said when it failed, and each attempt."""
    about = await _overview(context).about(user.tenant_id, job_id)
    files = await asyncio.to_thread(_files, about)
    return Answer(
        data=AboutJobBody(
            workflow_slug=about.workflow_slug,
            workflow_name=about.workflow_name,
            inputs=[
                InputValueBody(**{name: getattr(each, name) for name in InputValueBody.model_fields})
                for each in about.inputs
            ],
            error_detail=about.error_detail,
            attempts=[
                AttemptBody(**{name: getattr(each, name) for name in AttemptBody.model_fields})
                for each in about.attempts
            ],
            output_metadata=dict(about.output_metadata) if about.output_metadata is not None else None,
            files=[
                RunFileBody(
                    name=each.path.name,
                    path=str(each.path),
                    mime_type=each.mime_type,
                    size=each.size,
                    url=f"/api/desk/jobs/{job_id}/files/{number}" if each.size is not None else None,
                    is_output=each.is_output,
                )
                for number, each in enumerate(files, start=1)
            ],
        )
    )


@router.get(
    "/jobs/{job_id}/files/{number}",
    response_class=FileResponse,
    responses={
        200: {"description": "The file", "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}},
        206: {"description": "A part of it"},
        416: {"description": "There is no such part"},
        **may_answer(401, 404, 422, 503),
    },
)
async def run_file(
    job_id: IdInPath, number: Annotated[int, Path(ge=1, le=LARGEST_ID)], context: ContextOf, user: CurrentUser
) -> Response:
    """One of the files that the run of a job made, by its place among them."""
    files = await asyncio.to_thread(_files, await _overview(context).about(user.tenant_id, job_id))
    if number > len(files) or files[number - 1].size is None:
        raise NotFound("This job has no such file, or it was moved or deleted.")
    file = files[number - 1]
    headers = {**CAREFUL, "Content-Disposition": content_disposition(file.path.name)}
    return FileResponse(file.path, media_type=file.mime_type, headers=headers)


def _files(about: AboutJob) -> list[RunFile]:
    return files_of(about.attempts, about.output_metadata)


def _overview(context: Context) -> Overview:
    engine = context.engine
    return Overview(engine.databases, engine.objects, ttl_seconds=engine.settings.presigned_ttl_seconds)


def _units(units: Iterable[Unit]) -> list[UnitBody]:
    return [UnitBody(id=each.id, is_batch=each.is_batch) for each in units]
