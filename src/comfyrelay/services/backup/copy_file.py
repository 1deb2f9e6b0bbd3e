"""Copy single files and hash them. Copies are readable only by the owner."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from comfyrelay.errors import ConfigurationError, InvalidInput
from comfyrelay.services.backup.manifest import ManifestEntry
from comfyrelay.system.files import NO_LINK

PIECE_BYTES = 1024 * 1024
# Called with the number of bytes that are done, and the total.
Progress = Callable[[int, int], None]


def no_progress(_done: int, _total: int) -> None:
    """Report nothing."""


class ProgressCounter:
    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def add(self, size: int) -> None:
        self._done += size
        # Files may grow while they are copied.
        self._progress(min(self._done, self._total), self._total)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents for the owner only. Existing folders are not changed."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)


def store_file(
    source: Path, folder: Path, path: str, counter: ProgressCounter, *, is_immutable: bool = False
) -> ManifestEntry | None:
    """Store a file in a backup; return `None` if it no longer exists. Immutable files are hard-linked if possible."""
    target = folder / path
    make_folder(target.parent)
    try:
        found = source.lstat()
        if stat.S_ISLNK(found.st_mode):
            return ManifestEntry(path=path, link=_read_link(source))
        if is_immutable:
            with suppress(OSError):
                # Linking fails across disks or without support for links. The file is then copied below.
                os.link(source, target)
        digest, size = hash_file(target, counter) if target.exists() else copy(source, target, counter)
    except FileNotFoundError:
        return None
    return ManifestEntry(path=path, size=size, sha256=digest, mode=stat.S_IMODE(found.st_mode))


def hash_file(path: Path, counter: ProgressCounter) -> tuple[str, int]:
    """Return the SHA-256 and the size of a file."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
            size += len(piece)
            counter.add(len(piece))
    return digest.hexdigest(), size


def copy(source: Path, target: Path, counter: ProgressCounter, *, mode: int = 0o600) -> tuple[str, int]:
    """Copy a file and return the SHA-256 and size of the copy. The source may change during the copy."""
    digest, size = hashlib.sha256(), 0
    with open(source, "rb", opener=_open_private) as file, open(target, "xb", opener=_open_private) as copied:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
            copied.write(piece)
            size += len(piece)
            counter.add(len(piece))
        copied.flush()
        os.fsync(copied.fileno())
        found = os.fstat(file.fileno())
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
    target.chmod(mode)
    return digest.hexdigest(), size


def restore_file(folder: Path, entry: ManifestEntry, target: Path, counter: ProgressCounter) -> None:
    """Restore a file. Raises `InvalidInput` if its content has changed since the backup."""
    make_folder(target.parent)
    if entry.link is not None:
        target.symlink_to(entry.link)
        return
    digest, size = copy(folder / entry.path, target, counter, mode=entry.mode & 0o700)
    if (digest, size) != (entry.sha256, entry.size):
        raise InvalidInput(f"The backup is damaged: {folder / entry.path} was changed.")


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn `OSError` into `ConfigurationError`."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"{error.filename or 'The disk'}: {error.strerror or error}.") from error


def _read_link(source: Path) -> str:
    """Return the link target relative to its folder, so that it stays valid after a restore elsewhere."""
    target = source.parent / source.readlink()
    # On Windows there is no relative path to another drive.
    if target.drive != source.drive:
        return target.as_posix()
    return Path(os.path.relpath(target, source.parent)).as_posix()


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | NO_LINK, 0o600)
