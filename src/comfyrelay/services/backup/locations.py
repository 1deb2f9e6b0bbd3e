"""What there is to back up, and where it is: databases, objects, and the other files of the data folder."""

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

# In a backup, the folders of these three kinds.
DATABASES, OBJECTS, FILES = "databases", "objects", "files"
CENTRAL = "central.db"
# A restore keeps here what was there before, and works there before it puts anything in its place.
ASIDE, STAGE = "before-restore-", ".restore-"

# What belongs to a process that runs, or is made again when it is gone. Everything else in the data folder is kept.
_TRANSIENT = (
    "lock",
    ".try.db",
    "simulator",
    "worker/*/lock",
    # Leases and their files: the queue gives what a worker held when it was copied to the next one.
    *(f"worker/*/{name}" for name in ("held", "left", "work", "assets")),
)
_HOWTO = "See docs/howto/backup.md for how to back up PostgreSQL and S3."


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Where everything is, as the settings have it."""

    data_dir: Path
    # by their names in a backup
    databases: dict[str, Path]
    objects: Path

    @classmethod
    def from_settings(cls, settings: Settings) -> "Places":
        """`ConfigurationError` where something is neither SQLite nor a folder."""
        urls = {CENTRAL: settings.central_url, **{shard_file(name): url for name, url in settings.shard_urls.items()}}
        return cls(
            data_dir=settings.data_dir.resolve(),
            databases={name: _sqlite_file(url) for name, url in urls.items()},
            objects=_folder(settings.objects_url),
        )

    def schema_of(self, name: str) -> Schema:
        return Schema.CENTRAL if name == CENTRAL else Schema.TENANT

    def files(self) -> Iterator[Path]:
        """The files of the data folder that are none of these databases, and no objects."""
        return walk(self.data_dir, leave_out=lambda path: path == self.objects or self._is_left_out(path))

    def object_files(self) -> Iterator[Path]:
        """The objects, but for previews: those are of jobs that run just now."""
        return walk(self.objects, leave_out=lambda path: path == self.objects / PREVIEWS)

    def _is_left_out(self, path: Path) -> bool:
        if path in self.databases.values():
            return True
        place = PurePosixPath(path.relative_to(self.data_dir).as_posix())
        return any(len(place.parts) == each.count("/") + 1 and place.match(each) for each in _TRANSIENT)

    def is_kept(self, target: Path, entry: str) -> bool:
        """Whether a backup has a file at this place under this path: it is of its kind, and of no process."""
        if any(each.startswith((PART_PREFIX, ASIDE, STAGE)) for each in target.relative_to(self.base(entry)).parts):
            return False
        if _is_unnamed(target.name):
            return False
        if self.base(entry) == self.objects:
            return True
        above = [each for each in (target, *target.parents) if each != self.data_dir]
        inside = [each for each in above if each.is_relative_to(self.data_dir)]
        return not any(each == self.objects or self._is_left_out(each) for each in inside)

    def base(self, entry: str) -> Path:
        """The folder below which a backup's objects, or its other files, belong."""
        return self.objects if entry.startswith(f"{OBJECTS}/") else self.data_dir

    def target(self, entry: str) -> Path:
        """Where what has this path in a backup belongs."""
        kind, _, rest = entry.partition("/")
        match kind:
            case "databases":
                return self.databases[rest]
            case _:
                return self.base(entry) / rest

    def home(self, target: Path) -> Path:
        """The folder within which a file is put in its place by renaming. Each may be a disk of its own."""
        for folder in (self.data_dir, self.objects):
            if target.is_relative_to(folder):
                return folder
        return target.parent


def shard_file(name: str) -> str:
    return f"shards/{quote(name, safe='')}.db"


def walk(folder: Path, *, leave_out: Callable[[Path], bool] = lambda _path: False) -> Iterator[Path]:
    """Every file and link below a folder but those being written, sorted; sockets and the like are no files."""
    try:
        found = sorted(os.scandir(folder), key=lambda each: each.name)
    except FileNotFoundError:
        return
    for each in found:
        path = Path(each.path)
        if leave_out(path) or each.name.startswith((PART_PREFIX, ASIDE, STAGE)) or _is_beside(path):
            continue
        if each.is_dir(follow_symlinks=False):
            yield from walk(path, leave_out=leave_out)
        elif each.is_symlink() or each.is_file():
            yield path


def _is_beside(path: Path) -> bool:
    """Whether SQLite keeps it beside a database, or somebody has not yet given it its name."""
    name = path.name
    return _is_unnamed(name) or any(
        name.endswith(end) and path.with_name(name.removesuffix(end)).is_file() for end in SIDE_FILES
    )


def _is_unnamed(name: str) -> bool:
    return name.startswith(".") and name.endswith(".part")


def _sqlite_file(url: str) -> Path:
    parsed = async_url(url)
    if parsed.get_backend_name() != "sqlite":
        raise ConfigurationError(f"Only SQLite files can be copied, and a database here is another one. {_HOWTO}")
    return Path(parsed.database or "").absolute().resolve()


def _folder(url: str) -> Path:
    if (path := path_of_url(url)) is None:
        raise ConfigurationError(f"Only local files can be copied, and objects are stored elsewhere here. {_HOWTO}")
    return Path(path).absolute().resolve()
