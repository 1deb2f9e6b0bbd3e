"""Putting a backup back: everything is copied and checked beside its place first, and then put there by renaming."""

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from comfyrelay.clock import utc_now
from comfyrelay.errors import ConfigurationError, Conflict, InvalidInput
from comfyrelay.services.backup.copy_file import Counter, Progress, disk_errors, make_folder, no_progress, put_back
from comfyrelay.services.backup.locations import ASIDE, STAGE, Places
from comfyrelay.services.backup.manifest import Manifest, find
from comfyrelay.services.backup.verify import check_entries
from comfyrelay.settings import Settings
from comfyrelay.store.migrate import revisions
from comfyrelay.store.sqlite_copy import SIDE_FILES, require_closed
from comfyrelay.system.files import move
from comfyrelay.system.folder_lock import FolderLock


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    folder: Path
    manifest: Manifest
    # where that is which was there before, if anything was
    aside: list[Path]


def restore(settings: Settings, from_: Path, *, force: bool = False, progress: Progress = no_progress) -> Restored:
    """Put back the backup in this folder, or the newest one in it. With `force`, what is there is kept aside."""
    places = Places.from_settings(settings)
    with disk_errors(), ExitStack() as opened:
        folder, manifest = find(from_.expanduser().resolve())
        _check(folder, manifest, places)
        make_folder(places.data_dir)
        lock = FolderLock(places.data_dir)
        lock.acquire(advice="Stop it, and restore then.")
        opened.callback(lock.release)
        if not force and (there := next(_there(places), None)):
            raise Conflict(f"{there} is there already. With --force it is kept in a folder beside it, and replaced.")
        for path in places.databases.values():
            require_closed(path)
        stamp = f"{utc_now():%Y%m%dT%H%M%S.%fZ}"
        homes = sorted({places.home(places.target(each.path)) for each in manifest.entries})
        for home in homes:
            opened.callback(_remove_stages, home)
        _stage(folder, manifest, places, stamp, progress)
        # that may have taken long, and a server takes no lock
        for path in places.databases.values():
            require_closed(path)
        aside = {each: places.home(each) / f"{ASIDE}{stamp}" / each.name for each in _there(places)}
        new = {staged: home / staged.name for home in homes for staged in (home / f"{STAGE}{stamp}").iterdir()}
        _move(aside | new)
    return Restored(folder=folder, manifest=manifest, aside=sorted({each.parent for each in aside.values()}))


def _check(folder: Path, manifest: Manifest, places: Places) -> None:
    """Whether this backup is whole, and can be put here."""
    if folder.is_relative_to(places.data_dir) or folder.is_relative_to(places.objects):
        raise InvalidInput(f"The backup is in {places.data_dir}, which it is to replace. Move it elsewhere first.")
    if manifest.revisions.keys() != places.databases.keys():
        raise ConfigurationError(
            f"The backup has the databases {', '.join(sorted(manifest.revisions))}; the settings here name "
            f"{', '.join(sorted(places.databases))}. Name the same shards in COMFYRELAY_SHARDS."
        )
    for name, revision in manifest.revisions.items():
        if revision is not None and revision not in revisions(places.schema_of(name)):
            raise ConfigurationError(
                f"The backup was made by ComfyRelay {manifest.version}, whose schema this version does not know. "
                "Install that version, or a newer one."
            )
    check_entries(folder, manifest, places)


def _there(places: Places) -> Iterator[Path]:
    """What a restore would replace, each as far up as it can be moved."""
    for path in places.databases.values():
        if places.home(path) == path.parent != places.data_dir:
            beside = [path, *(path.with_name(f"{path.name}{end}") for end in SIDE_FILES)]
            yield from (file for file in beside if file.exists())
    for folder in sorted({places.data_dir, places.home(places.objects)}):
        if folder.exists():
            yield from (
                entry
                for entry in sorted(folder.iterdir())
                if entry.name != "lock" and not entry.name.startswith((ASIDE, STAGE))
            )


def _stage(folder: Path, manifest: Manifest, places: Places, stamp: str, progress: Progress) -> None:
    counter = Counter(progress, manifest.size)
    # links last: nothing is written through them
    for each in sorted(manifest.entries, key=lambda entry: entry.link is not None):
        target = places.target(each.path)
        home = places.home(target)
        put_back(folder, each, home / f"{STAGE}{stamp}" / target.relative_to(home), counter)


def _move(moves: Mapping[Path, Path]) -> None:
    """All of them, or none."""
    done: list[tuple[Path, Path]] = []
    try:
        for source, target in moves.items():
            make_folder(target.parent)
            if os.path.lexists(target):
                # to some disks, the lock by another spelling
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
            move(source, target)
            done.append((source, target))
    except BaseException:
        for source, target in reversed(done):
            move(target, source)
        raise


def _remove_stages(home: Path) -> None:
    """This restore's, and those of one that was killed."""
    for each in home.glob(f"{STAGE}*"):
        shutil.rmtree(each, ignore_errors=True)
