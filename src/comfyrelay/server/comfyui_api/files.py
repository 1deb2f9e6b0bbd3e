"""Files of the caller: `/view` reads inputs and outputs, and `/upload/image` stores inputs."""

import asyncio
import hashlib
import io
import json
import os
from pathlib import PurePosixPath
from typing import BinaryIO

from starlette.datastructures import FormData, UploadFile
from starlette.responses import JSONResponse, Response, StreamingResponse

from comfyrelay.comfyui.graphs.preflight import file_query
from comfyrelay.domain.records.jobs import FileRecord
from comfyrelay.domain.uploads import MEDIA_TYPES
from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.media_types import guess_media_type
from comfyrelay.server.comfyui_api.routing import Call, ComfyuiRoutes, refuse
from comfyrelay.server.forms import hash_blake3, read_form
from comfyrelay.server.ranges import Unsatisfiable, parse_range, started
from comfyrelay.services.comfyui_api.images import ImageEdit
from comfyrelay.services.comfyui_api.input_files import MAX_NAME_LENGTH, ReceivedFile
from comfyrelay.services.comfyui_api.user_files import checked_path
from comfyrelay.storage.headers import content_disposition, servable_content_type
from comfyrelay.text import is_storable

routes = ComfyuiRoutes()
KINDS = ("input", "output", "temp")
DEFAULT_QUALITY = 90
# A mask is read into memory.
MAX_MASK_BYTES = 64 * 1024 * 1024
NO_FILE = "You have no such file."
WAITING = "You are already uploading other files. Wait until one of the uploads has ended."
FILE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "private, no-cache",
    "Accept-Ranges": "bytes",
}


@routes.add("GET", "/view")
async def view(call: Call) -> Response:
    name, kind = call.query("filename"), call.query("type", "output")
    if not name:
        raise NotFound(NO_FILE)
    if name.startswith("/") or ".." in name or kind not in KINDS:
        raise InvalidInput("filename must be a file name, and type one of input, output and temp.")
    subfolder = call.query("subfolder").strip("/")
    if ".." in subfolder.split("/"):
        return Response(status_code=403)
    marked = file_query(name)
    if marked["filename"] != PurePosixPath(name).name:
        kind = marked["type"]
    found = await call.context.engine.comfyui_api.input_files.find(
        call.tenant_id, name=marked["filename"], subfolder=subfolder, kind=kind
    )
    if found is None:
        raise NotFound(NO_FILE)
    edit = _edit(call)
    if edit is None or not found.mime_type.startswith("image/"):
        return await _file(call, found, marked["filename"])
    content = await call.context.engine.comfyui_api.images.edited(found, edit)
    disposition = content_disposition(marked["filename"]).replace("attachment", "inline", 1)
    headers = {**FILE_HEADERS, "Accept-Ranges": "none", "Content-Disposition": disposition}
    return Response(content, media_type=f"image/{edit.extension}", headers=headers)


def _edit(call: Call) -> ImageEdit | None:
    """Return the edit that `preview` (`webp;90`) or `channel` requests, if any. As in ComfyUI, a preview comes
    first."""
    channel = call.query("channel", "rgba")
    preview = call.query("preview")
    if preview:
        name, _, quality = preview.partition(";")
        is_jpeg = name == "jpeg" and "a" not in channel.removeprefix("rgba")
        return ImageEdit(
            extension="jpeg" if is_jpeg else "webp",
            quality=min(int(quality), 100) if quality.isdecimal() and len(quality) <= 3 else DEFAULT_QUALITY,
            channel="rgb" if channel == "rgb" else "rgba",
        )
    if channel == "rgb":
        return ImageEdit(channel="rgb")
    return ImageEdit(channel="a") if channel == "a" else None


@routes.add("GET", "/internal/files/{kind}", has_twin=False)
async def listed(call: Call) -> Response:
    """List uploads for the editor, newest first. As in ComfyUI, uploads in subfolders are left out."""
    if call.path("kind") not in KINDS:
        return refuse(400, "invalid_input", "Invalid directory type")
    names = await call.context.engine.comfyui_api.input_files.names(call.tenant_id)
    is_input = call.path("kind") == "input"
    return JSONResponse([f"{name} [input]" for name in names if is_input and "/" not in name])


@routes.add("POST", "/upload/image")
async def upload(call: Call) -> Response:
    """Store an image, a video or an audio file. `overwrite` replaces a file of the same name."""
    with call.context.form_uploads.hold(call.user.id, refusal=WAITING):
        return await _receive(call)


@routes.add("POST", "/upload/mask")
async def upload_mask(call: Call) -> Response:
    """Store a copy of the image that `original_ref` names, with the alpha channel of the uploaded one."""
    with call.context.form_uploads.hold(call.user.id, refusal=WAITING):
        return await _receive(call, is_mask=True)


async def _receive(call: Call, *, is_mask: bool = False) -> Response:
    # Check the allowed size first, because the parser stores the file in the temporary folder.
    form = await read_form(call.request, max_bytes=await call.context.engine.jobs.uploads.room(call.tenant_id))
    try:
        image = form.get("image")
        if not isinstance(image, UploadFile) or not image.size:
            raise InvalidInput("Send a file that is not empty in the field image.")
        content: BinaryIO = image.file
        if is_mask:
            if image.size > MAX_MASK_BYTES:
                raise InvalidInput(f"A mask has at most {MAX_MASK_BYTES // 1024**2} MiB. Save it as PNG.")
            content = await _masked(call, _text(form, "original_ref"), await image.read())
        new = await _read_file(form, image, content)
        is_replacing = form.get("overwrite") in ("true", "1")
        path = await call.context.engine.comfyui_api.input_files.receive(
            call.user, new, content, overwrite=is_replacing
        )
    finally:
        await form.close()
    subfolder, _, name = path.rpartition("/")
    return JSONResponse({"name": name, "subfolder": subfolder, "type": _text(form, "type") or "input"})


async def _masked(call: Call, reference: str, mask: bytes) -> BinaryIO:
    """Return the image that a reference names, with the alpha channel of the mask."""
    try:
        match json.loads(reference):
            case {"filename": str() as name, **more}:
                subfolder, kind = str(more.get("subfolder", "")), str(more.get("type", "output"))
            case _:
                raise ValueError
    except (ValueError, RecursionError):
        raise InvalidInput("original_ref must name the image, as JSON with filename, subfolder and type.") from None
    engine = call.context.engine.comfyui_api
    found = await engine.input_files.find(call.tenant_id, name=name, subfolder=subfolder.strip("/"), kind=kind)
    if found is None or not found.mime_type.startswith("image/"):
        raise InvalidInput("You have no such image.")
    return io.BytesIO(await engine.images.masked(found, mask))


async def _read_file(form: FormData, image: UploadFile, content: BinaryIO) -> ReceivedFile:
    name, subfolder = image.filename or "", _text(form, "subfolder").strip("/")
    if not name or name != PurePosixPath(name.replace("\\", "/")).name or name in (".", ".."):
        raise InvalidInput("Send the file name without a path, and the folder in subfolder.")
    if len(name) > MAX_NAME_LENGTH or not is_storable(name):
        raise InvalidInput(f"A file name has at most {MAX_NAME_LENGTH} storable characters.")
    if (_text(form, "type") or "input") not in ("input", "temp"):
        raise InvalidInput("type must be input or temp: outputs come from prompts.")
    types = (guess_media_type(name), image.content_type)
    found = next((type_ for type_ in types if type_ is not None and type_.startswith(MEDIA_TYPES)), None)
    return ReceivedFile(
        name=name,
        subfolder=checked_path(subfolder) if subfolder else "",
        mime_type=found or image.content_type or "application/octet-stream",
        size=await asyncio.to_thread(content.seek, 0, os.SEEK_END),
        blake3=await asyncio.to_thread(hash_blake3, content),
    )


def _text(form: FormData, name: str) -> str:
    value = form.get(name)
    return value if isinstance(value, str) else ""


async def _file(call: Call, file: FileRecord, name: str) -> Response:
    """Return a file or a range of it directly from any storage: clients would not send their token after a redirect."""
    objects = call.context.engine.objects
    stat = await objects.stat(file.path)
    if stat is None:
        raise NotFound(NO_FILE)
    media_type = servable_content_type(file.mime_type) or "application/octet-stream"
    # A browser must never run a file with the editor's rights.
    is_inline = media_type.startswith(MEDIA_TYPES) and "svg" not in media_type and "xml" not in media_type
    disposition = content_disposition(name)
    headers = {
        **FILE_HEADERS,
        "Content-Type": media_type if is_inline else "application/octet-stream",
        "Content-Disposition": disposition.replace("attachment", "inline", 1) if is_inline else disposition,
        "ETag": f'"{hashlib.sha256(f"{file.id} {stat.size}".encode()).hexdigest()[:32]}"',
    }
    known = call.request.headers.get("If-None-Match", "")
    if headers["ETag"] in [tag.strip().removeprefix("W/") for tag in known.split(",")]:
        return Response(status_code=304, headers=headers)
    try:
        part = parse_range(call.request.headers.get("Range"), stat.size)
    except Unsatisfiable:
        return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{stat.size}"})
    start, length = part or (0, stat.size)
    headers["Content-Length"] = str(length)
    if part is not None:
        headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{stat.size}"
    if call.request.method == "HEAD":
        return Response(status_code=200 if part is None else 206, headers=headers)
    chunks = objects.stream(file.path, start=start, length=length)
    return StreamingResponse(await started(chunks), status_code=200 if part is None else 206, headers=headers)
