"""Stream outputs as one zip file, with at most one piece in memory."""

import asyncio
import io
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from pathlib import PurePosixPath
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from comfyrelay.domain.gallery import GalleryOutput, archive_names, file_name
from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import NotFound, StorageUnavailable
from comfyrelay.services.databases import Databases
from comfyrelay.services.gallery.listing import GalleryListing
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store.tenant.library import gallery

# Time until a download must start. A download that has started is not interrupted.
TTL_SECONDS = 900.0
MISSING = "missing.txt"
# Assumed if the size is unknown, so that the header has 64-bit fields.
_UNKNOWN_SIZE = 2**32


@dataclass(frozen=True, kw_only=True, slots=True)
class ZipEntry:
    """An output and its name in the zip file."""

    name: str
    output: GalleryOutput


class Zips:
    def __init__(self, databases: Databases, objects: ObjectStore, listing: GalleryListing) -> None:
        self._databases = databases
        self._objects = objects
        self._listing = listing

    async def create(self, user: User, ids: Sequence[str]) -> str:
        """Create a temporary download for this user, and return its id."""
        if not await self._listing.by_ids(user.tenant_id, ids):
            raise NotFound("None of these outputs exists.")
        zip_id, shard = secrets.token_urlsafe(24), await self._databases.shard_of(user.tenant_id)
        await shard.run(
            TransactionStep.GALLERY,
            lambda tx: gallery.create_zip(
                tx,
                id_=zip_id,
                tenant_id=user.tenant_id,
                user_id=user.id,
                output_ids=list(dict.fromkeys(ids)),
                ttl_seconds=TTL_SECONDS,
            ),
        )
        return zip_id

    async def open(self, user: User, zip_id: str) -> AsyncIterator[bytes]:
        """Return the pieces of the zip file."""
        async with (await self._databases.shard_of(user.tenant_id)).read() as tx:
            ids = await gallery.zip_of(tx, user.tenant_id, user.id, zip_id)
        if ids is None:
            raise NotFound("This download does not exist or has expired. Create a new one.")
        entries = await self.list_entries(user.tenant_id, ids, in_folders=True)
        found = {entry.output.id for entry in entries}
        return self._pieces(entries, missing=[id_ for id_ in ids if id_ not in found])

    async def list_entries(self, tenant_id: str, ids: Sequence[str], *, in_folders: bool) -> list[ZipEntry]:
        """Return the existing outputs with unique names. With `in_folders`, each batch has its own folder."""
        found = list((await self._listing.by_ids(tenant_id, ids)).values())
        workflows = await self._listing.workflow_names(found)

        def name_of(output: GalleryOutput) -> str:
            named = workflows.get(output.workflow_id)
            return file_name(output, named.slug if named else "")

        def folder_of(output: GalleryOutput) -> str | None:
            return (output.batch_label or "batch") if in_folders and output.batch_id is not None else None

        # In a thread, because computing thousands of names takes a while.
        names = await asyncio.to_thread(archive_names, found, name_of, folder_of)
        return [ZipEntry(name=name, output=output) for name, output in zip(names, found, strict=True)]

    async def _pieces(self, entries: Sequence[ZipEntry], *, missing: Sequence[str]) -> AsyncIterator[bytes]:
        sink, lost = _Sink(), [f"{id_}: it was deleted" for id_ in missing]
        # Media files cannot be compressed further.
        with ZipFile(sink, "w", ZIP_STORED) as archive:
            for entry in entries:
                async with aclosing(self._stream(entry.output.path)) as pieces:
                    try:
                        # Read before the header is written, so that a missing file has no entry.
                        first = await anext(pieces, b"")
                    except NotFound:
                        lost.append(f"{entry.name}: the file is missing in storage")
                        continue
                    with archive.open(_info(entry), "w") as file:
                        written = file.write(first)
                        yield sink.drain()
                        async for piece in pieces:
                            written += file.write(piece)
                            yield sink.drain()
                    if entry.output.size is not None and written != entry.output.size:
                        # Abort, so that the client gets an incomplete zip file rather than a wrong one.
                        raise StorageUnavailable(
                            f"{entry.output.path} has {written} bytes instead of {entry.output.size}."
                        )
                yield sink.drain()
            if lost:
                archive.writestr(_unused_name(MISSING, entries), "".join(f"{line}\n" for line in lost))
        yield sink.drain()

    async def _stream(self, path: str) -> AsyncGenerator[bytes, None]:
        async for piece in self._objects.stream(path):
            yield piece


class _Sink(io.RawIOBase):
    """A buffer between `ZipFile` and the response. It is not seekable, so `ZipFile` never rewrites headers."""

    def __init__(self) -> None:
        self._written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # all that ZipFile writes
        self._written += data
        return len(data)

    def drain(self) -> bytes:
        data = bytes(self._written)
        self._written.clear()
        return data


def _info(entry: ZipEntry) -> ZipInfo:
    output = entry.output
    # The zip format has no dates before 1980.
    moment = max(output.created_at.timetuple()[:6], (1980, 1, 1, 0, 0, 0))
    info = ZipInfo(entry.name, moment)
    info.external_attr = 0o644 << 16
    # The size decides between 32-bit and 64-bit fields.
    info.file_size = _UNKNOWN_SIZE if output.size is None else output.size
    return info


def _unused_name(name: str, entries: Sequence[ZipEntry]) -> str:
    """Return the name, with a number if a file or folder already has it."""
    taken = {part.casefold() for entry in entries for part in (entry.name, PurePosixPath(entry.name).parts[0])}
    stem, _, suffix = name.rpartition(".")
    others = (f"{stem} ({n}).{suffix}" for n in count(2))
    return name if name not in taken else next(other for other in others if other not in taken)
