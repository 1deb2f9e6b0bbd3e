"""Restore a backup: copy and check everything in staging folders, then rename it into place."""

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from comfyrelay.clock import utc_now
from comfyrelay.errors import ConfigurationError, Conflict, InvalidInput
from comfyrelay.services.backup.copy_file import (
    Progress,
    ProgressCounter,
    disk_errors,
    make_folder,
    no_progress,
    restore_file,
)
from comfyrelay.services.backup.locations import ASIDE, OWN_PREFIXES, PLAN, STAGE, DataLocations
from comfyrelay.services.backup.manifest import Manifest, find_backup
from comfyrelay.services.backup.verify import check_entries
from comfyrelay.settings import Settings
from comfyrelay.store.migrate import revisions
from comfyrelay.store.sqlite_copy import SIDE_FILES, require_closed
from comfyrelay.system import atomic
from comfyrelay.system.files import move, remove
from comfyrelay.system.folder_lock import FolderLock


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoredBackup:
    folder: Path
    manifest: Manifest
    # Folders with the replaced files, if any.
    aside: list[Path]


def restore_backup(
    settings: Settings, from_: Path, *, force: bool = False, progress: Progress = no_progress
) -> RestoredBackup:
    """Restore the backup in this folder, or its newest one. With `force`, existing data is moved aside."""
    locations = DataLocations.from_settings(settings)
    with disk_errors(), ExitStack() as opened:
        folder, manifest = find_backup(from_.expanduser().resolve())
        _check(folder, manifest, locations)
        make_folder(locations.data_dir)
        lock = FolderLock(locations.data_dir)
        lock.acquire(advice="Stop that process before the restore.")
        opened.callback(lock.release)
        undo_killed_restore(locations.data_dir)
        if not force and (existing := next(_existing(locations), None)):
            raise Conflict(f"{existing} already exists. With --force it is moved to a folder next to it and replaced.")
        for path in locations.databases.values():
            require_closed(path)
        stamp = f"{utc_now():%Y%m%dT%H%M%S.%fZ}"
        roots = sorted({locations.move_root(locations.target(entry.path)) for entry in manifest.entries})
        plan = _Plan(path=locations.data_dir / PLAN, roots=roots)
        plan.write({})
        opened.callback(remove, plan.path)
        for root in roots:
            opened.callback(_remove_stages, root)
        _stage(folder, manifest, locations, stamp, progress)
        # Check again, because staging may have taken a long time and servers take no lock.
        for path in locations.databases.values():
            require_closed(path)
        aside = {path: locations.move_root(path) / f"{ASIDE}{stamp}" / path.name for path in _existing(locations)}
        new = {staged: root / staged.name for root in roots for staged in (root / f"{STAGE}{stamp}").iterdir()}
        _move(aside | new, plan)
    return RestoredBackup(folder=folder, manifest=manifest, aside=sorted({path.parent for path in aside.values()}))


def undo_killed_restore(data_dir: Path) -> None:
    """Undo the moves of a killed restore, and remove its staged files. The caller holds the lock of the folder."""
    plan = data_dir / PLAN
    try:
        found = json.loads(plan.read_bytes())
    except FileNotFoundError:
        return
    for source, target in reversed(found["moves"]):
        if os.path.lexists(target) and not os.path.lexists(source):
            move(Path(target), Path(source))
            with suppress(OSError):
                Path(target).parent.rmdir()
    for root in found["roots"]:
        _remove_stages(Path(root))
    remove(plan)


def recover_data_folder(data_dir: Path) -> None:
    """Undo a killed restore, for processes that do not lock the data folder."""
    if (data_dir / PLAN).exists():
        lock = FolderLock(data_dir)
        lock.acquire(advice="Wait until the restore has ended.")
        try:
            undo_killed_restore(data_dir)
        finally:
            lock.release()


def _check(folder: Path, manifest: Manifest, locations: DataLocations) -> None:
    """Check that the backup is complete and matches the settings."""
    if folder.is_relative_to(locations.data_dir) or folder.is_relative_to(locations.objects):
        raise InvalidInput(
            f"The backup is in {locations.data_dir}, which the restore replaces. Move it elsewhere first."
        )
    if manifest.revisions.keys() != locations.databases.keys():
        raise ConfigurationError(
            f"The backup has the databases {', '.join(sorted(manifest.revisions))}, but the settings name "
            f"{', '.join(sorted(locations.databases))}. Set COMFYRELAY_SHARDS to the same shards."
        )
    for name, revision in manifest.revisions.items():
        if revision is not None and revision not in revisions(locations.schema_of(name)):
            raise ConfigurationError(
                f"The backup was made by ComfyRelay {manifest.version}, whose schema this version does not know. "
                "Install that version or a newer one."
            )
    check_entries(folder, manifest, locations)


def _existing(locations: DataLocations) -> Iterator[Path]:
    """Yield the topmost paths that a restore would replace."""
    for path in locations.databases.values():
        if locations.move_root(path) == path.parent != locations.data_dir:
            files = [path, *(path.with_name(f"{path.name}{end}") for end in SIDE_FILES)]
            yield from (file for file in files if file.exists())
    for folder in sorted({locations.data_dir, locations.move_root(locations.objects)}):
        if folder.exists():
            yield from (
                entry
                for entry in sorted(folder.iterdir())
                if entry.name != "lock" and not entry.name.startswith(OWN_PREFIXES)
            )


def _stage(folder: Path, manifest: Manifest, locations: DataLocations, stamp: str, progress: Progress) -> None:
    counter = ProgressCounter(progress, manifest.size)
    # Restore links last, so that no file is written through them.
    for entry in sorted(manifest.entries, key=lambda entry: entry.link is not None):
        target = locations.target(entry.path)
        root = locations.move_root(target)
        restore_file(folder, entry, root / f"{STAGE}{stamp}" / target.relative_to(root), counter)


def _move(moves: Mapping[Path, Path], plan: "_Plan") -> None:
    """Move all files or none."""
    plan.write(moves)
    done: list[tuple[Path, Path]] = []
    try:
        for source, target in moves.items():
            make_folder(target.parent)
            if os.path.lexists(target):
                # The target may be the lock file, spelled in another case on a case-insensitive disk.
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
            move(source, target)
            done.append((source, target))
    except BaseException:
        for source, target in reversed(done):
            move(target, source)
        raise
    finally:
        plan.write({})


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """The file that lists what to undo if this process is killed: moves, and the folders with staged files."""

    path: Path
    roots: Sequence[Path]

    def write(self, moves: Mapping[Path, Path]) -> None:
        listed = [[str(source), str(target)] for source, target in moves.items()]
        text = json.dumps({"moves": listed, "roots": [*map(str, self.roots)]})
        atomic.write(self.path, text.encode(), mode=0o600, is_durable=True)


def _remove_stages(root: Path) -> None:
    """Remove the staging folders of this restore and of killed ones."""
    for stage in root.glob(f"{STAGE}*"):
        if stage.name != PLAN:
            shutil.rmtree(stage, ignore_errors=True)
