"""Prompts: `/prompt`, `/queue`, `/history`, `/interrupt` and `/free`, as in ComfyUI."""

import time
import uuid
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from comfyrelay.simulator.misbehaviour import ErrorAfterQueueing, ErrorBeforeQueueing, MissingModel
from comfyrelay.simulator.nodes.definitions import ChoiceSource
from comfyrelay.simulator.process import SimulatedProcess
from comfyrelay.simulator.running.executor import classes_of
from comfyrelay.simulator.running.validation import ValidationResult, problem, validate

_INVALID_ID = problem(
    "invalid_prompt_id",
    "prompt_id must be a valid UUID",
    "prompt_id must be a UUID string in canonical lowercase hyphenated form; omit it to let the server generate one",
)
_SECRETS = ("auth_token_comfy_org", "api_key_comfy_org")


class PromptRoutes:
    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/prompt", self.post_prompt),
            web.get("/prompt", self.get_prompt),
            web.get("/queue", self.get_queue),
            web.post("/queue", self.post_queue),
            web.get("/history", self.get_history),
            web.get("/history/{prompt_id}", self.get_history_entry),
            web.post("/history", self.post_history),
            web.post("/interrupt", self.post_interrupt),
            web.post("/free", self.post_free),
        ]

    async def post_prompt(self, request: web.Request) -> web.Response:
        body = await request.json()
        number = self._number(body)
        if "prompt" not in body:
            error = problem("no_prompt", "No prompt provided", "No prompt provided")
            return web.json_response({"error": error, "node_errors": {}}, status=400)
        graph = body["prompt"]
        # Older versions accept any id.
        prompt_id = str(body.get("prompt_id") or uuid.uuid4())
        if self._process.options.is_current and not is_canonical_uuid(prompt_id):
            return web.json_response({"error": _INVALID_ID, "node_errors": {}}, status=400)
        verdict = check(self._process, graph, targets=body.get("partial_execution_targets"))
        if verdict.error is not None:
            self._log_refusal(verdict.error, verdict.node_errors)
            return web.json_response({"error": verdict.error, "node_errors": verdict.node_errors}, status=400)
        if self._process.misbehaviours.take(ErrorBeforeQueueing, classes_of(graph)):
            return internal_error()
        extra_data = body.get("extra_data", {})
        if "client_id" in body:
            extra_data["client_id"] = body["client_id"]
        enqueue(
            self._process,
            number=number,
            prompt_id=prompt_id,
            graph=graph,
            extra_data=extra_data,
            outputs=verdict.outputs,
        )
        if self._process.misbehaviours.take(ErrorAfterQueueing, classes_of(graph)):
            return internal_error()
        return web.json_response({"prompt_id": prompt_id, "number": number, "node_errors": verdict.node_errors})

    def _number(self, body: dict[str, Any]) -> float:
        if "number" in body:
            return float(body["number"])
        number = self._process.queue.counter
        self._process.queue.counter += 1
        # Without `get`: as in ComfyUI, the body may be a list, which has no `get`.
        return -number if "front" in body and body["front"] else number  # noqa: RUF019

    def _log_refusal(self, error: Mapping[str, Any], node_errors: Mapping[str, Any]) -> None:
        for node_id, entry in node_errors.items():
            self._process.print(f"* {entry['class_type']} {node_id}:")
            for reason in entry["errors"]:
                self._process.print(f"  - {reason['message']}: {reason['details']}")
        self._process.print(f"invalid prompt: {error}")

    async def get_prompt(self, _request: web.Request) -> web.Response:
        return web.json_response(self._process.status)

    async def get_queue(self, _request: web.Request) -> web.Response:
        return web.json_response(self._process.queue.snapshot())

    async def post_queue(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body.get("clear"):
            self._process.queue.clear()
        for prompt_id in body.get("delete", ()):
            self._process.queue.delete(prompt_id)
        return web.Response()

    async def get_history(self, request: web.Request) -> web.Response:
        max_items = int(request.query["max_items"]) if "max_items" in request.query else None
        offset = int(request.query.get("offset", -1))
        return web.json_response(self._process.queue.history_page(max_items=max_items, offset=offset))

    async def get_history_entry(self, request: web.Request) -> web.Response:
        prompt_id = request.match_info["prompt_id"]
        entry = self._process.queue.history.get(prompt_id)
        return web.json_response({} if entry is None else {prompt_id: entry})

    async def post_history(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body.get("clear"):
            self._process.queue.history.clear()
        for prompt_id in body.get("delete", ()):
            self._process.queue.history.pop(prompt_id, None)
        return web.Response()

    async def post_interrupt(self, request: web.Request) -> web.Response:
        try:
            body = await request.json()
        except ValueError:
            body = {}
        self._process.interrupt(body.get("prompt_id") or None)
        return web.Response()

    async def post_free(self, request: web.Request) -> web.Response:
        body = await request.json()
        self._process.free(cache=bool(body.get("free_memory")), models=bool(body.get("unload_models")))
        return web.Response()


def is_canonical_uuid(value: object) -> bool:
    try:
        return isinstance(value, str) and str(uuid.UUID(value)) == value
    except ValueError:
        return False


def check(process: SimulatedProcess, graph: Any, *, targets: list[str] | None) -> ValidationResult:
    """Validate a graph. A `MissingModel` misbehaviour hides its model from the choices."""
    listings = process.listings
    nodes = [node for node in graph.values() if isinstance(node, dict)] if isinstance(graph, dict) else []
    classes = [node["class_type"] for node in nodes if "class_type" in node]
    values = [value for node in nodes for value in dict(node.get("inputs") or {}).values()]
    missing = process.misbehaviours.take(MissingModel, classes, matching=lambda what: what.model in values)
    if missing is not None:
        models = [name for name in listings[ChoiceSource.CHECKPOINTS] if name != missing.what.model]
        listings = {**listings, ChoiceSource.CHECKPOINTS: models}
    return validate(graph, targets=targets, folders=process.folders, listings=listings, options=process.options)


def enqueue(
    process: SimulatedProcess,
    *,
    number: float,
    prompt_id: str,
    graph: Any,
    extra_data: dict[str, Any],
    outputs: list[str],
) -> None:
    secrets = {name: extra_data.pop(name) for name in _SECRETS if name in extra_data}
    extra_data["create_time"] = int(time.time() * 1000)
    process.log.prompts_queued += 1
    process.queue.put((number, prompt_id, graph, extra_data, outputs, secrets))


def internal_error() -> web.Response:
    return web.Response(status=500, text="500 Internal Server Error\n\nServer got itself in trouble")
