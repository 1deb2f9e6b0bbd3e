"""Assets of the Comfy API: the uploads of a user, and the outputs of jobs."""

import asyncio
from typing import Annotated

from fastapi import Path, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.datastructures import FormData, UploadFile

from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.jobs import FileRecord
from comfyrelay.domain.uploads import MEDIA_TYPES, AnnouncedUpload
from comfyrelay.errors import Conflict, InvalidInput
from comfyrelay.media_types import guess_media_type
from comfyrelay.protocol import comfy_api as wire
from comfyrelay.protocol.fields import MAX_LINE_LENGTH
from comfyrelay.server.comfy_api.problems import comfy_responses, comfy_router, refuse
from comfyrelay.server.comfy_api.views import HASH, asset_body
from comfyrelay.server.forms import hash_blake3, read_form
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.context import Context, ContextOf
from comfyrelay.server.http.routing import IdInPath
from comfyrelay.text import one_line

router = comfy_router("/api/v2/assets")
UNKNOWN_TYPE = "application/octet-stream"
Blake3 = Annotated[str, Path(max_length=200, description="`blake3:` and the hash in hexadecimal digits")]
_FORM = {
    "type": "object",
    "required": ["file", "content_type", "file_path"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "content_type": {"type": "string"},
        "file_path": {"type": "string"},
        "expected_hash": {"type": "string", "description": "`blake3:` and the hash in hexadecimal digits"},
    },
}


@router.post(
    "",
    status_code=201,
    response_model=wire.ComfyAsset,
    responses={
        200: {"description": "You have a file with this content already", "model": wire.ComfyAsset},
        **comfy_responses(403, 409, 413, 422),
    },
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}},
)
async def create(request: Request, context: ContextOf, user: CurrentUser) -> JSONResponse:
    """Upload an image, a video or an audio file. A file that you already have is returned with 200."""
    with context.form_uploads.hold(
        user.id, refusal="You are already uploading other files. Wait until one of the uploads has ended."
    ):
        return await _receive(request, context, user)


async def _receive(request: Request, context: Context, user: User) -> JSONResponse:
    # Check the allowed size first, because the parser stores the file in the temporary folder.
    form = await read_form(request, max_bytes=await context.engine.jobs.uploads.room(user.tenant_id))
    try:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise InvalidInput(errors={"file": "Send the content of the file in this field of the form."})
        # The parser keeps it in memory or in a temporary file.
        content = file.file
        found = f"{HASH}{await asyncio.to_thread(hash_blake3, content)}"
        expected = form.get("expected_hash")
        if isinstance(expected, str) and expected.lower() != found:
            return refuse(409, "hash_mismatch", f"The received bytes have the hash {found}, not {expected[:100]}.")
        known = await _find(context, user, found)
        if known is not None:
            return await _answer(context, user, known, status=200, created_new=False)
        new = _announce(form, file)
        stored = await context.engine.jobs.uploads.receive(user, new, content, blake3=found.removeprefix(HASH))
        return await _answer(context, user, stored, status=201, created_new=True)
    finally:
        await form.close()


@router.post("/from-hash", response_model=wire.ComfyAsset, responses=comfy_responses(404, 422))
async def create_from_hash(body: wire.NewComfyAssetFromHash, context: ContextOf, user: CurrentUser) -> JSONResponse:
    """Get your upload with this content, without sending it again."""
    known = await _find(context, user, body.hash)
    if known is None:
        return refuse(404, "blob_not_found", "You have no upload with this hash. Upload the file.")
    return await _answer(context, user, known, status=200, created_new=False)


@router.head("/by-hash/{hash}", response_class=Response, responses=comfy_responses(404, 422))
async def head_by_hash(hash: Blake3, context: ContextOf, user: CurrentUser) -> Response:
    """Check whether you have an upload with this content."""
    if await _find(context, user, hash) is None:
        return refuse(404, "blob_not_found", "You have no upload with this hash.")
    return Response(status_code=200)


@router.get("/{file_id}", responses=comfy_responses(404, 422))
async def asset(file_id: IdInPath, context: ContextOf, user: CurrentUser) -> wire.ComfyAsset:
    """Get an asset with a temporary URL."""
    view = await context.engine.jobs.views.file(user.tenant_id, file_id)
    return asset_body(context, view, job_id=await context.engine.jobs.uploads.job_of(user, file_id))


@router.get(
    "/{file_id}/content",
    status_code=302,
    response_class=RedirectResponse,
    responses=comfy_responses(404, 422),
)
async def content(file_id: IdInPath, context: ContextOf, user: CurrentUser) -> Response:
    """Download an asset: a redirect to its temporary URL, which also serves ranges."""
    view = await context.engine.jobs.views.file(user.tenant_id, file_id)
    return RedirectResponse(view.url, status_code=302, headers={"Cache-Control": "no-store"})


@router.delete("/{file_id}", status_code=204, response_class=Response, responses=comfy_responses(403, 404, 409, 422))
async def delete(file_id: IdInPath, context: ContextOf, user: CurrentUser) -> Response:
    """Delete an upload. 409 for an output of a job, and while a video or an unfinished job needs it."""
    if await context.engine.jobs.uploads.job_of(user, file_id) is not None:
        return refuse(409, "asset_in_use", "This is an output of a job. Delete the job instead.")
    try:
        await context.engine.jobs.removal.remove_upload(user.tenant_id, file_id)
    except Conflict as error:
        return refuse(409, "asset_in_use", error.detail)
    return Response(status_code=204)


async def _find(context: Context, user: User, hash_: str) -> FileRecord | None:
    digest = hash_.lower().removeprefix(HASH)
    if not hash_.lower().startswith(HASH) or not digest.isascii() or not digest.isalnum():
        return None
    return await context.engine.jobs.uploads.find_content(user, blake3=digest)


async def _answer(context: Context, user: User, file: FileRecord, *, status: int, created_new: bool) -> JSONResponse:
    view = await context.engine.jobs.views.file(user.tenant_id, file.id)
    body = asset_body(context, view, created_new=created_new)
    return JSONResponse(body.model_dump(mode="json"), status_code=status)


def _announce(form: FormData, file: UploadFile) -> AnnouncedUpload:
    """Return the name, type and size of an upload. Clients that do not know the type send a generic one."""
    given = form.get("file_path")
    name = one_line(given if isinstance(given, str) else file.filename or "")[-MAX_LINE_LENGTH:] or "upload"
    types = [form.get("content_type"), file.content_type, guess_media_type(name)]
    found = next((type_ for type_ in types if isinstance(type_, str) and type_.startswith(MEDIA_TYPES)), UNKNOWN_TYPE)
    if not file.size:
        raise InvalidInput(errors={"file": "This file is empty. Choose another one."})
    return AnnouncedUpload(mime_type=found, size=file.size, original_filename=name)
