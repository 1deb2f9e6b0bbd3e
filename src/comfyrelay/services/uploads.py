"""Uploads: a file is known before its bytes come, and the bytes go straight to object storage."""

import asyncio
import hashlib
import mimetypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from comfyrelay.domain.ids import new_id
from comfyrelay.errors import InvalidInput, TooLarge
from comfyrelay.services.databases import Databases
from comfyrelay.services.library import Library
from comfyrelay.services.steps import Step
from comfyrelay.storage.objects import LocalObjects, ObjectStore, SignedUpload
from comfyrelay.store import media
from comfyrelay.store.database import Database
from comfyrelay.store.media import File, Video
from comfyrelay.store.tenants import User

__all__ = ["NewUpload", "Upload", "Uploads", "check_upload", "extension_of"]

MEDIA_TYPES = ("image/", "video/", "audio/")
PIECE_BYTES = 1024 * 1024
_EXTENSION = re.compile(r"\.[a-z0-9]{1,8}")


@dataclass(frozen=True, kw_only=True, slots=True)
class NewUpload:
    """What a user announces."""

    mime_type: str
    size: int
    original_filename: str
    effect_id: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Upload:
    """A file, and how its bytes may be sent."""

    file: File
    signed: SignedUpload


class Uploads:
    def __init__(
        self,
        databases: Databases,
        objects: ObjectStore,
        library: Library,
        *,
        disk: str,
        max_bytes: int,
        ttl_seconds: float,
    ) -> None:
        self._databases = databases
        self._objects = objects
        self._library = library
        self._disk = disk
        self._max_bytes = max_bytes
        self._ttl_seconds = ttl_seconds

    async def begin(self, user: User, new: NewUpload) -> Upload:
        """Make the file's row, then say where its bytes go. The type and the length are part of the signature."""
        check_upload(new, max_bytes=self._max_bytes)
        await self._check_effect(new)
        id_ = new_id()
        path = f"tenants/{user.tenant_id}/uploads/{id_}{extension_of(new)}"
        signed = await self._objects.sign_upload(
            path, content_type=new.mime_type, size=new.size, ttl_seconds=self._ttl_seconds
        )
        pool = await self._write(user, new, id_, path)
        return Upload(file=(await self._files(pool, user, [id_]))[0], signed=signed)

    async def names(self, user: User, file_ids: Sequence[str]) -> dict[str, str]:
        """What the user calls these files, as far as they are the user's."""
        pool = await self._databases.pool_of(user.tenant_id)
        return {each.id: each.original_filename or "" for each in await self._files(pool, user, file_ids)}

    async def take(self, user: User, source: Path) -> str:
        """A file of this machine, copied to where jobs find it; returns its id."""
        guessed = mimetypes.guess_type(source.name, strict=False)[0] or "application/octet-stream"
        size = (await asyncio.to_thread(source.stat)).st_size
        new = NewUpload(mime_type=guessed, size=size, original_filename=source.name)
        check_upload(new, max_bytes=self._max_bytes)
        id_ = new_id()
        path = f"tenants/{user.tenant_id}/uploads/{id_}{extension_of(new)}"
        digest = hashlib.sha256()
        if isinstance(self._objects, LocalObjects):
            async with self._objects.receive(path, size=size) as receiver:
                with await asyncio.to_thread(source.open, "rb") as file:
                    while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                        digest.update(piece)
                        await receiver.write(piece)
        else:
            content = await asyncio.to_thread(source.read_bytes)
            digest.update(content)
            await self._objects.put(path, content)
        await self._write(user, new, id_, path, content_hash=digest.hexdigest())
        return id_

    async def _write(
        self, user: User, new: NewUpload, id_: str, path: str, *, content_hash: str | None = None
    ) -> Database:
        values = {
            "id": id_,
            "tenant_id": user.tenant_id,
            "user_id": user.id,
            "disk": self._disk,
            "path": path,
            "mime_type": new.mime_type,
            "size": new.size,
            "content_hash": content_hash,
            "original_filename": new.original_filename,
        }
        pool = await self._databases.pool_of(user.tenant_id)
        await pool.run(Step.TENANT, lambda tx: media.create_file(tx, **values))
        return pool

    async def make_video(
        self, user: User, *, original_file_id: str, title: str | None = None, effect_id: int | None = None
    ) -> Video:
        """A video of a file that has arrived."""
        pool = await self._databases.pool_of(user.tenant_id)
        found = await self._files(pool, user, [original_file_id])
        if not found:
            raise InvalidInput(errors={"original_file_id": "There is no such file of yours."})
        if effect_id is not None:
            await self._library.effect(id_=effect_id)
        await self._require_arrived(found[0])
        id_ = new_id()
        values = {
            "id": id_,
            "tenant_id": user.tenant_id,
            "user_id": user.id,
            "title": title,
            "effect_id": effect_id,
            "original_file_id": original_file_id,
        }
        await pool.run(Step.TENANT, lambda tx: media.create_video(tx, **values))
        async with pool.read() as tx:
            return (await media.videos_of(tx, user.tenant_id, [id_]))[id_]

    async def _require_arrived(self, file: File) -> None:
        stat = await self._objects.stat(file.path)
        if stat is None:
            raise InvalidInput(errors={"original_file_id": "This file has not been uploaded yet."})
        if file.size is not None and stat.size != file.size:
            told = f"This file has {stat.size} bytes, not {file.size}: upload it again."
            raise InvalidInput(errors={"original_file_id": told})

    async def _check_effect(self, new: NewUpload) -> None:
        """Better now than after an upload of an hour."""
        if new.effect_id is None:
            return
        effect = await self._library.effect(id_=new.effect_id)
        for each in effect.inputs:
            if each.is_primary_input and not new.mime_type.startswith(f"{each.type}/"):
                raise InvalidInput(errors={"mime_type": f"This effect takes {each.type}, not {new.mime_type}."})

    async def _files(self, pool: Database, user: User, ids: Sequence[str]) -> list[File]:
        async with pool.read() as tx:
            return list((await media.files_of(tx, user.tenant_id, ids)).values())


def check_upload(new: NewUpload, *, max_bytes: int) -> None:
    if not new.mime_type.startswith(MEDIA_TYPES):
        raise InvalidInput(errors={"mime_type": "Only images, videos and audio can be uploaded."})
    if new.size > max_bytes:
        raise TooLarge(f"The file is too large: at most {max_bytes} bytes are allowed.")


def extension_of(new: NewUpload) -> str:
    """What the name ends in, if that can be in a path; ComfyUI looks at it."""
    given = PurePosixPath(new.original_filename).suffix.lower()
    if _EXTENSION.fullmatch(given):
        return given
    return mimetypes.guess_extension(new.mime_type) or ""
