"""Comfy Cloud's API, version 1, and the file store it redirects clients to."""

import asyncio
import secrets
import uuid
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from comfyrelay.simulator.cloud.jobs import CloudJob, CloudJobs, save_upload
from comfyrelay.simulator.misbehaviour import EndAs, ErrorAfterQueueing, ErrorBeforeQueueing, LostFile
from comfyrelay.simulator.ports import ListenPort
from comfyrelay.simulator.process import SimulatedProcess
from comfyrelay.simulator.request_log import Received
from comfyrelay.simulator.routes.access import check_host
from comfyrelay.simulator.routes.control import ControlRoutes, misbehaviour_middleware
from comfyrelay.simulator.routes.info import object_info, system_stats
from comfyrelay.simulator.routes.prompts import check, enqueue, internal_error
from comfyrelay.simulator.running.executor import classes_of

_LARGEST_UPLOAD = 50 * 1024**2


class CloudApi:
    def __init__(self, process: SimulatedProcess, *, store: ListenPort) -> None:
        self._process = process
        self._store = store
        self._jobs = CloudJobs(process)
        # The files of signed URLs, by token.
        self._signed: dict[str, Path] = {}

    def app(self) -> web.Application:
        app = web.Application(
            # An upload over the limit gets a 400, so the server's own limit must be higher.
            client_max_size=2 * _LARGEST_UPLOAD,
            middlewares=[
                check_host(self._process.options.host),
                misbehaviour_middleware(self._process),
                check_api_key(self._process.options.api_key),
            ],
        )
        app.add_routes([*self._routes(), *ControlRoutes(self._process).routes()])
        return app

    def store_app(self) -> web.Application:
        """The file store: a separate origin that requires a signed URL and must not receive a credential."""
        app = web.Application(middlewares=[check_host(self._process.options.host)])
        app.add_routes([web.get("/files/{token}/{name}", self.stored_file)])
        return app

    def _routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/prompt", self.post_prompt),
            web.get("/api/job/{job_id}/status", self.job_status),
            web.get("/api/jobs/{job_id}", self.get_job),
            web.post("/api/jobs/{job_id}/cancel", self.cancel_job),
            web.get("/api/history_v2/{job_id}", self.history),
            web.get("/api/queue", self.get_queue),
            web.post("/api/queue", self.post_queue),
            web.post("/api/interrupt", self.interrupt),
            web.post("/api/upload/image", self.upload_image),
            web.get("/api/view", self.view),
            web.get("/api/object_info", self.object_info),
            web.get("/api/system_stats", self.system_stats),
        ]

    async def post_prompt(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not isinstance(body.get("prompt"), dict):
            error = {"type": "no_prompt", "message": "No prompt provided"}
            return web.json_response({"error": error}, status=400)
        graph = body["prompt"]
        verdict = check(self._process, graph, targets=body.get("partial_execution_targets"))
        if verdict.error is not None:
            return web.json_response({"error": verdict.error, "node_errors": verdict.node_errors}, status=400)
        if self._process.misbehaviours.take(ErrorBeforeQueueing, classes_of(graph)):
            return internal_error()
        job = self._new_job(body, verdict.outputs)
        if self._process.misbehaviours.take(ErrorAfterQueueing, classes_of(graph)):
            return internal_error()
        return web.json_response({"prompt_id": job.id, "number": 0, "node_errors": verdict.node_errors})

    def _new_job(self, body: dict[str, Any], outputs: list[str]) -> CloudJob:
        prompt_id = str(body.get("prompt_id") or uuid.uuid4())
        # In the cloud every run has an owner, so cached outputs are always reported.
        extra_data = {**(body.get("extra_data") or {}), "client_id": body.get("client_id") or uuid.uuid4().hex}
        job = CloudJob(id=prompt_id, graph=body["prompt"], outputs_to_execute=outputs, extra_data=extra_data)
        self._jobs.by_id[prompt_id] = job
        if end := self._process.misbehaviours.take(EndAs, classes_of(job.graph)):
            job.fixed_state, job.error_message = end.what.state, end.what.message
            self._process.log.prompts_queued += 1
        else:
            self._process.queue.counter += 1
            enqueue(
                self._process,
                number=self._process.queue.counter,
                prompt_id=prompt_id,
                graph=job.graph,
                extra_data=extra_data,
                outputs=outputs,
            )
        return job

    async def job_status(self, request: web.Request) -> web.Response:
        return web.json_response(self._jobs.status(self._job(request)))

    async def get_job(self, request: web.Request) -> web.Response:
        job = self._job(request)
        return web.json_response(await asyncio.to_thread(self._jobs.full, job))

    async def cancel_job(self, request: web.Request) -> web.Response:
        return web.json_response({"cancelled": self._jobs.cancel(self._job(request))})

    async def history(self, request: web.Request) -> web.Response:
        job_id = request.match_info["job_id"]
        job = self._jobs.by_id.get(job_id)
        entry = None if job is None else await asyncio.to_thread(self._jobs.history_entry, job)
        if entry is None:
            return web.json_response({})
        number, prompt_id, graph, extra_data, outputs = entry["prompt"]
        prompt = {
            "priority": number,
            "prompt_id": prompt_id,
            "prompt": graph,
            "extra_data": extra_data,
            "outputs_to_execute": outputs,
        }
        return web.json_response({job_id: {**entry, "prompt": prompt}})

    async def get_queue(self, _request: web.Request) -> web.Response:
        queue = self._process.queue.snapshot()
        return web.json_response({group: [_cloud_item(item) for item in items] for group, items in queue.items()})

    async def post_queue(self, request: web.Request) -> web.Response:
        body = await request.json()
        pending = [item[1] for item in self._process.queue.snapshot()["queue_pending"]]
        wanted = pending if body.get("clear") else [job_id for job_id in body.get("delete", ()) if job_id in pending]
        for job in filter(None, map(self._jobs.by_id.get, wanted)):
            self._jobs.cancel(job)
        return web.json_response({"deleted": wanted, "cleared": bool(body.get("clear"))})

    async def interrupt(self, _request: web.Request) -> web.Response:
        self._process.interrupt()
        return web.Response()

    async def upload_image(self, request: web.Request) -> web.Response:
        image = (await request.post()).get("image")
        if not isinstance(image, web.FileField):
            return _error(400, "BAD_REQUEST", "The image is missing.")
        size = image.file.seek(0, 2)
        image.file.seek(0)
        if size > _LARGEST_UPLOAD:
            return _error(400, "FILE_TOO_LARGE", "The file is larger than 50 MB.")
        name, is_new = await asyncio.to_thread(save_upload, self._process.folders.input, image.filename, image.file)
        self._process.log.uploads_written += is_new
        return web.json_response({"name": name, "subfolder": "", "type": "input"})

    async def view(self, request: web.Request) -> web.StreamResponse:
        path = self._jobs.file(request.query.get("filename", ""))
        lost = self._process.misbehaviours.take(
            LostFile, matching=lambda what: what.filename in (None, path and path.name)
        )
        if path is None or lost is not None:
            return _error(404, "NOT_FOUND", "There is no such file.")
        token = secrets.token_urlsafe(16)
        self._signed[token] = path
        raise web.HTTPFound(f"{self._store.url}/files/{token}/{request.query['filename']}")

    async def stored_file(self, request: web.Request) -> web.StreamResponse:
        if "X-API-Key" in request.headers or "Authorization" in request.headers:
            self._process.log.leaked_credentials.append(Received(request.method, request.path))
            return web.Response(status=400, text="Only one auth mechanism allowed")
        path = self._signed.get(request.match_info["token"])
        return web.Response(status=403) if path is None else web.FileResponse(path)

    async def object_info(self, _request: web.Request) -> web.Response:
        return web.json_response(object_info(self._process))

    async def system_stats(self, _request: web.Request) -> web.Response:
        return web.json_response(system_stats(self._process))

    def _job(self, request: web.Request) -> CloudJob:
        job = self._jobs.by_id.get(request.match_info["job_id"])
        if job is None:
            body = '{"code": "NOT_FOUND", "message": "There is no such job."}'
            raise web.HTTPNotFound(text=body, content_type="application/json")
        return job


def check_api_key(api_key: str) -> Middleware:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/api/") and request.headers.get("X-API-Key") != api_key:
            return _error(401, "UNAUTHORIZED", "The API key is missing or wrong.")
        return await handler(request)

    return middleware


def _cloud_item(item: list[Any]) -> list[Any]:
    number, prompt_id, graph, extra_data, outputs = item
    return [number, prompt_id, graph, outputs, {"create_time": extra_data["create_time"]}]


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"code": code, "message": message}, status=status)
