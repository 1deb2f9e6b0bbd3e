"""Locations of the data to back up: databases, objects and other files of the data folder."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from comfyrelay.errors import ConfigurationError
from comfyrelay.media.previews import PREVIEWS
from comfyrelay.settings import Settings
from comfyrelay.store.database import async_url
from comfyrelay.store.migrate import Schema
from comfyrelay.store.sqlite_copy import SIDE_FILES
from comfyrelay.system.atomic import PART_PREFIX
from comfyrelay.system.safe_names import path_of_url

# Top-level folders of a backup.
DATABASES, OBJECTS, FILES = "databases", "objects", "files"
CENTRAL = "central.db"
# Prefixes of the folders for replaced files and for staged files of a restore.
ASIDE, STAGE = "before-restore-", ".restore-"
# The prefix of the folders with copies of the databases before an upgrade.
BEFORE_UPGRADE = "before-upgrade-"
# Files and folders that a backup leaves out and a restore leaves in place.
OWN_PREFIXES = (ASIDE, STAGE, BEFORE_UPGRADE)
# The file in the data folder that lists the moves of a restore.
PLAN = f"{STAGE}moves.json"

# State of running processes, and files that are recreated. Everything else in the data folder is backed up.
_TRANSIENT = (
    "lock",
    ".try.db",
    "simulator",
    "worker/*/lock",
    # Leases and their files, because the queue leases those jobs again after a restore.
    *(f"worker/*/{name}" for name in ("held", "left", "work", "assets")),
)
_HOWTO = "See docs/howto/backup.md for how to back up PostgreSQL and S3."


@dataclass(frozen=True, kw_only=True, slots=True)
class DataLocations:
    """Paths of all data."""

    data_dir: Path
    # Paths by name in a backup.
    databases: dict[str, Path]
    objects: Path

    @classmethod
    def from_settings(cls, settings: Settings) -> "DataLocations":
        """Read the paths from the settings. Raises `ConfigurationError` for data outside SQLite and folders."""
        urls = {CENTRAL: settings.central_url, **{shard_file(name): url for name, url in settings.shard_urls.items()}}
        return cls(
            data_dir=settings.data_dir.resolve(),
            databases={name: _sqlite_file(url) for name, url in urls.items()},
            objects=_folder(settings.objects_url),
        )

    def schema_of(self, name: str) -> Schema:
        return Schema.CENTRAL if name == CENTRAL else Schema.TENANT

    def files(self) -> Iterator[Path]:
        """Yield the files of the data folder except databases and objects."""
        return walk(self.data_dir, exclude=lambda path: path == self.objects or self._is_excluded(path))

    def object_files(self) -> Iterator[Path]:
        """Yield the objects except previews, which belong to running jobs."""
        return walk(self.objects, exclude=lambda path: path == self.objects / PREVIEWS)

    def _is_excluded(self, path: Path) -> bool:
        if path in self.databases.values():
            return True
        relative = PurePosixPath(path.relative_to(self.data_dir).as_posix())
        return any(len(relative.parts) == pattern.count("/") + 1 and relative.match(pattern) for pattern in _TRANSIENT)

    def is_backed_up(self, target: Path, entry: str) -> bool:
        """Whether a backup can contain this target under this entry.

        A backup never contains the state of a process, or a file under an entry of another kind.
        """
        if any(part.startswith((PART_PREFIX, *OWN_PREFIXES)) for part in target.relative_to(self.base(entry)).parts):
            return False
        if _is_partial(target.name):
            return False
        if self.base(entry) == self.objects:
            return True
        above = [path for path in (target, *target.parents) if path != self.data_dir]
        inside = [path for path in above if path.is_relative_to(self.data_dir)]
        return not any(path == self.objects or self._is_excluded(path) for path in inside)

    def base(self, entry: str) -> Path:
        """Return the root folder of an entry: the folder of objects, or the data folder for other files."""
        return self.objects if entry.startswith(f"{OBJECTS}/") else self.data_dir

    def target(self, entry: str) -> Path:
        """Return the path to which an entry is restored."""
        kind, _, rest = entry.partition("/")
        return self.databases[rest] if kind == DATABASES else self.base(entry) / rest

    def move_root(self, target: Path) -> Path:
        """Return the folder inside which a target can be renamed. The folders may be on separate disks."""
        for folder in (self.data_dir, self.objects):
            if target.is_relative_to(folder):
                return folder
        return target.parent


def shard_file(name: str) -> str:
    return f"shards/{quote(name, safe='')}.db"


def walk(folder: Path, *, exclude: Callable[[Path], bool] = lambda _path: False) -> Iterator[Path]:
    """Yield all files and links below a folder, sorted, without temporary files and sockets."""
    try:
        found = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in found:
        path = Path(entry.path)
        if exclude(path) or entry.name.startswith((PART_PREFIX, *OWN_PREFIXES)) or _is_temporary(path):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from walk(path, exclude=exclude)
        elif entry.is_symlink() or entry.is_file():
            yield path


def _is_temporary(path: Path) -> bool:
    """Whether the file is a side file of an SQLite database or a partially written file."""
    name = path.name
    return _is_partial(name) or any(
        name.endswith(end) and path.with_name(name.removesuffix(end)).is_file() for end in SIDE_FILES
    )


def _is_partial(name: str) -> bool:
    return name.startswith(".") and name.endswith(".part")


def _sqlite_file(url: str) -> Path:
    parsed = async_url(url)
    if parsed.get_backend_name() != "sqlite":
        raise ConfigurationError(
            f"Only SQLite databases can be copied, and the settings name another database. {_HOWTO}"
        )
    return Path(parsed.database or "").absolute().resolve()


def _folder(url: str) -> Path:
    if (path := path_of_url(url)) is None:
        raise ConfigurationError(
            f"Only local files can be copied, and the settings name another object store. {_HOWTO}"
        )
    return Path(path).absolute().resolve()
