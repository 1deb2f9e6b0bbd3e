"""Copy outputs to the user's output folder under readable names.

On the disk of the object storage the copy is a hard link and needs no extra space.
"""

import asyncio
import filecmp
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import structlog

from comfyrelay.desk.batches.folders import readable_name
from comfyrelay.desk.batches.run_files import COPIES
from comfyrelay.domain.payloads import JobPayload
from comfyrelay.domain.queue.settlement import Attempt
from comfyrelay.domain.queue.updates import UploadedOutput
from comfyrelay.domain.records.jobs import JobRecord, NewJobRecord
from comfyrelay.errors import ComfyRelayError, InvalidInput
from comfyrelay.services.engine import Engine
from comfyrelay.services.hooks import RemovedFiles
from comfyrelay.storage.local import LocalObjects
from comfyrelay.system import files
from comfyrelay.system.atomic import part_of
from comfyrelay.system.safe_names import max_name_length, plain_name
from comfyrelay.worker.files.outputs import CollectedOutput
from comfyrelay.worker.lease import Lease

log = structlog.get_logger(__name__)


class Copies:
    """One folder per batch below `root`; jobs without a batch go to `root`. `umask` overrides that of the process."""

    def __init__(self, engine: Engine, root: Path, *, umask: int | None = None) -> None:
        self._engine = engine
        self._root = root
        self._umask = umask

    async def keep(self, lease: Lease, collected: CollectedOutput, save: Callable[[], None]) -> str | None:
        """Copy the files of a run to the output folder. Returns why that failed, for the job's log.

        The job completes in any case: its output is in object storage. The chosen names are saved with the lease before
        the first copy, so a desk that was killed in between reuses them.
        """
        try:
            place = await self._place(lease)
            names = [place.name, *(f"{place.stem}_{n}{each.suffix}" for n, each in enumerate(collected.more, start=2))]
            sources = (await self._stored(lease) or collected.path, *collected.more)
            saved = {self._root / each for each in lease.about.get(COPIES, ())}
            copies = [
                (each, await asyncio.to_thread(choose_name, each, place.with_name(name), lease.job_id[-8:], saved))
                for name, each in zip(names, sources, strict=True)
            ]
            # relative to the output folder: a backup may be restored elsewhere
            lease.about[COPIES] = [chosen.relative_to(self._root).as_posix() for _, chosen in copies]
            save()
            for source, chosen in copies:
                await asyncio.to_thread(put_file, source, chosen, self._umask)
        except (OSError, ComfyRelayError) as error:
            lease.about.pop(COPIES, None)
            log.warning("desk.output_not_copied", job_id=lease.job_id, why=str(error))
            return f"The output could not be copied to the output folder: {error}. Download it from the page."
        return None

    async def keep_reused(
        self, job: NewJobRecord, batch_label: str | None, output: UploadedOutput
    ) -> dict[str, Any] | None:
        """Copy the reused output of another job. Returns the names to record.

        A desk that is killed before they are recorded leaves an orphaned file.
        """
        objects = self._engine.objects
        if not isinstance(objects, LocalObjects):
            return None
        snapshot = JobPayload.from_json(job.input_payload)
        place = self._place_of(job, snapshot, batch_label)
        try:
            source = await objects.file_of(output.path)
            if source is None:
                return None
            copied = await asyncio.to_thread(choose_name, source, place, job.id[-8:], ())
            await asyncio.to_thread(put_file, source, copied, self._umask)
        except (OSError, ComfyRelayError) as error:
            log.warning("desk.output_not_copied", job_id=job.id, why=str(error))
            return None
        return {COPIES: [copied.relative_to(self._root).as_posix()]}

    async def _stored(self, lease: Lease) -> Path | None:
        """The output in object storage, if it is local, to be linked."""
        objects = self._engine.objects
        if not isinstance(objects, LocalObjects):
            return None
        with suppress(ComfyRelayError):
            payload = await self._engine.queue.lease_payloads.of_lease(lease.dispatch_id, lease.job.lease_token)
            return await objects.file_of(payload.upload_path)
        return None

    async def _place(self, lease: Lease) -> Path:
        job, snapshot = await self._engine.jobs.views.job_with_payload(lease.job.tenant_id, lease.job_id)
        label = None
        if job.batch_id is not None and snapshot.output_folder is None:
            label = (await self._engine.jobs.batches.state(lease.job.tenant_id, job.batch_id)).label
        return self._place_of(job, snapshot, label)

    def _place_of(self, job: JobRecord | NewJobRecord, snapshot: JobPayload, batch_label: str | None) -> Path:
        seed = snapshot.seed
        suffix = snapshot.output_extension
        if job.batch_id is None:
            name = readable_name(f"{job.label or 'job'} {job.id[-8:]}", seed, 1, suffix, room=_room(self._root))
            return self._root / name
        folder = snapshot.output_folder
        if folder is None:
            # a label is not a path
            folder = f"{plain_name(batch_label or '') or 'batch'} {job.batch_id[-8:]}"
        place = self._root / folder
        return place / readable_name(job.label or "", seed, job.item_no + 1, suffix, room=_room(place))


def remove_copies(root: Path, attempts: Iterable[Attempt]) -> RemovedFiles:
    """Delete a job's copies. Files that a script saved elsewhere belong to the user."""
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
            # the batch folder, if it is empty now
            if path.parent != root:
                path.parent.rmdir()
    return RemovedFiles(removed=removed, left=left)


def copies_of(root: Path, attempts: Iterable[Attempt]) -> list[Path]:
    """Existing files below the output folder that belong to a job."""
    named = dict.fromkeys(root / text for attempt in attempts for text in (attempt.about or {}).get(COPIES, ()))
    return [path for path in named if path.is_file() and path.resolve().is_relative_to(root.resolve())]


def folder_name(wanted: str, *, field: str = "output_folder") -> str:
    """Return a folder name below the output folder, or raise `InvalidInput` for this `field`."""
    parts = wanted.replace("\\", "/").split("/")
    if not wanted.strip() or wanted.startswith(("/", "~", "\\")) or ".." in parts or ":" in wanted or "\0" in wanted:
        raise InvalidInput(
            errors={field: "Name a folder inside the output folder; another output folder is a setting."}
        )
    return "/".join(filter(None, map(plain_name, parts))) or "batch"


def _room(folder: Path) -> int:
    """Space for a name, minus the suffixes for several outputs, duplicates and temporary files."""
    return max_name_length(folder) - len(" 0123abcd_99.part.")


def choose_name(source: Path, place: Path, of_whom: str, saved: Collection[Path]) -> Path:
    """Return the first name that is free or already is this file.

    A file of another job or of a person is never replaced, even with equal content. `saved` are the names that this job
    chose before the desk was killed: a file there is its own, unless its content differs.
    """
    for name in _names(place, of_whom):
        if _is_free(name) or _is_one_file(source, name) or (name in saved and _is_copy(source, name)):
            return name
    raise AssertionError("names never run out")


def put_file(source: Path, place: Path, umask: int | None) -> None:
    _make_folder(place.parent, umask)
    _put(source, place, umask, may_link=True)


def copy_file(source: Path, place: Path, of_whom: str, umask: int | None) -> Path:
    """Make a copy that the user may change. Existing files are kept; an unchanged earlier copy is reused."""
    _make_folder(place.parent, umask)
    place = next(name for name in _names(place, of_whom) if _is_free(name) or _is_copy(source, name))
    if _is_free(place):
        _put(source, place, umask, may_link=False)
    return place


def _names(place: Path, of_whom: str) -> Iterator[Path]:
    """The wanted name, then with the owner's id, then with a counter."""
    yield place
    yield place.with_name(f"{place.stem} {of_whom}{place.suffix}")
    yield from (place.with_name(f"{place.stem} {of_whom} ({n}){place.suffix}") for n in count(2))


def _is_free(place: Path) -> bool:
    # a dangling link counts as taken
    return not os.path.lexists(place)


def _is_one_file(source: Path, place: Path) -> bool:
    return place.exists() and place.samefile(source)


def _is_copy(source: Path, place: Path) -> bool:
    return place.is_file() and not place.samefile(source) and filecmp.cmp(source, place, shallow=False)


def _put(source: Path, place: Path, umask: int | None, *, may_link: bool) -> None:
    # a killed desk leaves at most one temporary file per output in the user's folder
    part = place.with_name(f".{place.name}.part")
    files.remove(part, missing_ok=True)
    with part_of(place, part=part):
        if not (may_link and _linked(source, part)):
            shutil.copyfile(source, part)
        if umask is not None:
            part.chmod(0o666 & ~umask)
    # renaming between two links of one file removes neither
    files.remove(part, missing_ok=True)


def _linked(source: Path, part: Path) -> bool:
    try:
        os.link(source, part)
    except OSError:
        # another disk, or one without hard links
        return False
    return True


def _make_folder(folder: Path, umask: int | None) -> None:
    if not folder.exists():
        _make_folder(folder.parent, umask)
        folder.mkdir(exist_ok=True)
        if umask is not None:
            folder.chmod(0o777 & ~umask)
