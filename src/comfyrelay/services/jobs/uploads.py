"""Uploads: the server first writes the row of a file, then the client sends the bytes directly to object storage."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from comfyrelay.domain.ids import new_id
from comfyrelay.domain.records.accounts import OwnLimits, User
from comfyrelay.domain.records.jobs import FileRecord, VideoRecord
from comfyrelay.domain.uploads import (
    GUEST_LIMITS,
    AnnouncedUpload,
    UploadLimits,
    UploadUsage,
    check_guest_space,
    check_upload,
    extension_of,
    guest_uploads_folder,
    tenant_of_upload,
    uploads_folder,
)
from comfyrelay.errors import Conflict, InvalidInput, NotFound
from comfyrelay.media_types import guess_media_type
from comfyrelay.services.catalogue.library import Library
from comfyrelay.services.context import DISK, ServiceContext
from comfyrelay.services.paging import ResultPage, chunks, make_page
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.storage.objects import LocalObjects, SignedUpload
from comfyrelay.store.database import Database, Tx
from comfyrelay.store.tenant import ledger, removals
from comfyrelay.store.tenant.library import media
from comfyrelay.system.disks import free_bytes

PIECE_BYTES = 1024 * 1024
# Local files: rows per transaction, and concurrent copies.
GROUP_SIZE = 200
MAX_CONCURRENT_COPIES = 8
# Much longer than copying one group takes.
COPY_SECONDS = 6 * 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedUpload:
    """A file and the signed URL for its bytes."""

    file: FileRecord
    signed: SignedUpload


class Uploads:
    def __init__(
        self, context: ServiceContext, library: Library, *, limits_of: Callable[[str], Awaitable[OwnLimits]]
    ) -> None:
        self._limits_of = limits_of
        self._settings = context.settings
        self._databases = context.databases
        self._objects = context.objects
        self._library = library

    async def create(self, user: User, new: AnnouncedUpload, *, is_guest: bool = False) -> PreparedUpload:
        """Create the row of a file and sign its upload URL. The signature covers the type and the length."""
        check_upload(new, max_bytes=self._settings.max_upload_bytes)
        await self._check_effect(new)
        row = _row(user, new, is_guest=is_guest)
        signed = await self._objects.sign_upload(
            row["path"],
            content_type=new.mime_type,
            size=new.size,
            ttl_seconds=self._settings.presigned_ttl_seconds,
            # A job may use the file while the URL is still valid.
            once=True,
        )
        shard = await self._databases.shard_of(user.tenant_id)
        await self._write(shard, [row])
        return PreparedUpload(file=(await self._files(shard, user, [row["id"]]))[0], signed=signed)

    async def file_names(self, user: User, file_ids: Sequence[str]) -> dict[str, str]:
        """Return the original names of the user's files."""
        shard = await self._databases.shard_of(user.tenant_id)
        return {file.id: file.original_filename or "" for file in await self._files(shard, user, file_ids)}

    async def find_file(self, user: User, file_id: str) -> FileRecord:
        found = await self._files(await self._databases.shard_of(user.tenant_id), user, [file_id])
        if not found:
            raise NotFound("You have no such file.")
        return found[0]

    async def copy_local_files(self, user: User, sources: Sequence[Path], *, is_guest: bool = False) -> dict[Path, str]:
        """Copy files of this machine to object storage, and return their ids. All files are checked before the first
        copy."""
        announced = await asyncio.to_thread(lambda: [_describe(source) for source in sources])
        for upload in announced:
            check_upload(upload, max_bytes=self._settings.max_upload_bytes)
        rows = {source: _row(user, new, is_guest=is_guest) for source, new in zip(sources, announced, strict=True)}
        shard = await self._databases.shard_of(user.tenant_id)
        if is_guest and rows:
            await self._check_guest(shard, [*rows.values()])
        for group in chunks(list(rows.items()), GROUP_SIZE):
            await self._copy_group(shard, group)
        return {source: row["id"] for source, row in rows.items()}

    async def copy_output(self, user: User, output: FileRecord, name: str, *, is_guest: bool = False) -> FileRecord:
        """Copy an output to a new input file, which outlives the job."""
        new = AnnouncedUpload(mime_type=output.mime_type, size=output.size or 0, original_filename=name)
        if not new.mime_type.startswith(("image/", "video/", "audio/")):
            raise Conflict(f"Only an image, a video or audio can be an input; this output is {new.mime_type}.")
        row = {**_row(user, new, is_guest=is_guest), "content_hash": output.content_hash}
        if await self._objects.stat(output.path) is None:
            raise NotFound("The file of this output no longer exists.")
        shard = await self._databases.shard_of(user.tenant_id)
        scheduled = await self._schedule_removal(shard, [row])
        try:
            row["size"] = (await self._objects.copy(output.path, row["path"])).size
            await self._write(shard, [row], scheduled)
        except BaseException:
            await self._objects.remove(row["path"])
            raise
        return (await self._files(shard, user, [row["id"]]))[0]

    async def receive(self, user: User, new: AnnouncedUpload, content: BinaryIO, *, blake3: str) -> FileRecord:
        """Store a file that this process has received."""
        check_upload(new, max_bytes=self._settings.max_upload_bytes)
        row = {**_row(user, new, is_guest=False), "blake3": blake3}
        shard = await self._databases.shard_of(user.tenant_id)
        scheduled = await self._schedule_removal(shard, [row])
        try:
            row["content_hash"] = await self._send(content, row["path"], new.size)
            await self._write(shard, [row], scheduled)
        except BaseException:
            await self._objects.remove(row["path"])
            raise
        return (await self._files(shard, user, [row["id"]]))[0]

    async def find_content(self, user: User, *, blake3: str) -> FileRecord | None:
        """Return the user's newest upload with this content."""
        async with (await self._databases.shard_of(user.tenant_id)).read() as tx:
            return await media.by_blake3(tx, user.tenant_id, blake3)

    async def job_of(self, user: User, file_id: str) -> str | None:
        """Return the job that made a file; `None` for an upload."""
        async with (await self._databases.shard_of(user.tenant_id)).read() as tx:
            return await media.job_of_output(tx, user.tenant_id, file_id)

    async def usage(self, tenant_id: str) -> tuple[UploadUsage, UploadLimits]:
        """Return the size of a tenant's uploads, and its limits."""
        limits = await self._limits(tenant_id)
        shard = await self._databases.shard_of(tenant_id)
        async with shard.read() as tx:
            return await media.upload_usage(tx, tenant_id), limits

    async def room(self, tenant_id: str) -> int:
        """Return the maximum size of the next upload. Raises `UploadLimitReached` if the tenant can store no more."""
        usage, limits = await self.usage(tenant_id)
        limits.check(usage, new_files=1, new_bytes=1, unused_hours=self._settings.unused_upload_hours)
        largest = self._settings.max_upload_bytes
        return largest if limits.max_bytes is None else min(largest, limits.max_bytes - usage.bytes)

    async def page(self, tenant_id: str, *, before_id: str | None, limit: int) -> ResultPage[tuple[FileRecord, bool]]:
        """Return a page of a tenant's uploads, newest first, each with whether a job has used it."""
        shard = await self._databases.shard_of(tenant_id)
        async with shard.read() as tx:
            found = await media.upload_page(tx, tenant_id, before_id=before_id, limit=limit + 1)
        return make_page(found, limit=limit, key=lambda item: item[0].id)

    async def require_announced(self, path: str) -> None:
        """Raise `NotFound` for an upload that was deleted while its URL is still valid, and `UploadLimitReached` for an
        upload of a guest that would fill the disk. Ignores other paths."""
        if (tenant_id := tenant_of_upload(path)) is None:
            return
        shard = await self._databases.shard_of(tenant_id)
        async with shard.read() as tx:
            if not await media.ids_at(tx, tenant_id, [path]):
                raise NotFound("This upload was deleted. Announce it again.")
        if path.startswith(guest_uploads_folder(tenant_id)):
            # The disk may have filled up since the upload was announced.
            await self._check_guest_space(0)

    async def _limits(self, tenant_id: str) -> UploadLimits:
        own, usual = await self._limits_of(tenant_id), self._settings
        return UploadLimits(
            max_files=usual.max_stored_files if own.max_stored_files is None else own.max_stored_files,
            max_bytes=usual.max_stored_bytes if own.max_stored_bytes is None else own.max_stored_bytes,
        )

    async def _check_guest(self, shard: Database, rows: Sequence[Mapping[str, Any]]) -> None:
        """Raise `UploadLimitReached` if uploads of a guest would exceed the limits of guests, or fill the disk."""
        tenant_id, size = rows[0]["tenant_id"], sum(row["size"] for row in rows)
        await self._check_guest_space(size)
        async with shard.read() as tx:
            await self._check_guest_limits(tx, tenant_id, new_files=len(rows), new_bytes=size)

    async def _check_guest_space(self, new_bytes: int) -> None:
        check_guest_space(await asyncio.to_thread(free_bytes, self._settings.data_dir), new_bytes=new_bytes)

    async def _check_guest_limits(self, tx: Tx, tenant_id: str, *, new_files: int, new_bytes: int) -> None:
        usage = await media.upload_usage(tx, tenant_id, folder=guest_uploads_folder(tenant_id))
        GUEST_LIMITS.check(
            usage, new_files=new_files, new_bytes=new_bytes, unused_hours=self._settings.unused_upload_hours
        )

    async def _schedule_removal(self, shard: Database, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        """Schedule the removal of objects before they are copied, because a killed process leaves them without rows."""
        paths = [row["path"] for row in rows]
        schedule = partial(removals.schedule, tenant_id=rows[0]["tenant_id"], paths=paths, after_seconds=COPY_SECONDS)
        return await shard.run(TransactionStep.TENANT, schedule)

    async def _write(self, shard: Database, rows: Sequence[Mapping[str, Any]], scheduled: Sequence[int] = ()) -> None:
        """Write the rows of uploads, within the limits of their tenant, and cancel their scheduled removal."""
        tenant_id, size = rows[0]["tenant_id"], sum(row["size"] for row in rows)
        limits = await self._limits(tenant_id)
        is_guest = rows[0]["path"].startswith(guest_uploads_folder(tenant_id))
        if is_guest:
            await self._check_guest_space(size)

        async def work(tx: Tx) -> None:
            if limits.are_set or is_guest:
                # The lock prevents concurrent uploads from exceeding a limit together.
                await ledger.lock_wallet(tx, tenant_id)
            if is_guest:
                await self._check_guest_limits(tx, tenant_id, new_files=len(rows), new_bytes=size)
            if limits.are_set:
                limits.check(
                    await media.upload_usage(tx, tenant_id),
                    new_files=len(rows),
                    new_bytes=size,
                    unused_hours=self._settings.unused_upload_hours,
                )
            await media.create_files(tx, rows)
            if scheduled:
                await removals.finish(tx, scheduled)

        await shard.run(TransactionStep.TENANT, work)

    async def _copy_group(self, shard: Database, group: Sequence[tuple[Path, dict[str, Any]]]) -> None:
        rows = [row for _, row in group]
        # Copies mostly wait for the disk.
        limit = asyncio.Semaphore(MAX_CONCURRENT_COPIES)

        async def copy(source: Path, row: dict[str, Any]) -> None:
            async with limit:
                with _readable(source):
                    row["content_hash"] = await self._copy(source, row["path"], row["size"])

        scheduled = await self._schedule_removal(shard, rows)
        try:
            async with asyncio.TaskGroup() as tasks:
                for source, row in group:
                    tasks.create_task(copy(source, row))
            await self._write(shard, rows, scheduled)
        except BaseException as error:
            await self._objects.remove_many([row["path"] for row in rows])
            if isinstance(error, ExceptionGroup):
                # The caller gets only the first error.
                raise error.exceptions[0] from None
            raise

    async def _copy(self, source: Path, path: str, size: int) -> str:
        """Copy one file and return its SHA-256."""
        with await asyncio.to_thread(source.open, "rb") as file:
            return await self._send(file, path, size)

    async def _send(self, file: BinaryIO, path: str, size: int) -> str:
        """Write the rest of an open file to object storage and return its SHA-256."""
        digest = hashlib.sha256()
        if size > PIECE_BYTES and isinstance(self._objects, LocalObjects):
            async with self._objects.receive(path, size=size) as receiver:
                while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                    digest.update(piece)
                    await receiver.write(piece)
        else:
            content = await asyncio.to_thread(file.read)
            digest.update(content)
            await self._objects.put(path, content)
        return digest.hexdigest()

    async def create_video(
        self, user: User, *, original_file_id: str, title: str | None = None, effect_id: int | None = None
    ) -> VideoRecord:
        """Create a video from an uploaded file."""
        shard = await self._databases.shard_of(user.tenant_id)
        found = await self._files(shard, user, [original_file_id])
        if not found:
            raise InvalidInput(errors={"original_file_id": "You have no such file."})
        if effect_id is not None:
            await self._library.effect(id_=effect_id)
        await self._require_uploaded(found[0])
        video_id = new_id()
        await shard.run(
            TransactionStep.TENANT,
            lambda tx: media.create_video(
                tx,
                id=video_id,
                tenant_id=user.tenant_id,
                user_id=user.id,
                title=title,
                effect_id=effect_id,
                original_file_id=original_file_id,
            ),
        )
        async with shard.read() as tx:
            return (await media.videos_of(tx, user.tenant_id, [video_id]))[video_id]

    async def _require_uploaded(self, file: FileRecord) -> None:
        stat = await self._objects.stat(file.path)
        if stat is None:
            raise InvalidInput(errors={"original_file_id": "This file has not been uploaded yet."})
        if file.size is not None and stat.size != file.size:
            problem = f"This file has {stat.size} bytes, not {file.size}: upload it again."
            raise InvalidInput(errors={"original_file_id": problem})

    async def _check_effect(self, new: AnnouncedUpload) -> None:
        """Refuse a wrong media type before the upload rather than after it."""
        if new.effect_id is None:
            return
        effect = await self._library.effect(id_=new.effect_id)
        for input_ in effect.inputs:
            if input_.is_primary_input and not new.mime_type.startswith(f"{input_.type}/"):
                raise InvalidInput(errors={"mime_type": f"This effect takes {input_.type}, not {new.mime_type}."})

    async def _files(self, shard: Database, user: User, ids: Sequence[str]) -> list[FileRecord]:
        async with shard.read() as tx:
            return list((await media.files_of(tx, user.tenant_id, ids)).values())


def _row(user: User, new: AnnouncedUpload, *, is_guest: bool) -> dict[str, Any]:
    id_ = new_id()
    folder = (guest_uploads_folder if is_guest else uploads_folder)(user.tenant_id)
    return {
        "id": id_,
        "tenant_id": user.tenant_id,
        "user_id": user.id,
        "disk": DISK,
        "path": f"{folder}{id_}{extension_of(new)}",
        "mime_type": new.mime_type,
        "size": new.size,
        "original_filename": new.original_filename,
    }


@contextmanager
def _readable(source: Path) -> Iterator[None]:
    """Turn errors of reading a local file into `InvalidInput`. Errors of object storage pass through."""
    try:
        yield
    except OSError as error:
        raise InvalidInput(errors={"file": f"{source.name} cannot be read: {error.strerror}."}) from None


def _describe(source: Path) -> AnnouncedUpload:
    with _readable(source):
        size = source.stat().st_size
    guessed = guess_media_type(source.name) or "application/octet-stream"
    return AnnouncedUpload(mime_type=guessed, size=size, original_filename=source.name)
