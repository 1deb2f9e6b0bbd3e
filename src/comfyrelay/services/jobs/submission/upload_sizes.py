"""Check that uploads have the size that was announced and counted."""

import asyncio
from collections.abc import Iterable

from comfyrelay.domain.payloads import StoredFile
from comfyrelay.errors import InvalidInput
from comfyrelay.storage.objects import LocalObjects, ObjectStore

MAX_CONCURRENT_CHECKS = 16


async def check_upload_sizes(objects: ObjectStore, files: Iterable[StoredFile]) -> None:
    """Raise `InvalidInput` if a file that no job has used yet has another size than announced.

    An S3 server may ignore the length in a signed URL. The server itself accepts no other length, and has read the
    files whose hash it knows.
    """
    if isinstance(objects, LocalObjects):
        return
    limit = asyncio.Semaphore(MAX_CONCURRENT_CHECKS)

    async def check(file: StoredFile) -> None:
        async with limit:
            stat = await objects.stat(file.path)
        if stat is not None and stat.size != file.size:
            text = f"{file.name or 'This file'} has {stat.size} bytes, but {file.size} were announced: upload it again."
            raise InvalidInput(errors={"input_file_id": text})

    unchecked = [file for file in files if not file.is_used and file.content_hash is None and file.size is not None]
    await asyncio.gather(*map(check, unchecked))
