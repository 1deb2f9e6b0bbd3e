"""Files of the local object storage, behind signed URLs."""

import hashlib
from datetime import UTC
from email.utils import format_datetime
from typing import Annotated

from fastapi import Depends, Header, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from comfyrelay.domain.ids import source_path
from comfyrelay.errors import InvalidInput
from comfyrelay.media.previews import MAX_BYTES, is_preview, is_preview_path
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.holders import HolderKind, hold_connection
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Router
from comfyrelay.server.ranges import Unsatisfiable, parse_range, started
from comfyrelay.storage.headers import content_disposition
from comfyrelay.storage.objects import LocalObjects, ObjectStat
from comfyrelay.storage.paths import no_object
from comfyrelay.storage.signing import UrlGrant

PREFIX = "/files/"
# A browser may display or download an upload, and must never execute it.
FILE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cross-Origin-Resource-Policy": "cross-origin",
    "X-Content-Type-Options": "nosniff",
}
# Pages show posters and previews often, and these may be an hour old.
POSTER_CACHE = "private, max-age=3600"
router = Router(prefix="/files", tags=["files"], route_class=APIRoute)


async def _local(context: ContextOf) -> LocalObjects:
    objects = context.engine.objects
    assert isinstance(objects, LocalObjects)
    return objects


Local = Annotated[LocalObjects, Depends(_local)]


@router.get(
    "/{path:path}",
    response_class=StreamingResponse,
    responses={
        200: {"description": "The file", "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}},
        206: {"description": "A range of the file"},
        304: {"description": "The file has not changed"},
        416: {"description": "The range is outside the file"},
        **error_responses(403, 404, 422, 503),
    },
)
async def download(path: str, request: Request, objects: Local) -> Response:
    """Download a file, or a range of it, with a URL that this server has signed."""
    grant = objects.verify("GET", path, request.query_params)
    _hold_connection(request, grant)
    stat = await _stat(objects, path)
    headers = _headers(grant, stat)
    if _is_known(request, stat):
        return Response(status_code=304, headers=headers)
    try:
        part = parse_range(request.headers.get("Range"), stat.size) if _may_be_partial(request, stat) else None
    except Unsatisfiable:
        return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{stat.size}"})
    start, length = part or (0, stat.size)
    headers["Content-Length"] = str(length)
    if part is not None:
        headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{stat.size}"
    chunks = await started(objects.stream(path, start=start, length=length))
    return StreamingResponse(chunks, status_code=206 if part is not None else 200, headers=headers)


@router.head("/{path:path}", responses=error_responses(403, 404, 422, 503))
async def head(path: str, request: Request, objects: Local) -> Response:
    """Get the headers of a download."""
    grant = objects.verify("HEAD", path, request.query_params)
    stat = await _stat(objects, path)
    return Response(headers={**_headers(grant, stat), "Content-Length": str(stat.size)})


@router.put(
    "/{path:path}",
    response_class=Response,
    responses={200: {"description": "Stored"}, **error_responses(403, 404, 409, 422, 503)},
    openapi_extra={
        "requestBody": {"required": True, "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}}
    },
)
async def upload(
    path: str,
    request: Request,
    objects: Local,
    *,
    context: ContextOf,
    content_type: Annotated[str | None, Header(include_in_schema=False)] = None,
    content_length: Annotated[int | None, Header(include_in_schema=False, ge=0)] = None,
) -> Response:
    """Upload a file to a URL that this server has signed, with the signed type and length."""
    grant = objects.verify("PUT", path, request.query_params)
    grant.check_upload(content_type=content_type, content_length=content_length)
    await context.engine.jobs.uploads.require_announced(path)
    _hold_connection(request, grant)
    preview = bytearray()
    try:
        async with objects.receive(path, size=grant.size, max_size=grant.max_size, once=grant.once) as receiver:
            async for chunk in request.stream():
                await receiver.write(chunk)
                if is_preview_path(path):
                    # The grant limits its size.
                    preview += chunk
            if is_preview_path(path) and not is_preview(bytes(preview)):
                raise InvalidInput(f"A preview must be a JPEG of at most {MAX_BYTES // 1024} KiB.")
    except ClientDisconnect:
        raise InvalidInput("The connection was closed before the upload was complete.") from None
    return Response(headers={"ETag": _tag(await _stat(objects, path))})


class CrossOrigin:
    """CORS middleware: signed URLs work from any origin, the API only from allowed ones."""

    def __init__(self, app: ASGIApp, *, allowed_origins: list[str]) -> None:
        self._files = CORSMiddleware(
            app,
            allow_origins=["*"],
            allow_methods=["GET", "HEAD", "PUT"],
            allow_headers=["*"],
            expose_headers=["Content-Disposition", "Content-Length", "Content-Range", "ETag"],
            max_age=3600,
        )
        self._api = app
        if allowed_origins:
            self._api = CORSMiddleware(
                app,
                allow_origins=allowed_origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["X-Request-ID"],
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_file = scope["type"] == "http" and scope["path"].startswith(PREFIX)
        await (self._files if is_file else self._api)(scope, receive, send)


def _hold_connection(request: Request, grant: UrlGrant) -> None:
    """Count the connection for the tenant of the file."""
    kind = HolderKind.TENANT_WORKERS if grant.for_worker else HolderKind.TENANT
    hold_connection(request.scope, kind, "/".join(grant.path.split("/")[:2]))


async def _stat(objects: LocalObjects, path: str) -> ObjectStat:
    stat = await objects.stat(path)
    if stat is None:
        raise no_object(path)
    return stat


def _headers(grant: UrlGrant, stat: ObjectStat) -> dict[str, str]:
    headers = {
        **FILE_HEADERS,
        "Accept-Ranges": "bytes",
        "Cache-Control": POSTER_CACHE
        if source_path(grant.path) != grant.path
        else "private, max-age=0, must-revalidate",
        "Content-Type": grant.content_type or stat.content_type or "application/octet-stream",
        "ETag": _tag(stat),
        "Last-Modified": _date(stat),
    }
    if grant.filename is not None:
        headers["Content-Disposition"] = content_disposition(grant.filename)
    return headers


def _tag(stat: ObjectStat) -> str:
    """Return the ETag. Objects are replaced as a whole, so size and time identify a version."""
    return f'"{hashlib.sha256(f"{stat.size} {stat.modified_at.isoformat()}".encode()).hexdigest()[:32]}"'


def _date(stat: ObjectStat) -> str:
    return format_datetime(stat.modified_at.astimezone(UTC).replace(microsecond=0), usegmt=True)


def _is_known(request: Request, stat: ObjectStat) -> bool:
    tags = request.headers.get("If-None-Match")
    if tags is not None:
        known = {tag.strip().removeprefix("W/") for tag in tags.split(",")}
        return "*" in known or _tag(stat) in known
    return request.headers.get("If-Modified-Since") == _date(stat)


def _may_be_partial(request: Request, stat: ObjectStat) -> bool:
    """Whether to honor a range: not if the client has parts of another version."""
    condition = request.headers.get("If-Range")
    return condition is None or condition in (_tag(stat), _date(stat))
