"""Copy chosen outputs of the gallery into a folder below the output folder."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from comfyrelay.desk.batches.output_copies import copy_file, folder_name
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
    engine: Engine, tenant_id: str, ids: Sequence[str], *, root: Path, folder: str, umask: int | None
) -> ExportResult:
    """Copy outputs into a folder below `root` under readable names.

    Existing files are kept: a copy gets another name. A failure does not stop the other copies.
    """
    place = await asyncio.to_thread(_inside, root, folder)
    entries = await engine.gallery.zips.list_entries(tenant_id, ids, in_folders=False)
    done = ExportResult(folder=place)
    there = {entry.output.id for entry in entries}
    done.not_copied.extend(NotCopied(id=id_, detail="It is not there.") for id_ in ids if id_ not in there)
    for entry in entries:
        whose = f"{entry.output.job_id[-8:]}-{entry.output.number}"
        try:
            async with _on_disk(engine.objects, entry.output, root) as source:
                put = await asyncio.to_thread(copy_file, source, place / entry.name, whose, umask)
            done.copied.append(put)
        except ComfyRelayError as error:
            done.not_copied.append(NotCopied(id=entry.output.id, detail=error.detail))
        except OSError as error:
            done.not_copied.append(NotCopied(id=entry.output.id, detail=f"It cannot be written: {error.strerror}."))
    return done


def _inside(root: Path, wanted: str) -> Path:
    place = root / folder_name(wanted, field="folder")
    if not place.resolve().is_relative_to(root.resolve()):
        raise InvalidInput(errors={"folder": "This is a link that leads out of the output folder."})
    return place


@asynccontextmanager
async def _on_disk(objects: ObjectStore, made: GalleryOutput, root: Path) -> AsyncIterator[Path]:
    """Yield the stored file if it is local, otherwise a temporary download."""
    if isinstance(objects, LocalObjects):
        stored = await objects.file_of(made.path)
        if stored is None:
            raise NotFound("The file is not in storage any more.")
        yield stored
        return
    # on the target disk, so that a lack of space shows here
    await asyncio.to_thread(root.mkdir, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".copying-", ignore_cleanup_errors=True) as folder:
        fetched = Path(folder) / "output"
        with fetched.open("wb") as file:
            async for piece in objects.stream(made.path):
                await asyncio.to_thread(file.write, piece)
        yield fetched
