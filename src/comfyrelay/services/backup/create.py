"""Create a backup while the system runs.

All databases are copied as of one moment, so that none is ahead of another. Objects are copied afterwards: an object is
written before the row that names it, so the backup contains the objects of all its rows.
"""

import shutil
from contextlib import suppress
from itertools import chain, count
from pathlib import Path

from comfyrelay import __version__
from comfyrelay.clock import utc_now
from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.services.backup.copy_file import (
    Progress,
    ProgressCounter,
    disk_errors,
    hash_file,
    make_folder,
    no_progress,
    store_file,
)
from comfyrelay.services.backup.locations import DATABASES, FILES, OBJECTS, DataLocations
from comfyrelay.services.backup.manifest import NAME, PREFIX, Manifest, ManifestEntry
from comfyrelay.services.backup.verify import points_outside
from comfyrelay.settings import Settings
from comfyrelay.store.sqlite_copy import copy_databases, is_database, revision_of
from comfyrelay.system import files
from comfyrelay.system.folder_lock import LOCK_FILE, FolderLock


def create_backup(settings: Settings, into: Path, *, progress: Progress = no_progress) -> tuple[Path, Manifest]:
    """Create a backup in a new subfolder with the time in its name."""
    locations = DataLocations.from_settings(settings)
    into = into.expanduser().resolve()
    for path in locations.databases.values():
        if not path.exists():
            raise NotFound(
                f"There is nothing to back up: {path} does not exist. If your data is in another folder, pass it with "
                "--data-dir."
            )
    for inside in (locations.data_dir, locations.objects):
        if into.is_relative_to(inside):
            raise InvalidInput(f"A backup in {inside} would be part of the next one. Choose a folder outside it.")
    with disk_errors():
        _remove_killed(into)
        folder = _new_folder(into)
        lock = FolderLock(folder)
        lock.acquire(advice="Choose another folder.")
        try:
            manifest = _fill(folder, locations, progress)
            manifest.write(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            lock.release()
            files.remove(folder / LOCK_FILE, missing_ok=True)
        return folder, manifest


def _remove_killed(into: Path) -> None:
    """Remove the incomplete backups of killed processes, which no process locks."""
    for folder in into.glob(f"{PREFIX}*"):
        # The folder is empty if the process was killed before it took the lock.
        with suppress(OSError):
            folder.rmdir()
        if not (folder / LOCK_FILE).exists() or FolderLock(folder).holder() is not None:
            continue
        if (folder / NAME).exists():
            files.remove(folder / LOCK_FILE)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _new_folder(into: Path) -> Path:
    make_folder(into)
    name = f"{PREFIX}{utc_now():%Y%m%dT%H%M%SZ}"
    for number in count(1):
        folder = into / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("unreachable")


def _fill(folder: Path, locations: DataLocations, progress: Progress) -> Manifest:
    others = list(locations.files())
    databases = {f"{DATABASES}/{name}": path for name, path in locations.databases.items()}
    databases |= {
        _backup_path(other, locations): other for other in others if not other.is_symlink() and is_database(other)
    }
    everything = chain(databases.values(), others, locations.object_files())
    # Databases count twice, because they are copied and then hashed.
    counter = ProgressCounter(progress, sum(path.lstat().st_size for path in (*everything, *databases.values())))

    for path in databases:
        make_folder((folder / path).parent)
    copy_databases({path: folder / name for name, path in databases.items()}, on_copied=counter.add)
    made_at = utc_now()
    entries: list[ManifestEntry | None] = []
    for path, source in databases.items():
        digest, size = hash_file(folder / path, counter)
        mode = source.stat().st_mode & 0o777
        entries.append(ManifestEntry(path=path, size=size, sha256=digest, mode=mode))
    for object_file in locations.object_files():
        path = f"{OBJECTS}/{object_file.relative_to(locations.objects).as_posix()}"
        entries.append(store_file(object_file, folder, path, counter, is_immutable=True))
    for other in others:
        if (path := _backup_path(other, locations)) not in databases:
            entries.append(store_file(other, folder, path, counter))
    found = [entry for entry in entries if entry is not None]
    return Manifest(
        version=__version__,
        made_at=made_at,
        revisions={name: revision_of(folder / DATABASES / name) for name in locations.databases},
        entries=[entry for entry in found if not points_outside(entry, locations)],
        left_out=[str(locations.target(entry.path)) for entry in found if points_outside(entry, locations)],
    )


def _backup_path(path: Path, locations: DataLocations) -> str:
    return f"{FILES}/{path.relative_to(locations.data_dir).as_posix()}"
