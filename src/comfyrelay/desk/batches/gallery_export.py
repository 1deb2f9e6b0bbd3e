"""Copy selected gallery outputs into a folder below the output folder."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import uuid4

from comfyrelay.desk.batches.copy_journal import TEMPORARY, JournalEntry
from comfyrelay.desk.batches.output_copies import OutputCopies, copy_file, folder_name
from comfyrelay.domain.gallery import GalleryOutput
from comfyrelay.errors import ComfyRelayError, InvalidInput, NotFound
from comfyrelay.protocol.gallery import NotCopied
from comfyrelay.services.engine import Engine
from comfyrelay.storage.local import LocalObjects
from comfyrelay.storage.objects import ObjectStore


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportResult:
    folder: Path
    copied: list[Path] = field(default_factory=list)
    not_copied: list[NotCopied] = field(default_factory=list)


async def copy_chosen(
    engine: Engine,
    tenant_id: str,
    ids: Sequence[str],
    *,
    root: Path,
    folder: str,
    umask: int | None,
    outputs: OutputCopies,
) -> ExportResult:
    """Copy outputs into a folder below `root` under readable names.

    Existing files are kept: a copy gets another name. A failure does not stop the other copies.
    """
    key, journal, recorded_root = f"export-{uuid4().hex}", outputs.journal, outputs.recorded(root)

    def record(path: Path) -> None:
        journal.add(key, JournalEntry(names=[path.relative_to(root).as_posix()], root=recorded_root))

    path = root / folder_name(folder, field="folder")
    if not await asyncio.to_thread(lambda: path.resolve().is_relative_to(root.resolve())):
        raise InvalidInput(errors={"folder": "This is a link that leads out of the output folder."})
    entries = await engine.gallery.zips.list_entries(tenant_id, ids, in_folders=False)
    result = ExportResult(folder=path)
    # Until the name of a copy is chosen, only its temporary folder can be left behind.
    await asyncio.to_thread(journal.add, key, JournalEntry(names=[], root=recorded_root))
    found = {entry.output.id for entry in entries}
    result.not_copied.extend(NotCopied(id=id_, detail="The output does not exist.") for id_ in ids if id_ not in found)
    for entry in entries:
        owner = f"{entry.output.job_id[-8:]}-{entry.output.number}"
        try:
            async with _local_file(engine.objects, entry.output, root / f"{TEMPORARY}{key}") as source:
                copy = partial(copy_file, source, path / entry.name, owner, umask, on_chosen=record)
                result.copied.append(await asyncio.to_thread(copy))
        except ComfyRelayError as error:
            result.not_copied.append(NotCopied(id=entry.output.id, detail=error.detail))
        except OSError as error:
            detail = f"The copy cannot be written: {error.strerror}."
            result.not_copied.append(NotCopied(id=entry.output.id, detail=detail))
    await asyncio.to_thread(journal.remove, [key])
    return result


@asynccontextmanager
async def _local_file(objects: ObjectStore, output: GalleryOutput, temporary: Path) -> AsyncIterator[Path]:
    """Yield the stored file if it is local, otherwise a download in a temporary folder."""
    if isinstance(objects, LocalObjects):
        stored = await objects.file_of(output.path)
        if stored is None:
            raise NotFound("The file is no longer in storage.")
        yield stored
        return
    # The download is on the target disk, so that it fails if the disk is full.
    await asyncio.to_thread(temporary.mkdir, parents=True)
    try:
        path = temporary / "output"
        with path.open("wb") as file:
            async for piece in objects.stream(output.path):
                await asyncio.to_thread(file.write, piece)
        yield path
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
