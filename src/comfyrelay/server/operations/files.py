"""Local files behind signed URLs, if object storage is a folder of this machine."""

import hashlib
from collections.abc import AsyncIterator
from datetime import UTC
from email.utils import format_datetime
from typing import Annotated

from fastapi import Depends, Header, Request, Response
from fastapi.responses import StreamingResponse
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from comfyrelay.domain.ids import source_path
from comfyrelay.errors import InvalidInput
from comfyrelay.media.previews import MAX_BYTES, is_preview, is_preview_path
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import may_answer
from comfyrelay.server.http.routers import Router
from comfyrelay.server.operations.ranges import Unsatisfiable, parse_range
from comfyrelay.storage.headers import content_disposition
from comfyrelay.storage.objects import LocalObjects, ObjectStat
from comfyrelay.storage.paths import no_object
from comfyrelay.storage.signing import UrlGrant

PREFIX = "/files/"
# Uploads are displayed or downloaded, and never executed.
FILE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cross-Origin-Resource-Policy": "cross-origin",
    "X-Content-Type-Options": "nosniff",
}
# Posters and previews are shown often, and may be an hour old.
POSTER_CACHE = "private, max-age=3600"
router = Router(prefix="/files", tags=["files"])


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
        206: {"description": "A part of it"},
        304: {"description": "It is as you have it"},
        416: {"description": "There is no such part"},
        **may_answer(403, 404, 422, 503),
    },
)
async def download(path: str, request: Request, objects: Local) -> Response:
    """A file, or a range of it, by a URL that this server has signed."""
    grant = objects.verify("GET", path, request.query_params)
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
    pieces = await _begun(objects.stream(path, start=start, length=length))
    return StreamingResponse(pieces, status_code=206 if part is not None else 200, headers=headers)


@router.head("/{path:path}", responses=may_answer(403, 404, 422, 503))
async def head(path: str, request: Request, objects: Local) -> Response:
    """The headers of a download."""
    grant = objects.verify("HEAD", path, request.query_params)
    stat = await _stat(objects, path)
    return Response(headers={**_headers(grant, stat), "Content-Length": str(stat.size)})


@router.put(
    "/{path:path}",
    response_class=Response,
    responses={200: {"description": "Stored"}, **may_answer(403, 422, 503)},
    openapi_extra={
        "requestBody": {"required": True, "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}}
    },
)
async def upload(
    path: str,
    request: Request,
    objects: Local,
    content_type: Annotated[str | None, Header(include_in_schema=False)] = None,
    content_length: Annotated[int | None, Header(include_in_schema=False, ge=0)] = None,
) -> Response:
    """Store a file by a URL that this server has signed, with the signed type and length."""
    grant = objects.verify("PUT", path, request.query_params)
    grant.check_upload(content_type=content_type, content_length=content_length)
    seen = bytearray()
    try:
        async with objects.receive(path, size=grant.size, max_size=grant.max_size) as receiver:
            async for piece in request.stream():
                await receiver.write(piece)
                if is_preview_path(path):
                    # at most the size of the grant, which is small
                    seen += piece
            if is_preview_path(path) and not is_preview(bytes(seen)):
                raise InvalidInput(f"A preview is a JPEG of at most {MAX_BYTES // 1024} KiB.")
    except ClientDisconnect:
        raise InvalidInput("The upload was cut off.") from None
    return Response(headers={"ETag": _tag(await _stat(objects, path))})


class CrossOrigin:
    """Signed URLs may be used from any origin, the API only from allowed ones."""

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
    """Objects are replaced as a whole, so size and time identify a version."""
    return f'"{hashlib.sha256(f"{stat.size} {stat.modified_at.isoformat()}".encode()).hexdigest()[:32]}"'


def _date(stat: ObjectStat) -> str:
    return format_datetime(stat.modified_at.astimezone(UTC).replace(microsecond=0), usegmt=True)


def _is_known(request: Request, stat: ObjectStat) -> bool:
    tags = request.headers.get("If-None-Match")
    if tags is not None:
        known = {each.strip().removeprefix("W/") for each in tags.split(",")}
        return "*" in known or _tag(stat) in known
    return request.headers.get("If-Modified-Since") == _date(stat)


def _may_be_partial(request: Request, stat: ObjectStat) -> bool:
    """A range is useless to a client whose other ranges are from another version."""
    condition = request.headers.get("If-Range")
    return condition is None or condition in (_tag(stat), _date(stat))


async def _begun(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Read the first chunk before the response starts: a file that was just deleted is a 404, not a broken response."""
    first = await anext(pieces, b"")

    async def all_of_them() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    return all_of_them()
