"""Outputs where a person looks for them, under names that say what they are.

Where the output folder is on the disk of the queue's own storage, a file there is the stored one under a second name:
it takes its room once. On another disk it is a copy.
"""

import asyncio
import os
import re
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

import structlog

from comfyrelay.atomic import part_of
from comfyrelay.desk.batches.folders import readable_name
from comfyrelay.desk.batches.run_files import COPIES
from comfyrelay.domain.settlement import Attempt
from comfyrelay.errors import ComfyRelayError, InvalidInput
from comfyrelay.portable import files
from comfyrelay.portable.names import room_below, usable
from comfyrelay.services.engine import Engine
from comfyrelay.services.jobs.removal import RemovedFiles
from comfyrelay.storage.local import LocalObjects
from comfyrelay.worker.files.outputs import Collected
from comfyrelay.worker.lease import Lease

log = structlog.get_logger(__name__)

_FOLDER = re.compile(r"[^\w .()+-]+")


class Copies:
    """One folder for each batch below `root`; jobs of no batch are in `root` itself. `umask` says who may read them, if
    not that of this process."""

    def __init__(self, engine: Engine, root: Path, *, umask: int | None = None) -> None:
        self._engine = engine
        self._root = root
        self._umask = umask

    async def keep(self, lease: Lease, collected: Collected) -> str | None:
        """Put all that a run made there, and note where it is. When that fails, the job is done all the same: its
        output is in the queue's storage. Returns why it failed, for the job's log."""
        try:
            place = await self._place(lease)
            names = [place.name, *(f"{place.stem}_{n}{each.suffix}" for n, each in enumerate(collected.more, start=2))]
            sources = (await self._stored(lease) or collected.path, *collected.more)
            # from before this desk was killed
            noted = {self._root / each for each in lease.about.get(COPIES, ())}
            copied = [
                await asyncio.to_thread(_put, each, place.with_name(name), lease.job_id[-8:], noted, self._umask)
                for name, each in zip(names, sources, strict=True)
            ]
        except (OSError, ComfyRelayError) as error:
            log.warning("desk.output_not_copied", job_id=lease.job_id, why=str(error))
            return f"The output could not be copied to the output folder: {error}. Download it from the page."
        # below the output folder, wherever that is when somebody asks: a backup may be restored elsewhere
        lease.about[COPIES] = [each.relative_to(self._root).as_posix() for each in copied]
        return None

    async def _stored(self, lease: Lease) -> Path | None:
        """The output in the queue's own storage, where that is on this machine: later it gets its name by a link."""
        objects = self._engine.objects
        if not isinstance(objects, LocalObjects):
            return None
        with suppress(ComfyRelayError):
            handed = await self._engine.queue.handover.of_lease(lease.dispatch_id, lease.job.lease_token)
            return await objects.file_of(handed.upload_path)
        return None

    async def _place(self, lease: Lease) -> Path:
        job, snapshot = await self._engine.jobs.views.job_with_snapshot(lease.job.tenant_id, lease.job_id)
        seed = snapshot.seed
        suffix = snapshot.output_extension
        if job.batch_id is None:
            name = readable_name(f"{job.label or 'job'} {job.id[-8:]}", seed, 1, suffix, room=_room(self._root))
            return self._root / name
        folder = snapshot.output_folder
        if folder is None:
            batch = await self._engine.jobs.batches.state(lease.job.tenant_id, job.batch_id)
            # a label is no path, whatever is in it
            folder = f"{_plain(batch.label or '') or 'batch'} {job.batch_id[-8:]}"
        place = self._root / folder
        return place / readable_name(job.label or "", seed, job.item_no + 1, suffix, room=_room(place))


def remove_copies(root: Path, attempts: Iterable[Attempt]) -> RemovedFiles:
    """Remove what was put below the output folder for a job. What a script saved elsewhere is its user's."""
    removed, left = [], []
    for path in copies_of(root, attempts):
        try:
            files.remove(path)
        except OSError as error:
            log.warning("desk.output_not_removed", path=str(path), why=error.strerror)
            left.append(f"{path} ({error.strerror})")
            continue
        removed.append(str(path))
        with suppress(OSError):
            # its batch's folder, when it was the last in it
            if path.parent != root:
                path.parent.rmdir()
    return RemovedFiles(removed=removed, left=left)


def copies_of(root: Path, attempts: Iterable[Attempt]) -> list[Path]:
    """The files below the output folder that belong to a job, as far as they are there."""
    named = dict.fromkeys(root / text for each in attempts for text in (each.about or {}).get(COPIES, ()))
    return [path for path in named if path.is_file() and path.resolve().is_relative_to(root.resolve())]


def folder_name(wanted: str) -> str:
    """A folder below the output folder. `InvalidInput` for one that is elsewhere."""
    parts = wanted.replace("\\", "/").split("/")
    if not wanted.strip() or wanted.startswith(("/", "~", "\\")) or ".." in parts or ":" in wanted or "\0" in wanted:
        raise InvalidInput(
            errors={"output_folder": "Name a folder inside the output folder; another output folder is a setting."}
        )
    return "/".join(filter(None, map(_plain, parts))) or "batch"


def _room(folder: Path) -> int:
    """For a name; several outputs of a job are numbered, the same name twice is marked, and parts are named like it."""
    return room_below(folder) - len(" 0123abcd_99.part.")


def _plain(name: str) -> str:
    plain = _FOLDER.sub("-", name).strip(" .-")[:80].rstrip(" .-")
    return usable(plain) if plain else ""


def _put(source: Path, place: Path, of_whom: str, noted: Collection[Path], umask: int | None) -> Path:
    """Returns where it is; what another job or a person has put there stays, also where its content is the same: it
    goes when that job is deleted. `noted` are those of this very job."""
    _make_folder(place.parent, umask)
    if place.exists() and place not in noted and not place.samefile(source):
        place = place.with_name(f"{place.stem} {of_whom}{place.suffix}")
    # in a person's folder a desk that is killed leaves no more than one part for each file
    part = place.with_name(f".{place.name}.part")
    files.remove(part, missing_ok=True)
    with part_of(place, part=part):
        try:
            os.link(source, part)
        except OSError:
            # another disk, or one that has one name for a file only
            shutil.copyfile(source, part)
        if umask is not None:
            part.chmod(0o666 & ~umask)
    # of two names of one file a rename removes neither
    files.remove(part, missing_ok=True)
    return place


def _make_folder(folder: Path, umask: int | None) -> None:
    if not folder.exists():
        _make_folder(folder.parent, umask)
        folder.mkdir(exist_ok=True)
        if umask is not None:
            folder.chmod(0o777 & ~umask)
