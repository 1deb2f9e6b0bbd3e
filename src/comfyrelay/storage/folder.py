"""Objects as files in a folder. Calls block: use it in threads."""

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from comfyrelay.errors import ConfigurationError, StorageUnavailable
from comfyrelay.storage.headers import guess_content_type
from comfyrelay.storage.paths import check_path, is_path, no_object, refused_path
from comfyrelay.storage.values import ObjectEntry, ObjectStat
from comfyrelay.storage.writer import ObjectWriter
from comfyrelay.system.atomic import PART_PREFIX
from comfyrelay.system.files import IN_USE, is_link, remove
from comfyrelay.system.safe_names import extended_path, is_valid_path

PIECE_BYTES = 1024 * 1024


class Folder:
    """A folder that is created on first use; no path escapes it."""

    def __init__(self, root: Path) -> None:
        self._root = Path(extended_path(root.absolute()))

    def open(self, path: str) -> BinaryIO:
        """Open an object for reading, or raise `NotFound`."""
        with disk(path):
            try:
                return self._locate(path).open("rb")
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise no_object(path) from None

    def begin(self, path: str, start: int, size: int) -> tuple[BinaryIO, bytes]:
        """Open an object and read its first chunk."""
        file = self.open(path)
        try:
            with disk(path):
                file.seek(start)
                return file, file.read(size)
        except BaseException:
            file.close()
            raise

    def read(self, path: str) -> bytes:
        """Return an object, or raise `NotFound`."""
        with self.open(path) as file, disk(path):
            return file.read()

    def stat(self, path: str) -> ObjectStat | None:
        """Return metadata of an object, if it exists."""
        with disk(path):
            try:
                found = self._locate(path).stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        if not S_ISREG(found.st_mode):
            return None
        return _stat(path, found)

    def file_of(self, path: str) -> Path | None:
        """Return the file of an object, if it exists."""
        with disk(path):
            file = self._locate(path)
            return file if file.is_file() else None

    def write(self, path: str, data: bytes) -> None:
        """Store an object."""
        writer = self.writer(path)
        with disk(path):
            try:
                writer.open()
                writer.write(data)
                writer.commit()
            except BaseException:
                self.discard(writer)
                raise

    def writer(self, path: str) -> ObjectWriter:
        """Return a writer for an object."""
        return ObjectWriter(self._locate(path))

    def discard(self, writer: ObjectWriter) -> None:
        """Delete an incomplete object."""
        writer.discard()
        self._prune(writer.target.parent)

    def copy(self, source: str, target: str) -> ObjectStat:
        """Link or copy an object; existing files are replaced, never modified."""
        origin, writer = self._locate(source), self.writer(target)
        with disk(target):
            try:
                writer.target.parent.mkdir(parents=True, exist_ok=True)
                os.link(origin, writer.target)
            except (FileNotFoundError, NotADirectoryError):
                raise no_object(source) from None
            except FileExistsError:
                raise
            except OSError:
                # not every file system supports hard links
                self._copy_bytes(source, writer)
            return _stat(target, writer.target.stat())

    def _copy_bytes(self, source: str, writer: ObjectWriter) -> None:
        try:
            with self.open(source) as file:
                shutil.copyfileobj(file, writer.open(), PIECE_BYTES)
                writer.commit()
        except BaseException:
            self.discard(writer)
            raise

    def remove(self, paths: Iterable[str]) -> None:
        """Delete objects and folders that become empty."""
        for path in paths:
            file = self._locate(path)
            with disk(path), contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                remove(file)
            self._prune(file.parent)

    def scan(self, path: str) -> tuple[list[ObjectEntry], list[str]]:
        """Return the objects and subfolders directly in this folder."""
        entries: list[ObjectEntry] = []
        folders: list[str] = []
        with disk(path), contextlib.suppress(FileNotFoundError, NotADirectoryError), self._scan(path) as found:
            for each in found:
                name = f"{path}/{each.name}" if path else each.name
                if not is_path(name):
                    continue
                if each.is_dir(follow_symlinks=False):
                    folders.append(name)
                elif each.is_file(follow_symlinks=False):
                    entries.extend(_entry(name, each))
        return entries, folders

    def sweep(self, path: str, *, older_than_seconds: float) -> tuple[int, list[str]]:
        """Delete uploads of killed processes directly in this folder. Returns their number and the subfolders.

        There may be a folder per job, so other files are not even inspected.
        """
        newest = time.time() - older_than_seconds
        removed = 0
        folders: list[str] = []
        with disk(path), contextlib.suppress(FileNotFoundError, NotADirectoryError), self._scan(path) as found:
            for each in found:
                if each.is_dir(follow_symlinks=False):
                    name = f"{path}/{each.name}" if path else each.name
                    folders += [name] if is_path(name) else []
                elif each.name.startswith(PART_PREFIX) and each.stat(follow_symlinks=False).st_mtime < newest:
                    remove(Path(each.path), missing_ok=True)
                    removed += 1
        return removed, folders

    def check(self) -> None:
        """Raise when objects cannot be written here."""
        trial = ObjectWriter(self._root / "check")
        try:
            trial.open()
        except OSError as error:
            raise ConfigurationError(
                f"Objects cannot be stored in {self._root}: {error.strerror}. "
                "Make it a folder that this process may write to, or set another storage URL."
            ) from None
        finally:
            with contextlib.suppress(OSError):
                trial.discard()

    def _locate(self, path: str) -> Path:
        check_path(path)
        if not is_valid_path(path):
            raise refused_path(path)
        file = self._root / path
        # a symbolic link below the root may still point outside
        if self._may_lead_elsewhere(path) and not file.resolve().is_relative_to(self._root.resolve()):
            raise refused_path(path)
        return file

    def _may_lead_elsewhere(self, path: str) -> bool:
        """Whether a name on the way is a link. Resolving a path asks the disk for each name above the root as well,
        twice, and nearly never is there one."""
        place = str(self._root)
        for name in path.split("/"):
            place = f"{place}{os.sep}{name}"
            try:
                found = os.lstat(place)
            except (FileNotFoundError, NotADirectoryError):
                return False
            except OSError:
                return True
            if is_link(found):
                return True
        return False

    def _scan(self, path: str) -> AbstractContextManager[Iterator["os.DirEntry[str]"]]:
        return os.scandir(self._locate(path) if path else self._root)

    def _prune(self, folder: Path) -> None:
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent


@contextlib.contextmanager
def disk(path: str) -> Iterator[None]:
    """Say in our own words what the disk says."""
    try:
        yield
    except (FileExistsError, IsADirectoryError, NotADirectoryError):
        # an object stands where this path needs a folder, or the other way round
        raise refused_path(path) from None
    except OSError as error:
        reason = IN_USE if error.strerror == IN_USE else os.strerror(error.errno or errno.EIO)
        raise StorageUnavailable(f"The folder of object storage cannot be used: {reason}.") from error


def _entry(path: str, found: "os.DirEntry[str]") -> Iterator[ObjectEntry]:
    # it may have been removed since the folder was read
    with contextlib.suppress(FileNotFoundError):
        stat = found.stat(follow_symlinks=False)
        yield ObjectEntry(path=path, size=stat.st_size, modified_at=_time(stat))


def _stat(path: str, found: os.stat_result) -> ObjectStat:
    return ObjectStat(size=found.st_size, content_type=guess_content_type(path), modified_at=_time(found))


def _time(stat: os.stat_result) -> datetime:
    return datetime.fromtimestamp(stat.st_mtime, UTC)
