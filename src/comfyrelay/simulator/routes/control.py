"""Request middleware, and routes that inject misbehaviour over HTTP."""

import asyncio
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from comfyrelay.errors import InvalidInput
from comfyrelay.simulator.misbehaviour import Refuse, SlowHttp, read_misbehaviour
from comfyrelay.simulator.process import SimulatedProcess
from comfyrelay.simulator.request_log import Received

_CONTROL = "/simulator/"


def misbehaviour_middleware(process: SimulatedProcess) -> Middleware:
    """Return a middleware that logs each request, and delays or refuses it on request."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith(_CONTROL):
            return await handler(request)
        process.log.requests.append(Received(request.method, request.path))
        if slow := process.misbehaviours.take(SlowHttp, matching=lambda what: request.path.startswith(what.path)):
            if not request.content_type.startswith("multipart/"):
                # A client that disconnects has sent its request anyway.
                await request.read()
            await asyncio.sleep(slow.what.seconds)
        if refuse := process.misbehaviours.take(Refuse, matching=lambda what: _matches(request, what)):
            return _refusal(refuse.what)
        return await handler(request)

    return middleware


def _matches(request: web.Request, what: Refuse) -> bool:
    return request.path.startswith(what.path) and request.path.endswith(what.suffix)


@web.middleware
async def check_origin(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse requests from browser pages of another origin."""
    host, origin = request.headers.get("Host"), request.headers.get("Origin")
    if host and origin and not _is_allowed_origin(host, origin):
        return web.Response(status=403)
    return await handler(request)


def _refusal(what: Refuse) -> web.Response:
    headers = {} if what.retry_after is None else {"Retry-After": str(what.retry_after)}
    if what.error_type is None:
        return web.Response(status=what.status, text=what.message, headers=headers)
    # The kind of an error is called `type` by ComfyUI, and `code` by the Comfy API.
    error = {"type": what.error_type, "code": what.error_type, "message": what.message}
    body = {"error": error}
    return web.json_response(body, status=what.status, headers=headers)


class ControlRoutes:
    def __init__(self, process: SimulatedProcess) -> None:
        self._misbehaviours = process.misbehaviours

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/simulator/misbehave", self.misbehave), web.delete("/simulator/misbehave", self.behave)]

    async def misbehave(self, request: web.Request) -> web.Response:
        try:
            self._misbehaviours.add(read_misbehaviour(await request.json()))
        except InvalidInput as error:
            return web.json_response({"error": error.detail}, status=400)
        return web.Response(status=204)

    async def behave(self, _request: web.Request) -> web.Response:
        self._misbehaviours.clear()
        return web.Response(status=204)


def _is_allowed_origin(host: str, origin: str) -> bool:
    try:
        ours, theirs = urlsplit(f"//{host}"), urlsplit(origin)
        is_same_port = ours.port is None or theirs.port is None or ours.port == theirs.port
    except ValueError:
        return False
    return ours.hostname == theirs.hostname and is_same_port
