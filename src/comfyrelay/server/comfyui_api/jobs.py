"""The list of jobs that ComfyUI's editor and comfy-cli show: `/api/jobs`."""

from starlette.responses import JSONResponse, Response

from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.errors import InvalidInput
from comfyrelay.server.comfyui_api.routing import Call, ComfyuiRoutes, read_object, refuse
from comfyrelay.server.comfyui_api.views import job_body, job_detail
from comfyrelay.services.comfyui_api.prompts import ENDED, RUNNING, WAITING
from comfyrelay.text import is_storable

routes = ComfyuiRoutes()
STATUSES = {
    "pending": WAITING,
    "in_progress": RUNNING,
    "completed": (JobStatus.COMPLETED,),
    "failed": (JobStatus.FAILED,),
    "cancelled": (JobStatus.CANCELED,),
}
# Values of `sort_by`: the names of ComfyUI's code, and those of its contract.
BY_TIME, BY_DURATION = ("created_at", "create_time"), ("execution_duration", "execution_time")
DEFAULT_LIMIT = 100
MAX_LIMIT = 200


@routes.add("GET", "/api/jobs", has_twin=False)
async def jobs(call: Call) -> Response:
    names = [name.strip().lower() for name in call.query("status").split(",") if name.strip()]
    sort, order = call.query("sort_by", BY_TIME[0]), call.query("sort_order", "desc")
    if unknown := [name for name in names if name not in STATUSES]:
        return _invalid(f"Invalid status value(s): {', '.join(unknown)[:100]}. Valid values: {', '.join(STATUSES)}")
    if sort not in BY_TIME + BY_DURATION or order not in ("asc", "desc"):
        return _invalid(f"sort_by must be one of {', '.join(BY_TIME + BY_DURATION)}, and sort_order asc or desc")
    workflow_id = call.request.query_params.get("workflow_id")
    if workflow_id is not None and not is_storable(workflow_id):
        return _invalid("workflow_id is invalid")
    try:
        limit, offset = call.number("limit", DEFAULT_LIMIT, least=1), call.number("offset", 0)
    except InvalidInput as error:
        return _invalid(error.detail)
    assert limit is not None
    assert offset is not None
    limit = min(limit, MAX_LIMIT)
    page = await call.context.engine.comfyui_api.prompts.page(
        call.tenant_id,
        [status for name in names or STATUSES for status in STATUSES[name]],
        workflow_id=workflow_id,
        oldest_first=order == "asc",
        by_duration=sort in BY_DURATION,
        offset=offset,
        limit=limit,
    )
    end = offset + len(page.prompts)
    pagination = {"offset": offset, "limit": limit, "total": page.total, "has_more": end < page.total}
    return JSONResponse({"jobs": [job_body(prompt) for prompt in page.prompts], "pagination": pagination})


@routes.add("POST", "/api/jobs/cancel", has_twin=False)
async def cancel_all(call: Call) -> Response:
    ids = (await read_object(call, cancel_all)).get("job_ids")
    if not isinstance(ids, list) or not ids or len(ids) > MAX_LIMIT or not all(isinstance(id_, str) for id_ in ids):
        return _invalid(f"job_ids must be a list of 1 to {MAX_LIMIT} ids")
    return JSONResponse({"cancelled": bool(await call.context.engine.comfyui_api.prompts.cancel(call.tenant_id, ids))})


@routes.add("GET", "/api/jobs/{job_id}", has_twin=False)
async def job(call: Call) -> Response:
    found = await call.context.engine.comfyui_api.prompts.find(call.tenant_id, call.path("job_id"))
    if found is None or (found.record.hidden_at is not None and found.status in ENDED):
        return refuse(404, "not_found", "Job not found")
    return JSONResponse(job_detail(found))


@routes.add("POST", "/api/jobs/{job_id}/cancel", has_twin=False)
async def cancel(call: Call) -> Response:
    count = await call.context.engine.comfyui_api.prompts.cancel(call.tenant_id, [call.path("job_id")])
    return JSONResponse({"cancelled": bool(count)})


def _invalid(text: str) -> Response:
    return refuse(400, "invalid_input", text)
