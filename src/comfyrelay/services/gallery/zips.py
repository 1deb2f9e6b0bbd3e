"""Many outputs as one zip file, which is made while it is sent: no more than a piece of it is ever in memory."""

import asyncio
import io
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from pathlib import PurePosixPath
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from comfyrelay.domain.gallery import MadeOutput, archive_names, file_name
from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import NotFound, StorageUnavailable
from comfyrelay.services.databases import Databases
from comfyrelay.services.gallery.listing import GalleryListing
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store.tenant.library import gallery

# To begin a download in; one that has begun goes on.
TTL_SECONDS = 900.0
MISSING = "missing.txt"
# Of a file whose size nobody knows: as if it were a large one, which every size fits.
_UNKNOWN_SIZE = 2**32


@dataclass(frozen=True, kw_only=True, slots=True)
class ZipEntry:
    """An output under the name that it has outside of the gallery."""

    name: str
    made: MadeOutput


class Zips:
    def __init__(self, databases: Databases, objects: ObjectStore, listing: GalleryListing) -> None:
        self._databases = databases
        self._objects = objects
        self._listing = listing

    async def create(self, user: User, ids: Sequence[str]) -> str:
        """Let this user download these for a while; returns under which id."""
        if not await self._listing.by_ids(user.tenant_id, ids):
            raise NotFound("None of these outputs is there.")
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
        """The zip, in pieces."""
        async with (await self._databases.shard_of(user.tenant_id)).read() as tx:
            ids = await gallery.zip_of(tx, user.tenant_id, user.id, zip_id)
        if ids is None:
            raise NotFound("There is no such download, or no longer: ask for a new one.")
        entries = await self.entries(user.tenant_id, ids, in_folders=True)
        there = {each.made.id for each in entries}
        return self._pieces(entries, missing=[each for each in ids if each not in there])

    async def entries(self, tenant_id: str, ids: Sequence[str], *, in_folders: bool) -> list[ZipEntry]:
        """Those that are there, with names of which none is another's: each batch in a folder of its own, or all in
        one."""
        found = list((await self._listing.by_ids(tenant_id, ids)).values())
        workflows = await self._listing.names(found)

        def name_of(made: MadeOutput) -> str:
            named = workflows.get(made.workflow_id)
            return file_name(made, named.slug if named else "")

        def folder_of(made: MadeOutput) -> str | None:
            return (made.batch_label or "batch") if in_folders and made.batch_id is not None else None

        # in a thread: it takes a moment for thousands
        names = await asyncio.to_thread(archive_names, found, name_of, folder_of)
        return [ZipEntry(name=name, made=made) for name, made in zip(names, found, strict=True)]

    async def _pieces(self, entries: Sequence[ZipEntry], *, missing: Sequence[str]) -> AsyncIterator[bytes]:
        sink, lost = _Sink(), [f"{each}: it was deleted" for each in missing]
        # media does not get smaller
        with ZipFile(sink, "w", ZIP_STORED) as archive:
            for entry in entries:
                async with aclosing(self._stream(entry.made.path)) as pieces:
                    try:
                        # before its header is written: one that is gone leaves no trace
                        first = await anext(pieces, b"")
                    except NotFound:
                        lost.append(f"{entry.name}: the file is not in storage any more")
                        continue
                    with archive.open(_info(entry), "w") as file:
                        written = file.write(first)
                        yield sink.take()
                        async for piece in pieces:
                            written += file.write(piece)
                            yield sink.take()
                    if entry.made.size is not None and written != entry.made.size:
                        # what was sent cannot be taken back: without its end it is no zip, and nobody takes it for one
                        raise StorageUnavailable(
                            f"Of {entry.made.path} there are {written} bytes and not {entry.made.size}."
                        )
                yield sink.take()
            if lost:
                archive.writestr(_free(MISSING, entries), "".join(f"{each}\n" for each in lost))
        yield sink.take()

    async def _stream(self, path: str) -> AsyncGenerator[bytes, None]:
        async for piece in self._objects.stream(path):
            yield piece


class _Sink(io.RawIOBase):
    """Where a zip is written to, to be taken from at once. It cannot be sought in, so nothing is written afterwards."""

    def __init__(self) -> None:
        self._written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # all that ZipFile writes
        self._written += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._written)
        self._written.clear()
        return taken


def _info(entry: ZipEntry) -> ZipInfo:
    made = entry.made
    # zip knows no years before 1980
    moment = max(made.created_at.timetuple()[:6], (1980, 1, 1, 0, 0, 0))
    info = ZipInfo(entry.name, moment)
    info.external_attr = 0o644 << 16
    # how long the fields for sizes must be
    info.file_size = _UNKNOWN_SIZE if made.size is None else made.size
    return info


def _free(name: str, entries: Sequence[ZipEntry]) -> str:
    """The name, or one with a number where a file or a folder has it."""
    taken = {part.casefold() for entry in entries for part in (entry.name, PurePosixPath(entry.name).parts[0])}
    stem, _, suffix = name.rpartition(".")
    others = (f"{stem} ({n}).{suffix}" for n in count(2))
    return name if name not in taken else next(each for each in others if each not in taken)
