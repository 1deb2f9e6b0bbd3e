"""Jobs of the Comfy API: submit a graph, list, read and cancel jobs."""

from typing import Annotated, Any, Literal

import structlog
from fastapi import Header, Query, Request
from fastapi.responses import JSONResponse

from comfyrelay.comfyui.editor.workflow import editor_file_in
from comfyrelay.domain.queue.states import TERMINAL_JOB, JobStatus
from comfyrelay.errors import Conflict, FederationLoop, InvalidInput, MissingAsset
from comfyrelay.protocol import comfy_api as wire
from comfyrelay.server.comfy_api.problems import comfy_responses, comfy_router, message_of, refuse
from comfyrelay.server.comfy_api.views import item_body, job_body
from comfyrelay.server.http.auth import CurrentUser, authenticate_user
from comfyrelay.server.http.bodies import large_body
from comfyrelay.server.http.context import Context, ContextOf
from comfyrelay.server.http.routing import IdInPath
from comfyrelay.services.jobs.graph_jobs import GraphRequest
from comfyrelay.services.jobs.views.jobs import JobView
from comfyrelay.text import is_storable

router = comfy_router("/api/v2/jobs")
MAX_KEY_LENGTH = 255
# Keys of this API are separate from the keys of ComfyRelay's own API.
KEY_PREFIX = "comfy-v2:"
MAX_ID_LENGTH = 64
# The workers of at most this many servers may forward a job.
MAX_SERVERS, MAX_VIA_LENGTH = 8, 1000
_FILTER = "metadata["
_LISTED = {
    "queued": JobStatus.QUEUED,
    "running": JobStatus.PROCESSING,
    "succeeded": JobStatus.COMPLETED,
    "failed": JobStatus.FAILED,
    "canceled": JobStatus.CANCELED,
}


@router.post("", status_code=201, response_model=wire.ComfyJob, responses=comfy_responses(402, 403, 409, 422, 429))
@large_body(authenticate_user, limit="max_graph_bytes")
async def submit(
    body: wire.NewComfyJob,
    context: ContextOf,
    user: CurrentUser,
    idempotency_key: Annotated[str | None, Header(max_length=MAX_KEY_LENGTH)] = None,
    comfyrelay_via: Annotated[
        str | None, Header(max_length=MAX_VIA_LENGTH, description="the servers that the job has passed through")
    ] = None,
) -> Any:
    """Submit a graph. Its files are references to your assets.

    An idempotency key is valid for one job: a second request with the same key is refused with 422, and
    `details.job_id` names that job.
    """
    via = _servers(comfyrelay_via or "", context)
    extra = body.extra_data or {}
    if not extra.keys() <= {"extra_pnginfo"}:
        advice = "ComfyRelay would store the key with the job. Set the keys of partner nodes on the workers instead."
        return refuse(422, "extra_data_not_supported", f"extra_data may have only extra_pnginfo here. {advice}")
    if (problem := _label_problem(body.metadata or {})) is not None:
        return refuse(422, "metadata_invalid", problem)
    wanted = GraphRequest(
        user=user,
        graph=body.workflow,
        drawn=editor_file_in(extra),
        idempotency_key=None if not idempotency_key else f"{KEY_PREFIX}{idempotency_key}",
        inputs=body.inputs or {},
        metadata=body.metadata or {},
        priority=body.priority,
        webhook_url=None if body.webhook_url is None else str(body.webhook_url),
        via=via,
    )
    try:
        submitted = await context.engine.jobs.graph_jobs.submit(wanted)
    except MissingAsset:
        raise
    except InvalidInput as error:
        if error.errors.keys() & {"idempotency_key", "webhook_url"}:
            raise
        # The invalid fields are values of the graph.
        return refuse(422, "invalid_workflow", message_of(error), errors=error.errors)
    structlog.contextvars.bind_contextvars(job_id=submitted.job.id)
    if not submitted.is_new:
        return _key_reused(submitted.job.id)
    view = JobView(job=submitted.job, seed=submitted.seed)
    return await job_body(context, user, view, labels=wanted.metadata)


@router.get("", response_model=wire.ComfyJobPage, response_model_exclude_none=True, responses=comfy_responses(400, 422))
async def jobs(
    request: Request,
    context: ContextOf,
    user: CurrentUser,
    *,
    limit: Annotated[int, Query(ge=1, le=200, description="maximum number of jobs")] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the previous page")] = None,
    status: Annotated[
        Literal["queued", "running", "succeeded", "failed", "canceled"] | None, Query(description="only these jobs")
    ] = None,
) -> wire.ComfyJobPage | JSONResponse:
    """List your jobs, newest first. `metadata[KEY]=VALUE` lists only jobs with this label and may be repeated."""
    if cursor is not None and (len(cursor) > MAX_ID_LENGTH or not cursor.replace("-", "").isalnum()):
        return refuse(400, "invalid_cursor", "This cursor is not from a list of jobs.")
    pairs = [(key, value) for key, value in request.query_params.multi_items() if key.startswith(_FILTER)]
    wanted = {key.removeprefix(_FILTER).removesuffix("]"): value for key, value in pairs}
    if any(not key.endswith("]") for key, _ in pairs) or len(wanted) < len(pairs) or _label_problem(wanted):
        problem = _label_problem(wanted) or "Each filter is metadata[KEY]=VALUE, with each key once."
        return refuse(400, "invalid_metadata_filter", problem)
    views = context.engine.jobs.views
    page = await views.jobs(
        user.tenant_id,
        status=None if status is None else _LISTED[status],
        metadata=wanted,
        after_id=cursor,
        limit=limit,
    )
    labels = await views.metadata(user.tenant_id, [view.job.id for view in page.items])
    return wire.ComfyJobPage(jobs=[item_body(view, labels) for view in page.items], next_cursor=page.next_cursor)


@router.get("/{job_id}", responses=comfy_responses(404, 422))
async def job(job_id: IdInPath, context: ContextOf, user: CurrentUser) -> wire.ComfyJob:
    """Get a job with its progress and its outputs."""
    return await job_body(context, user, await context.engine.jobs.views.job(user.tenant_id, job_id))


@router.get("/{job_id}/workflow", responses=comfy_responses(404, 422))
async def workflow(job_id: IdInPath, context: ContextOf, user: CurrentUser) -> wire.ComfyWorkflow:
    """Get the graph that a job runs. Its files are references to your assets, so that it can be submitted again."""
    return wire.ComfyWorkflow(workflow=await context.engine.jobs.graph_jobs.graph_of(user.tenant_id, job_id))


@router.post("/{job_id}/cancel", responses=comfy_responses(403, 404, 422))
async def cancel(job_id: IdInPath, context: ContextOf, user: CurrentUser) -> wire.ComfyJob:
    """Cancel a job. A job that has ended does not change."""
    try:
        await context.engine.queue.control.cancel(user.tenant_id, job_id)
    except Conflict:
        found = await context.engine.jobs.views.job_record(user.tenant_id, job_id)
        if found.status not in TERMINAL_JOB:
            raise
    return await job_body(context, user, await context.engine.jobs.views.job(user.tenant_id, job_id))


def _servers(via: str, context: Context) -> list[str]:
    """Return the servers in the header. Raises `FederationLoop` if the job has already passed through this server."""
    names = [name for part in via.split(",") if (name := part.strip())]
    if not set(names).isdisjoint(context.secrets.server_ids):
        raise FederationLoop
    if len(names) > MAX_SERVERS:
        raise FederationLoop(f"This job has passed through more than {MAX_SERVERS} servers.")
    return names


def _key_reused(job_id: str) -> JSONResponse:
    message = f"This Idempotency-Key was already used for the job {job_id}. Read that job, or send another key."
    return refuse(422, "idempotency_key_reuse", message, job_id=job_id)


def _label_problem(labels: dict[str, Any]) -> str | None:
    """Return why these labels are invalid, or `None`."""
    if len(labels) > wire.MAX_LABELS:
        return f"There are {len(labels)} labels, but a job can have at most {wire.MAX_LABELS}."
    for key, value in labels.items():
        if not 0 < len(key) <= wire.MAX_LABEL_KEY_LENGTH or not is_storable(key):
            return f"The key {key[:100]!r} is invalid: it must have 1 to {wire.MAX_LABEL_KEY_LENGTH} characters."
        if not isinstance(value, str) or len(value) > wire.MAX_LABEL_LENGTH or not is_storable(value):
            return f"The label {key!r} is invalid: it must be a text of at most {wire.MAX_LABEL_LENGTH} characters."
    return None
