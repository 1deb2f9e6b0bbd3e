"""Check uploads before the first job that uses them."""

import asyncio
from collections.abc import Iterable

from comfyrelay.domain.payloads import StoredFile
from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.media.image_headers import read_image_header
from comfyrelay.media.inspection import too_many_pixels
from comfyrelay.storage.objects import LocalObjects, ObjectStore

MAX_CONCURRENT_CHECKS = 16
# Contains the size of nearly every image.
HEAD_BYTES = 64 * 1024


async def check_uploads(objects: ObjectStore, files: Iterable[StoredFile], *, max_pixels: int) -> None:
    """Raise `InvalidInput` if a file that no job has used yet does not have the announced size, or is an image with too
    many pixels, because its outputs would be as large."""
    limit = asyncio.Semaphore(MAX_CONCURRENT_CHECKS)

    async def check(file: StoredFile) -> None:
        async with limit:
            await _check_size(objects, file)
            await _check_pixels(objects, file, max_pixels)

    await asyncio.gather(*(check(file) for file in files if not file.is_used))


async def _check_size(objects: ObjectStore, file: StoredFile) -> None:
    # S3 servers may ignore the length in a signed URL. This server enforces the length of local uploads, and has read
    # all files whose hash it knows.
    if isinstance(objects, LocalObjects) or file.content_hash is not None or file.size is None:
        return
    stat = await objects.stat(file.path)
    if stat is not None and stat.size != file.size:
        text = f"{file.name or 'This file'} has {stat.size} bytes, but {file.size} were announced: upload it again."
        raise InvalidInput(errors={"input_file_id": text})


async def _check_pixels(objects: ObjectStore, file: StoredFile, max_pixels: int) -> None:
    if not file.mime_type.startswith("image/") or not file.size:
        return
    length = min(file.size, HEAD_BYTES)
    try:
        head = b"".join([piece async for piece in objects.stream(file.path, start=0, length=length)])
    except NotFound:
        # If the file was not uploaded, the worker will report it.
        return
    header = read_image_header(head)
    if header is not None and header.width * header.height > max_pixels:
        why = too_many_pixels(header.width, header.height, max_pixels)
        raise InvalidInput(errors={"input_file_id": f"{file.name or 'This file'} {why}."})
