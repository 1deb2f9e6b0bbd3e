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
    """Raise `InvalidInput` if a file that no job has used yet has another size than announced, or is an image with too
    many pixels: its outputs would be as large."""
    limit = asyncio.Semaphore(MAX_CONCURRENT_CHECKS)

    async def check(file: StoredFile) -> None:
        async with limit:
            await _check_size(objects, file)
            await _check_pixels(objects, file, max_pixels)

    await asyncio.gather(*(check(file) for file in files if not file.is_used))


async def _check_size(objects: ObjectStore, file: StoredFile) -> None:
    # An S3 server may ignore the length in a signed URL. The server itself accepts no other length, and has read the
    # files whose hash it knows.
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
        # The worker reports a file that was not uploaded.
        return
    header = read_image_header(head)
    if header is not None and header.width * header.height > max_pixels:
        why = too_many_pixels(header.width, header.height, max_pixels)
        raise InvalidInput(errors={"input_file_id": f"{file.name or 'This file'} {why}."})
