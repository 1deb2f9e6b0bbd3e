"""The API documentation, for users: the schema, and a page that loads nothing from other servers."""

import asyncio
import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse
from pydantic_core import to_json

from comfyrelay.errors import Unauthorized
from comfyrelay.server.http.auth import CurrentUser, authenticate_user
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.routing import Router
from comfyrelay.services.timed_cache import TimedCache

router = Router(prefix="/docs", include_in_schema=False)
schema_router = Router(prefix="/openapi.json", include_in_schema=False)

# The page must not execute third-party scripts in a signed-in browser.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY}
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>ComfyRelay API</title>
<link rel="stylesheet" href="/docs/swagger-ui.css">
<link rel="icon" href="data:,">
</head>
<body>
<div id="swagger-ui"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""
START = 'SwaggerUIBundle({url: "/openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null});\n'
# Only the files of Swagger UI are used from this package.
FILES = resources.files("fastapi_offline") / "static"


@dataclass(frozen=True, kw_only=True, slots=True)
class Schema:
    content: bytes
    etag: str


class CachedSchema:
    """The OpenAPI document of an application, cached: generating it takes a second, and serializing it a tenth of
    one."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._cache = TimedCache(lambda: asyncio.to_thread(self._serialize))

    async def get(self) -> Schema:
        return await self._cache.get(seconds=float("inf"))

    def _serialize(self) -> Schema:
        content = to_json(self._app.openapi())
        return Schema(content=content, etag=f'"{hashlib.sha256(content).hexdigest()[:32]}"')


@schema_router.get("")
async def schema(request: Request, _user: CurrentUser) -> Response:
    state = request.app.state
    if not hasattr(state, "api_schema"):
        state.api_schema = CachedSchema(request.app)
    cached: CachedSchema = state.api_schema
    found = await cached.get()
    headers = {"ETag": found.etag, "Cache-Control": "private, no-cache"}
    if found.etag in request.headers.get("If-None-Match", ""):
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type="application/json", headers=headers)


@router.get("")
async def page(request: Request, context: ContextOf) -> Response:
    try:
        await authenticate_user(request, context)
    except Unauthorized:
        return RedirectResponse("/sign-in?to=/docs", status_code=303)
    return HTMLResponse(PAGE, headers=HEADERS)


@router.get("/start.js")
async def start() -> Response:
    return Response(START, media_type="text/javascript", headers=HEADERS)


@router.get("/{name}")
async def file(name: Literal["swagger-ui.css", "swagger-ui-bundle.js"]) -> Response:
    return FileResponse(str(FILES / name), headers=HEADERS)
