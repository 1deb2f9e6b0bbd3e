"""Submit, list and cancel prompts: `/prompt`, `/queue`, `/history`, `/interrupt` and `/free`."""

from typing import Any
from uuid import UUID

import structlog
from starlette.responses import JSONResponse, Response

from comfyrelay.comfyui.graphs.validation import Problem, problem, shape_problem
from comfyrelay.errors import InvalidInput, MissingOnWorkers
from comfyrelay.server.comfyui_api.routing import Call, ComfyuiRoutes, empty, read_object, texts_in
from comfyrelay.server.comfyui_api.views import (
    cloud_history_entry,
    history_entry,
    queue_item,
    queue_number,
    queue_status,
)
from comfyrelay.services.comfyui_api.prompts import ENDED, RUNNING, WAITING
from comfyrelay.services.comfyui_api.submission import PromptRequest, RefusedPrompt
from comfyrelay.text import is_storable

routes = ComfyuiRoutes()
# Maximum entries in one response. Clients read a larger history in parts.
MAX_LISTED = 200
MAX_TEXT_LENGTH = 200
# Keys for partner nodes. comfy-cli also sends its key for this server here.
SECRETS = ("api_key_comfy_org", "auth_token_comfy_org")


@routes.add("POST", "/prompt", body_limit="max_graph_bytes")
async def submit(call: Call) -> Response:
    body = await read_object(call, submit)
    if "prompt" not in body:
        return _refuse(problem("no_prompt", "No prompt provided", "No prompt provided"))
    graph = body["prompt"]
    if (invalid := _id_problem(body.get("prompt_id")) or shape_problem(graph)) is not None:
        return _refuse(invalid)
    targets = body.get("partial_execution_targets")
    extra = body.get("extra_data") or {}
    if not isinstance(extra, dict):
        raise InvalidInput("extra_data must be an object.")
    wanted = PromptRequest(
        user=call.user,
        graph={node_id: {**node, "inputs": node.get("inputs") or {}} for node_id, node in graph.items()},
        prompt_id=body.get("prompt_id"),
        client_id=_text_in(body.get("client_id", extra.get("client_id")), "client_id"),
        workflow_id=_workflow_id(extra),
        extra_data={name: value for name, value in extra.items() if name not in SECRETS},
        targets=None if targets is None else texts_in(targets, "partial_execution_targets"),
        is_first=_is_first(body),
    )
    try:
        submitted = await call.context.engine.comfyui_api.submission.submit(wanted)
    except MissingOnWorkers as error:
        # No single worker has everything that the graph needs.
        return _refuse(problem("prompt_outputs_failed_validation", error.detail, missing=error.missing))
    if isinstance(submitted, RefusedPrompt):
        return _refuse(submitted.error, submitted.node_errors)
    structlog.contextvars.bind_contextvars(job_id=submitted.job.id)
    found = {
        "prompt_id": submitted.record.prompt_id,
        "number": queue_number(submitted.job),
        "node_errors": submitted.node_errors,
    }
    return JSONResponse(found)


@routes.add("GET", "/prompt")
async def remaining(call: Call) -> Response:
    summary = await call.context.engine.jobs.overview.summary(call.tenant_id, limit=1)
    return JSONResponse(queue_status(summary))


@routes.add("GET", "/queue")
async def queue(call: Call) -> Response:
    prompts = call.context.engine.comfyui_api.prompts
    found = {}
    for name, statuses in (("queue_running", RUNNING), ("queue_pending", WAITING)):
        page = await prompts.page(call.tenant_id, statuses, shows_hidden=True, oldest_first=True, limit=MAX_LISTED)
        found[name] = [queue_item(prompt) for prompt in page.prompts]
    return JSONResponse(found)


@routes.add("POST", "/queue")
async def change_queue(call: Call) -> Response:
    body = await read_object(call, change_queue)
    prompts = call.context.engine.comfyui_api.prompts
    if body.get("clear"):
        await prompts.cancel_waiting(call.tenant_id)
    if "delete" in body:
        await prompts.cancel(call.tenant_id, texts_in(body["delete"], "delete"), statuses=WAITING)
    return empty()


@routes.add("GET", "/history")
async def history(call: Call) -> Response:
    """Like ComfyUI, list the newest entries in ascending order; with an offset, count from the oldest entry."""
    limit = min(call.number("max_items", MAX_LISTED, least=-1) or 0, MAX_LISTED)
    offset = call.number("offset", -1, least=-1)
    assert offset is not None
    page = await call.context.engine.comfyui_api.prompts.page(
        call.tenant_id,
        ENDED,
        oldest_first=offset >= 0,
        offset=max(offset, 0),
        limit=limit if limit >= 0 else MAX_LISTED,
    )
    found = page.prompts if offset >= 0 else list(reversed(page.prompts))
    return JSONResponse({prompt.id: history_entry(prompt) for prompt in found})


@routes.add("GET", "/history/{prompt_id}")
async def prompt_history(call: Call) -> Response:
    return await _prompt_history(call, history_entry)


@routes.add("GET", "/history_v2/{prompt_id}")
async def cloud_prompt_history(call: Call) -> Response:
    return await _prompt_history(call, cloud_history_entry)


@routes.add("POST", "/history")
async def change_history(call: Call) -> Response:
    """Remove entries from the history. Their jobs and outputs are kept."""
    body = await read_object(call, change_history)
    prompts = call.context.engine.comfyui_api.prompts
    if body.get("clear"):
        await prompts.hide(call.tenant_id)
    if "delete" in body:
        await prompts.hide(call.tenant_id, texts_in(body["delete"], "delete"))
    return empty()


@routes.add("POST", "/interrupt")
async def interrupt(call: Call) -> Response:
    """Cancel a running prompt; without an id, the one that has run for the longest time."""
    body = await read_object(call, interrupt)
    prompts = call.context.engine.comfyui_api.prompts
    prompt_id = _text_in(body.get("prompt_id"), "prompt_id")
    if prompt_id:
        await prompts.cancel(call.tenant_id, [prompt_id], statuses=RUNNING)
    else:
        await prompts.interrupt_oldest(call.tenant_id)
    return empty()


@routes.add("POST", "/free")
async def free(_call: Call) -> Response:
    """Do nothing: workers free the memory of their GPUs themselves."""
    return empty()


async def _prompt_history(call: Call, entry: Any) -> Response:
    prompt = await call.context.engine.comfyui_api.prompts.find(call.tenant_id, call.path("prompt_id"))
    is_shown = prompt is not None and prompt.status in ENDED and prompt.record.hidden_at is None
    return JSONResponse({prompt.id: entry(prompt)} if prompt is not None and is_shown else {})


def _refuse(error: Problem, node_errors: Any = None) -> Response:
    return JSONResponse({"error": error, "node_errors": node_errors or {}}, status_code=400)


def _id_problem(prompt_id: object) -> Problem | None:
    """Return why an id is invalid: ComfyUI accepts only the usual form of a UUID."""
    if prompt_id is None:
        return None
    try:
        is_valid = isinstance(prompt_id, str) and str(UUID(prompt_id)) == prompt_id
    except ValueError:
        is_valid = False
    return None if is_valid else problem("invalid_prompt_id", "prompt_id must be a UUID in lower case with hyphens")


def _text_in(value: object, name: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > MAX_TEXT_LENGTH or not is_storable(value):
        raise InvalidInput(f"{name} must be a text of at most {MAX_TEXT_LENGTH} characters.")
    return value


def _workflow_id(extra: dict[str, Any]) -> str | None:
    """Return the id that the editor gave its workflow, if any."""
    info = extra.get("extra_pnginfo")
    workflow = info.get("workflow") if isinstance(info, dict) else None
    id_ = workflow.get("id") if isinstance(workflow, dict) else None
    return id_ if isinstance(id_, str) and len(id_) <= MAX_TEXT_LENGTH and is_storable(id_) else None


def _is_first(body: dict[str, Any]) -> bool:
    """Return whether the client wants the prompt to run before its others."""
    number = body.get("number")
    return number < 0 if isinstance(number, int | float) else bool(body.get("front"))
