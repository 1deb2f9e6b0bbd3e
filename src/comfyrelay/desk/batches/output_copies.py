"""Copy outputs to the user's output folder under readable names.

On the disk of the object storage, the copy is a hard link and needs no extra space.
"""

from __future__ import annotations

import asyncio
import filecmp
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from comfyrelay.desk.batches.copy_journal import TEMPORARY, CopyJournal, JournalEntry
from comfyrelay.desk.batches.folders import readable_name
from comfyrelay.desk.settings import DEFAULT_NAMES
from comfyrelay.domain.outputs import COPIES, COPIES_ROOT, copies_in
from comfyrelay.domain.payloads import JobPayload
from comfyrelay.domain.queue.settlement import Attempt
from comfyrelay.domain.queue.updates import UploadedOutput
from comfyrelay.domain.records.jobs import JobRecord, NewJobRecord
from comfyrelay.errors import ComfyRelayError, InvalidInput, NotFound
from comfyrelay.services.engine import Engine
from comfyrelay.services.hooks import RemovedFiles
from comfyrelay.storage.local import LocalObjects
from comfyrelay.system import files
from comfyrelay.system.atomic import part_of
from comfyrelay.system.safe_names import max_name_length, plain_name

if TYPE_CHECKING:
    from comfyrelay.worker.files.outputs import CollectedOutput
    from comfyrelay.worker.lease import Lease

log = structlog.get_logger(__name__)


class OutputCopies:
    """Copies outputs to one folder per batch below `root`, or to `root` itself for jobs without a batch.

    `umask` overrides the umask of the process. Nothing is copied before `engine` is set.
    """

    def __init__(self, root: Path, *, data_dir: Path, umask: int | None, names: str = DEFAULT_NAMES) -> None:
        self._root = self._first_root = root
        self._data_dir = data_dir.absolute()
        self._names = names
        self.journal = CopyJournal(data_dir / "copies")
        self._umask = umask
        # A name is free until its file exists, so two jobs that end together must not choose names at the same time.
        self._putting = asyncio.Lock()
        # New jobs with a reused output whose copy the database does not yet name.
        self._unrecorded: set[str] = set()
        self.engine: Engine | None = None

    def configure(self, root: Path, *, umask: int | None, names: str) -> None:
        """Use another folder and other names from now on. Existing copies are kept, even when their jobs are
        deleted."""
        self._root, self._umask, self._names = root, umask, names

    def recorded(self, root: Path) -> str:
        """Return the stored form of an output folder: relative if it is in the data folder, which may be restored
        elsewhere."""
        inside = root.is_relative_to(self._data_dir)
        return root.relative_to(self._data_dir).as_posix() if inside else str(root)

    def root_of(self, attempt: Attempt) -> Path:
        """Return the output folder of the copies of an attempt."""
        return self._root_in(attempt.about)

    def _root_in(self, about: Mapping[str, Any] | None) -> Path:
        return self._found_root((about or {}).get(COPIES_ROOT))

    def _found_root(self, recorded: str | None) -> Path:
        return self._first_root if recorded is None else self._data_dir / recorded

    def deletable(self, attempts: Iterable[Attempt]) -> list[Path]:
        """Return the existing copies that are deleted with their job: those in the current output folder."""
        return self._copies_below(self._root, attempts)

    def _copies_below(self, root: Path, attempts: Iterable[Attempt]) -> list[Path]:
        ours = (attempt for attempt in attempts if self.root_of(attempt) == root)
        paths = dict.fromkeys(root / name for attempt in ours for name in copies_in(attempt.about).values())
        return [path for path in paths if _is_below(path, root)]

    def by_number(self, attempts: Iterable[Attempt]) -> dict[int, Path]:
        """Return the existing copies of a job's outputs by the number of the output."""
        found: dict[int, Path] = {}
        for attempt in attempts:
            root = self.root_of(attempt)
            copies = {number: root / name for number, name in copies_in(attempt.about).items()}
            found |= {number: path for number, path in copies.items() if _is_below(path, root)}
        return found

    async def copy_run(self, lease: Lease, collected: CollectedOutput, save: Callable[[], None]) -> str | None:
        """Copy the files of a run to the output folder. Returns the reason of a failure, for the job's log.

        The job completes in any case, because its output is in object storage. The chosen names are saved with the
        lease before the first copy, so that a desk that was killed in between reuses them.
        """
        assert self.engine is not None
        copied: list[str] = []
        try:
            # The folder may change in the meantime.
            root, umask = self._root, self._umask
            path = await self._path(self.engine, lease, root)
            saved = {self._root_in(lease.about) / name for name in copies_in(lease.about).values()}
            async with self._putting:
                copies = []
                for number, output in enumerate((collected, *collected.more), start=1):
                    source = await self._stored_output(self.engine, lease, number) or output.path
                    wanted = _numbered(path, number, output.path.suffix)
                    chosen = await asyncio.to_thread(choose_name, source, wanted, lease.job_id[-8:], saved)
                    copies.append((source, chosen))
                # Relative to the output folder, because a backup may be restored elsewhere.
                lease.about[COPIES] = [chosen.relative_to(root).as_posix() for _, chosen in copies]
                lease.about[COPIES_ROOT] = self.recorded(root)
                save()
                for source, chosen in copies:
                    await asyncio.to_thread(put_file, source, chosen, umask)
                    copied.append(chosen.relative_to(root).as_posix())
        except (OSError, ComfyRelayError) as error:
            # Existing copies stay recorded, so that they are deleted with the job.
            lease.about[COPIES] = copied
            if not copied:
                lease.about.pop(COPIES)
                lease.about.pop(COPIES_ROOT, None)
            log.warning("desk.output_not_copied", job_id=lease.job_id, why=str(error))
            return f"The output could not be copied to the output folder: {error}. Download it from the page."
        return None

    async def copy_reused(
        self, job: NewJobRecord, batch_label: str | None, outputs: Sequence[UploadedOutput]
    ) -> dict[str, Any] | None:
        """Copy the reused outputs of another job. Returns the names to record."""
        if self.engine is None or not isinstance(self.engine.objects, LocalObjects):
            return None
        root, umask = self._root, self._umask
        copied: list[str] = []
        path = self._path_of(job, JobPayload.from_json(job.input_payload), batch_label, root)
        try:
            async with self._putting:
                copies = []
                for number, output in enumerate(outputs, start=1):
                    source = await self.engine.objects.file_of(output.path)
                    if source is None:
                        return None
                    wanted = _numbered(path, number, source.suffix)
                    copies.append((source, await asyncio.to_thread(choose_name, source, wanted, job.id[-8:], ())))
                names = [chosen.relative_to(root).as_posix() for _, chosen in copies]
                sources = [output.path for output in outputs]
                entry = JournalEntry(job_id=job.id, names=names, sources=sources, root=self.recorded(root))
                await asyncio.to_thread(self.journal.add, job.id, entry)
                self._unrecorded.add(job.id)
                for name, (source, chosen) in zip(names, copies, strict=True):
                    await asyncio.to_thread(put_file, source, chosen, umask)
                    copied.append(name)
        except (OSError, ComfyRelayError) as error:
            log.warning("desk.output_not_copied", job_id=job.id, why=str(error))
        return {COPIES: copied, COPIES_ROOT: self.recorded(root)} if copied else None

    def forget_recorded(self, job_ids: Iterable[str]) -> None:
        """Forget the copies of jobs that the database now names."""
        if recorded := self._unrecorded.intersection(job_ids):
            self._unrecorded -= recorded
            # The next start removes an entry that remains.
            with suppress(OSError):
                self.journal.remove([*recorded])

    async def before_removal(self, attempts: Sequence[Attempt], keep_files: bool) -> None:
        """Record the copies of jobs or outputs that are being deleted."""
        try:
            await asyncio.to_thread(self._record_removal, attempts, keep_files=keep_files)
        except OSError as error:
            # People delete jobs because the disk is full.
            log.warning("desk.removal_not_recorded", why=error.strerror)

    def _record_removal(self, attempts: Sequence[Attempt], *, keep_files: bool) -> None:
        names: dict[str, list[str]] = {}
        root = self._root
        for attempt in attempts:
            copies = names.setdefault(attempt.job_id, [])
            if self.root_of(attempt) == root:
                copies.extend(copies_in(attempt.about).values())
        if keep_files:
            # An earlier deletion may have failed after its entry was added.
            self.journal.remove([*names])
            return
        for job_id, copies in names.items():
            if copies:
                self.journal.add(job_id, JournalEntry(job_id=job_id, names=copies, root=self.recorded(root)))

    async def remove(self, attempts: Sequence[Attempt]) -> RemovedFiles:
        """Delete copies of jobs or outputs in the output folder. Files that a script saved elsewhere are the user's."""
        # The folder may change in the meantime.
        root = self._root
        paths = await asyncio.to_thread(self._copies_below, root, attempts)
        removed = await asyncio.to_thread(remove_copies, root, paths)
        jobs = {attempt.job_id for attempt in attempts}
        self._unrecorded -= jobs
        await asyncio.to_thread(self.journal.remove, [*jobs])
        return removed

    async def remove_leftovers(self, tenant_id: str) -> None:
        """Remove the files that a killed desk left behind: copies that the database does not name."""
        for key, entry in [*self.journal.entries()]:
            root, named = self._found_root(entry.root), await self._named_copies(tenant_id, entry)
            sources = [await self._stored_file(path) for path in entry.sources] or [None] * len(entry.names)
            try:
                for name, source in zip(entry.names, sources, strict=True):
                    await asyncio.to_thread(_remove_leftover, root, entry, name, source, is_known=name in named)
                await asyncio.to_thread(shutil.rmtree, root / f"{TEMPORARY}{key}", ignore_errors=True)
            except OSError as error:
                log.warning("desk.output_not_removed", names=entry.names, why=error.strerror)
                continue
            self.journal.remove([key])

    async def _named_copies(self, tenant_id: str, entry: JournalEntry) -> Collection[str]:
        """Return the copies of an entry that belong to a job in the database, or to the user."""
        assert self.engine is not None
        if entry.job_id is None:
            return entry.names
        try:
            about = await self.engine.jobs.overview.job_details(tenant_id, entry.job_id)
        except NotFound:
            return ()
        root = self._found_root(entry.root)
        ours = [attempt for attempt in about.attempts if self.root_of(attempt) == root]
        return {name for attempt in ours for name in copies_in(attempt.about).values()}

    async def _stored_file(self, path: str) -> Path | None:
        assert self.engine is not None
        objects = self.engine.objects
        return await objects.file_of(path) if isinstance(objects, LocalObjects) else None

    async def _stored_output(self, engine: Engine, lease: Lease, number: int) -> Path | None:
        """Return an output in local object storage, which can be linked."""
        with suppress(ComfyRelayError):
            payload = await engine.queue.lease_payloads.of_lease(lease.dispatch_id, lease.job.lease_token)
            return await self._stored_file(payload.upload_path if number == 1 else payload.upload_of(number))
        return None

    async def _path(self, engine: Engine, lease: Lease, root: Path) -> Path:
        job, payload = await engine.jobs.views.job_with_payload(lease.job.tenant_id, lease.job_id)
        label = None
        if job.batch_id is not None and payload.output_folder is None:
            label = (await engine.jobs.batches.state(lease.job.tenant_id, job.batch_id)).label
        return self._path_of(job, payload, label, root)

    def _path_of(self, job: JobRecord | NewJobRecord, payload: JobPayload, batch_label: str | None, root: Path) -> Path:
        folder, label, number = root, f"{job.label or 'job'} {job.id[-8:]}", 1
        if job.batch_id is not None:
            # The label is any text, not a path.
            default = f"{plain_name(batch_label or '') or 'batch'} {job.batch_id[-8:]}"
            folder = root / (default if payload.output_folder is None else payload.output_folder)
            label, number = job.label or "", job.item_no + 1
        # The name must fit with the suffixes for several outputs, duplicates and temporary files.
        max_length = max_name_length(folder) - len(" 0123abcd_9999.part.")
        ending, names = payload.output_extension, self._names
        return folder / readable_name(label, payload.seed, number, ending, max_length=max_length, names=names)


def _numbered(path: Path, number: int, suffix: str) -> Path:
    """Return the name of the copy of an output: `cat.png`, `cat_2.png` and so on."""
    return path if number == 1 else path.with_name(f"{path.stem}_{number}{suffix}")


def remove_copies(root: Path, paths: Iterable[Path]) -> RemovedFiles:
    removed, not_deleted = [], []
    for path in paths:
        try:
            files.remove(path)
        except OSError as error:
            log.warning("desk.output_not_removed", path=str(path), why=error.strerror)
            not_deleted.append(f"{path} ({error.strerror})")
            continue
        removed.append(str(path))
        with suppress(OSError):
            # Remove the batch folder if it is now empty.
            if path.parent != root:
                path.parent.rmdir()
    return RemovedFiles(removed=removed, not_deleted=not_deleted)


def _remove_leftover(root: Path, entry: JournalEntry, name: str, source: Path | None, *, is_known: bool) -> None:
    path = root / name
    if not path.parent.resolve().is_relative_to(root.resolve()):
        return
    files.remove(_part_path(path), missing_ok=True)
    # Never remove a user's file that has since taken the name.
    is_ours = not entry.sources or (source is not None and path.is_file() and _has_equal_content(source, path))
    if not is_known and is_ours:
        files.remove(path, missing_ok=True)
        with suppress(OSError):
            if path.parent != root:
                path.parent.rmdir()


def _is_below(path: Path, root: Path) -> bool:
    return path.is_file() and path.resolve().is_relative_to(root.resolve())


def folder_name(wanted: str, *, field: str = "output_folder") -> str:
    """Return a folder name below the output folder. Raises `InvalidInput` for this `field`."""
    parts = wanted.replace("\\", "/").split("/")
    if not wanted.strip() or wanted.startswith(("/", "~", "\\")) or ".." in parts or ":" in wanted or "\0" in wanted:
        raise InvalidInput(
            errors={field: "Name a folder inside the output folder. The output folder itself is a setting."}
        )
    return "/".join(filter(None, map(plain_name, parts))) or "batch"


def choose_name(source: Path, path: Path, owner: str, saved: Collection[Path]) -> Path:
    """Return the first name that is free or already is this file.

    A file of another job or of the user is never replaced, even if its content is equal. A reused output may be the
    same file as the copy of another job, so that does not make it a copy of this job. `saved` are the names that this
    job chose before the desk was killed. A file with such a name belongs to this job, unless its content differs.
    """
    return next(
        name
        for name in _names(path, owner)
        if _is_free(name) or (name in saved and name.is_file() and _has_equal_content(source, name))
    )


def put_file(source: Path, path: Path, umask: int | None) -> None:
    _make_folder(path.parent, umask)
    _put(source, path, umask, may_link=True)


def copy_file(
    source: Path, path: Path, owner: str, umask: int | None, *, on_chosen: Callable[[Path], None] = lambda _path: None
) -> Path:
    """Make a copy that the user may change. Existing files are kept; an unchanged earlier copy is reused.

    `on_chosen` is called with the name of a new copy.
    """
    _make_folder(path.parent, umask)
    path = next(name for name in _names(path, owner) if _is_free(name) or _is_copy(source, name))
    if _is_free(path):
        on_chosen(path)
        _put(source, path, umask, may_link=False)
    return path


def _names(path: Path, owner: str) -> Iterator[Path]:
    """Yield the preferred name, then names with the owner's id, then names with a counter."""
    yield path
    yield path.with_name(f"{path.stem} {owner}{path.suffix}")
    yield from (path.with_name(f"{path.stem} {owner} ({n}){path.suffix}") for n in count(2))


def _is_free(path: Path) -> bool:
    # A dangling link counts as taken.
    return not os.path.lexists(path)


def _is_copy(source: Path, path: Path) -> bool:
    return path.is_file() and not path.samefile(source) and filecmp.cmp(source, path, shallow=False)


def _has_equal_content(source: Path, path: Path) -> bool:
    return path.samefile(source) or filecmp.cmp(source, path, shallow=False)


def _part_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _put(source: Path, path: Path, umask: int | None, *, may_link: bool) -> None:
    # A killed desk leaves at most one temporary file per output in the user's folder.
    part = _part_path(path)
    files.remove(part, missing_ok=True)
    with part_of(path, part=part):
        if not (may_link and _try_link(source, part)):
            shutil.copyfile(source, part)
        if umask is not None:
            part.chmod(0o666 & ~umask)
    # A rename between two links of one file removes neither.
    files.remove(part, missing_ok=True)


def _try_link(source: Path, part: Path) -> bool:
    """Try to link a file. Returns `False` on another disk, or on a disk without hard links."""
    try:
        os.link(source, part)
    except OSError:
        return False
    return True


def _make_folder(folder: Path, umask: int | None) -> None:
    if not folder.exists():
        _make_folder(folder.parent, umask)
        folder.mkdir(exist_ok=True)
        if umask is not None:
            folder.chmod(0o777 & ~umask)
