"""Making a backup while everything goes on.

All databases are copied as they are at one moment, so that none is ahead of another. Objects come after them: an object
is there before the row that names it, so each row of the copy finds its own.
"""

import shutil
from itertools import chain, count
from pathlib import Path

from comfyrelay import __version__
from comfyrelay.clock import utc_now
from comfyrelay.errors import InvalidInput, NotFound
from comfyrelay.services.backup.copy_file import Counter, Progress, disk_errors, keep, make_folder, read
from comfyrelay.services.backup.locations import DATABASES, FILES, OBJECTS, Places
from comfyrelay.services.backup.manifest import PREFIX, Manifest, ManifestEntry
from comfyrelay.services.backup.verify import leads_out
from comfyrelay.settings import Settings
from comfyrelay.store.sqlite_copy import copy_databases, is_database, revision_of


def back_up(
    settings: Settings, into: Path, *, progress: Progress = lambda _done, _total: None
) -> tuple[Path, Manifest]:
    """Make a folder in this one, named by the time, with everything in it."""
    places = Places.from_settings(settings)
    into = into.expanduser().resolve()
    for path in places.databases.values():
        if not path.exists():
            raise NotFound(
                f"There is nothing to back up: {path} does not exist. If your data is in another folder, name that one "
                "with --data-dir."
            )
    for inside in (places.data_dir, places.objects):
        if into.is_relative_to(inside):
            raise InvalidInput(f"A backup in {inside} would be part of the next one. Name a folder outside it.")
    with disk_errors():
        folder = _new_folder(into)
        try:
            return folder, _fill(folder, places, progress)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


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


def _fill(folder: Path, places: Places, progress: Progress) -> Manifest:
    others = list(places.files())
    databases = {f"{DATABASES}/{name}": path for name, path in places.databases.items()}
    databases |= {_path_of(each, places): each for each in others if not each.is_symlink() and is_database(each)}
    everything = chain(databases.values(), others, places.object_files())
    # a database is written, and then read for its hash
    counter = Counter(progress, sum(each.lstat().st_size for each in (*everything, *databases.values())))

    for path in databases:
        make_folder((folder / path).parent)
    copy_databases({path: folder / name for name, path in databases.items()}, on_copied=counter.add)
    made_at = utc_now()
    entries = [_database(folder, path, source, counter) for path, source in databases.items()]
    for each in places.object_files():
        path = f"{OBJECTS}/{each.relative_to(places.objects).as_posix()}"
        entries.append(keep(each, folder, path, counter, is_immutable=True))
    for each in others:
        if (path := _path_of(each, places)) not in databases:
            entries.append(keep(each, folder, path, counter))
    found = [each for each in entries if each is not None]
    manifest = Manifest(
        version=__version__,
        made_at=made_at,
        revisions={name: revision_of(folder / DATABASES / name) for name in places.databases},
        entries=[each for each in found if not leads_out(each, places)],
        left_out=[str(places.target(each.path)) for each in found if leads_out(each, places)],
    )
    manifest.write(folder)
    return manifest


def _path_of(path: Path, places: Places) -> str:
    return f"{FILES}/{path.relative_to(places.data_dir).as_posix()}"


def _database(folder: Path, path: str, source: Path, counter: Counter) -> ManifestEntry | None:
    digest, size = read(folder / path, counter)
    return ManifestEntry(path=path, size=size, sha256=digest, mode=source.stat().st_mode & 0o777)
