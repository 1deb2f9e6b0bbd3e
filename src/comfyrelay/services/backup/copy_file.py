"""One file to another place, with its hash, and for nobody else to read."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from comfyrelay.errors import ConfigurationError, InvalidInput
from comfyrelay.services.backup.manifest import ManifestEntry
from comfyrelay.system.files import NO_LINK

PIECE = 1024 * 1024
# How much is done, and of how much.
Progress = Callable[[int, int], None]


def no_progress(_done: int, _total: int) -> None:
    """For who does not want to know."""


class Counter:
    """Adds up what is copied."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def add(self, size: int) -> None:
        self._done += size
        # what grows while it is copied does not make more than everything
        self._progress(min(self._done, self._total), self._total)


def make_folder(folder: Path) -> None:
    """With those above it, for nobody else; what is there stays as it is."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        with suppress(FileExistsError):
            each.mkdir(mode=0o700)


def keep(
    source: Path, folder: Path, path: str, counter: Counter, *, is_immutable: bool = False
) -> ManifestEntry | None:
    """Put a file into a backup; nothing when it is gone. What never changes is linked where that can be done."""
    target = folder / path
    make_folder(target.parent)
    try:
        found = source.lstat()
        if stat.S_ISLNK(found.st_mode):
            return ManifestEntry(path=path, link=_link_of(source))
        if is_immutable:
            with suppress(OSError):
                # another disk, or a disk that cannot link: it is copied below
                os.link(source, target)
        digest, size = read(target, counter) if target.exists() else copy(source, target, counter)
    except FileNotFoundError:
        return None
    return ManifestEntry(path=path, size=size, sha256=digest, mode=stat.S_IMODE(found.st_mode))


def read(path: Path, counter: Counter) -> tuple[str, int]:
    """The hash and the size of a file."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
            size += len(piece)
            counter.add(len(piece))
    return digest.hexdigest(), size


def copy(source: Path, target: Path, counter: Counter, *, mode: int = 0o600) -> tuple[str, int]:
    """Returns the hash and the size of what was copied, which may change meanwhile."""
    digest, size = hashlib.sha256(), 0
    with open(source, "rb", opener=_for_me) as file, open(target, "xb", opener=_for_me) as copied:
        while piece := file.read(PIECE):
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


def put_back(folder: Path, entry: ManifestEntry, target: Path, counter: Counter) -> None:
    """Copy a file out of a backup. `InvalidInput` when it is not what was written there."""
    make_folder(target.parent)
    if entry.link is not None:
        target.symlink_to(entry.link)
        return
    digest, size = copy(folder / entry.path, target, counter, mode=entry.mode & 0o700)
    if (digest, size) != (entry.sha256, entry.size):
        raise InvalidInput(f"The backup is damaged: {folder / entry.path} is not what was written there.")


@contextmanager
def disk_errors() -> Iterator[None]:
    """What the disk says, as one sentence of ours."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"{error.filename or 'The disk'}: {error.strerror or error}.") from error


def _link_of(source: Path) -> str:
    """As seen from its own folder, so that it leads to the same file wherever that is restored."""
    to = source.parent / source.readlink()
    # Windows has no way from one drive to another
    return to.as_posix() if to.drive != source.drive else Path(os.path.relpath(to, source.parent)).as_posix()


def _for_me(path: str, flags: int) -> int:
    return os.open(path, flags | NO_LINK, 0o600)
