"""The routes of the Comfy API v2, and the file store for its redirects."""

import json
from typing import Any

from aiohttp import ClientConnectionResetError, web
from aiohttp.typedefs import Handler, Middleware

from comfyrelay.comfyui.editor.workflow import is_editor_file
from comfyrelay.simulator.cloud.answers import Refused, refusal
from comfyrelay.simulator.cloud.assets import LARGEST_UPLOAD, Assets
from comfyrelay.simulator.cloud.jobs import CloudJob, CloudJobs
from comfyrelay.simulator.misbehaviour import EndAs, ErrorAfterQueueing, ErrorBeforeQueueing
from comfyrelay.simulator.ports import ListenPort
from comfyrelay.simulator.process import SimulatedProcess
from comfyrelay.simulator.routes.access import check_host
from comfyrelay.simulator.routes.control import ControlRoutes, misbehaviour_middleware
from comfyrelay.simulator.routes.prompts import check, enqueue, internal_error
from comfyrelay.simulator.running.executor import classes_of

_FIELDS = frozenset({"workflow", "extra_data"})
_PARTNER_KEY = "api_key_comfy_org"


class CloudApi:
    def __init__(self, process: SimulatedProcess, *, store: ListenPort) -> None:
        self._process = process
        self._assets = Assets(process, store)
        self._jobs = CloudJobs(process, self._assets)

    def app(self) -> web.Application:
        app = web.Application(
            # An upload over the limit gets a 422, so the web server's own limit must be higher.
            client_max_size=2 * LARGEST_UPLOAD,
            middlewares=[
                check_host(self._process.options.host),
                misbehaviour_middleware(self._process),
                check_api_key(self._process.options.api_key),
                refusal_middleware,
            ],
        )
        app.add_routes([*self._routes(), *self._assets.routes(), *ControlRoutes(self._process).routes()])
        return app

    def store_app(self) -> web.Application:
        """The file store: a separate origin that requires a signed URL and must not receive a credential."""
        app = web.Application(middlewares=[check_host(self._process.options.host)])
        app.add_routes(self._assets.store_app_routes())
        return app

    def _routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/v2/jobs", self.submit),
            web.get("/api/v2/jobs/{id}", self.get),
            web.get("/api/v2/jobs/{id}/workflow", self.workflow),
            web.get("/api/v2/jobs/{id}/events", self.events),
            web.post("/api/v2/jobs/{id}/cancel", self.cancel),
        ]

    async def submit(self, request: web.Request) -> web.Response:
        key = request.headers.get("Idempotency-Key")
        if key is not None:
            if key in self._jobs.keys:
                raise Refused(422, "idempotency_key_reuse", "This Idempotency-Key was used before.")
            self._jobs.keys.add(key)
        try:
            body = await _submission(request)
            graph = self._assets.fill(body["workflow"])
            outputs = self._checked(graph)
        except Refused:
            # After a refused submission, its key can be used again.
            self._jobs.keys.discard(key or "")
            raise
        if self._process.misbehaviours.take(ErrorBeforeQueueing, classes_of(graph)):
            return internal_error()
        job = self._enqueue(graph, outputs, body.get("extra_data") or {})
        if self._process.misbehaviours.take(ErrorAfterQueueing, classes_of(graph)):
            return internal_error()
        return web.json_response(self._jobs.body(job), status=201)

    def _checked(self, graph: dict[str, Any]) -> list[str]:
        """Return the output nodes of a valid graph."""
        verdict = check(self._process, graph, targets=None)
        if verdict.error is None and not verdict.node_errors:
            return verdict.outputs
        reasons = {
            node_id: [
                {"field": error["extra_info"].get("input_name"), "reason": error["type"]} for error in found["errors"]
            ]
            for node_id, found in verdict.node_errors.items()
        }
        texts = [
            f"Node {node_id} ({found['class_type']}): {error['message']} ({error['details']})"
            for node_id, found in verdict.node_errors.items()
            for error in found["errors"]
        ]
        message = "; ".join(texts) or str((verdict.error or {}).get("message"))
        raise Refused(422, "invalid_workflow", message, node_errors=reasons)

    def _enqueue(self, graph: dict[str, Any], outputs: list[str], extra_data: dict[str, Any]) -> CloudJob:
        job = CloudJob(graph=graph)
        self._jobs.add(job)
        if end := self._process.misbehaviours.take(EndAs, classes_of(graph)):
            job.fixed_state, job.error_message = end.what.state, end.what.message
            self._process.log.prompts_queued += 1
            return job
        self._process.queue.counter += 1
        enqueue(
            self._process,
            number=self._process.queue.counter,
            prompt_id=job.id,
            graph=graph,
            # Each job has a client id, so that cached outputs are reported.
            extra_data={**extra_data, "client_id": job.id},
            outputs=outputs,
        )
        return job

    async def get(self, request: web.Request) -> web.Response:
        return web.json_response(self._jobs.body(self._job(request)))

    async def workflow(self, request: web.Request) -> web.Response:
        return web.json_response({"workflow": self._job(request).graph, "format": "api"})

    async def cancel(self, request: web.Request) -> web.Response:
        job = self._job(request)
        self._jobs.cancel(job)
        return web.json_response(self._jobs.body(job))

    async def events(self, request: web.Request) -> web.StreamResponse:
        job = self._job(request)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            async for event in self._jobs.events(job):
                text = ": still here\n\n" if event is None else f"event: {event[0]}\ndata: {json.dumps(event[1])}\n\n"
                await response.write(text.encode())
        except (ClientConnectionResetError, ConnectionError):
            # The client has disconnected.
            return response
        return response

    def _job(self, request: web.Request) -> CloudJob:
        job = self._jobs.by_id.get(request.match_info["id"])
        if job is None:
            raise Refused(404, "not_found", "There is no such job.")
        return job


async def _submission(request: web.Request) -> dict[str, Any]:
    """Return the body of a submission, if it contains only fields of the contract."""
    try:
        body = await request.json()
    except ValueError:
        raise Refused(422, "invalid_request", "The body is not JSON.") from None
    if not isinstance(body, dict) or not isinstance(body.get("workflow"), dict):
        raise Refused(422, "invalid_request", "The workflow is missing.")
    if "metadata" in body:
        raise Refused(422, "metadata_not_supported", "metadata is not supported here.")
    if unknown := body.keys() - _FIELDS:
        raise Refused(422, "invalid_request", f"These fields are not supported: {', '.join(sorted(unknown))}.")
    extra_data = body.get("extra_data", {})
    if not isinstance(extra_data, dict) or extra_data.keys() - {_PARTNER_KEY}:
        raise Refused(422, "invalid_request", f"extra_data accepts only {_PARTNER_KEY}.")
    if is_editor_file(body["workflow"]):
        raise Refused(422, "workflow_format_ui", "This is a file of the editor: export it in the API format.")
    return body


def check_api_key(api_key: str) -> Middleware:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/api/") and request.headers.get("Authorization") != f"Bearer {api_key}":
            return refusal(401, "unauthorized", "The API key is missing or wrong.")
        return await handler(request)

    return middleware


@web.middleware
async def refusal_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as error:
        return error.response
