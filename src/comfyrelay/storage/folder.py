"""Store objects as files in a folder. All calls block, so make them in threads."""

import contextlib
import errno
import filecmp
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from comfyrelay.errors import ConfigurationError, StorageUnavailable
from comfyrelay.storage.headers import guess_content_type
from comfyrelay.storage.paths import already_uploaded, check_path, is_path, no_object, refused_path
from comfyrelay.storage.values import ObjectEntry, ObjectStat
from comfyrelay.system.atomic import PART_PREFIX, FileWriter
from comfyrelay.system.files import IN_USE, is_link, remove
from comfyrelay.system.permissions import FILE_MODE, FOLDER_MODE
from comfyrelay.system.safe_names import extended_path, is_valid_path

CHUNK_BYTES = 1024 * 1024
_MAX_OPEN_ATTEMPTS = 100


class ObjectWriter(FileWriter):
    """Writes an object. Once committed, it survives a power failure. Only the user of this process can read it."""

    def __init__(self, target: Path, *, make_folder: Callable[[Path], None]) -> None:
        super().__init__(target, mode=FILE_MODE, is_durable=True)
        self._make_folder = make_folder

    def open(self) -> BinaryIO:
        """Create the folder and the temporary file."""
        for _ in range(_MAX_OPEN_ATTEMPTS):
            # Another process may delete the folder between `mkdir` and `open`, because deleting the last object of a
            # folder deletes the folder.
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                self._make_folder(self.target.parent)
                return super().open()
        return super().open()


class Folder:
    """A folder that is created on first use. Paths cannot escape from it.

    If the folder disappears later, its disk may not be mounted. Until it is back, all calls raise `StorageUnavailable`.
    """

    def __init__(self, root: Path) -> None:
        self._root = Path(extended_path(root.absolute()))
        self._is_created = False
        # `check` reports a folder that cannot be read.
        with contextlib.suppress(OSError):
            self._is_created = self._root.is_dir()

    def open(self, path: str) -> BinaryIO:
        """Open an object for reading, or raise `NotFound`."""
        with disk(path):
            try:
                return self._locate(path).open("rb")
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                self._check_root()
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
                self._check_root()
                return None
        return _stat(path, found) if S_ISREG(found.st_mode) else None

    def file_of(self, path: str) -> Path | None:
        """Return the file of an object, if it exists."""
        with disk(path):
            file = self._locate(path)
            if file.is_file():
                return file
            self._check_root()
            return None

    def write(self, path: str, data: bytes) -> None:
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
        return ObjectWriter(self._locate(path), make_folder=self._make_folder)

    def commit_once(self, writer: ObjectWriter) -> None:
        """Commit an object that must not replace another one."""
        try:
            writer.commit_new()
        except FileExistsError:
            # Clients repeat uploads whose responses were lost.
            if not filecmp.cmp(writer.part, writer.target, shallow=False):
                raise already_uploaded() from None
            self.discard(writer)

    def discard(self, writer: ObjectWriter) -> None:
        """Delete an incomplete object. If that fails, a sweep deletes it later, and the first error is raised."""
        with contextlib.suppress(OSError):
            writer.discard()
        self._prune(writer.target.parent)

    def copy(self, source: str, target: str) -> ObjectStat:
        """Link or copy an object. Existing files are replaced, never modified."""
        origin, writer = self._locate(source), self.writer(target)
        with disk(target):
            try:
                self._make_folder(writer.target.parent)
                os.link(origin, writer.target)
            except (FileNotFoundError, NotADirectoryError):
                raise no_object(source) from None
            except FileExistsError:
                raise
            except OSError:
                # Some file systems have no hard links.
                self._copy_bytes(source, writer)
            return _stat(target, writer.target.stat())

    def _copy_bytes(self, source: str, writer: ObjectWriter) -> None:
        try:
            with self.open(source) as file:
                shutil.copyfileobj(file, writer.open(), CHUNK_BYTES)
                writer.commit()
        except BaseException:
            self.discard(writer)
            raise

    def remove(self, paths: Iterable[str]) -> None:
        """Delete objects and folders that become empty."""
        for path in paths:
            file = self._locate(path)
            with disk(path):
                try:
                    remove(file)
                except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    self._check_root()
            self._prune(file.parent)

    def scan(self, path: str) -> tuple[list[ObjectEntry], list[str]]:
        """Return the objects and subfolders directly in this folder."""
        objects: list[ObjectEntry] = []
        folders: list[str] = []
        with disk(path):
            for name, entry in self._scan(path):
                if not is_path(name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(name)
                elif entry.is_file(follow_symlinks=False):
                    # The file may have been removed since the folder was read.
                    with contextlib.suppress(FileNotFoundError):
                        stat = entry.stat(follow_symlinks=False)
                        objects.append(ObjectEntry(path=name, size=stat.st_size, modified_at=_time(stat)))
        return objects, folders

    def sweep(self, path: str, *, older_than_seconds: float) -> tuple[int, list[str]]:
        """Delete incomplete uploads of killed processes directly in this folder. Returns their number and the
        subfolders.

        There may be a folder per job, so other files are not even inspected.
        """
        newest = time.time() - older_than_seconds
        removed = 0
        folders: list[str] = []
        with disk(path):
            for name, entry in self._scan(path):
                if entry.is_dir(follow_symlinks=False):
                    folders += [name] if is_path(name) else []
                elif entry.name.startswith(PART_PREFIX):
                    # Since the folder was read, the upload may have ended, or another process may have swept the
                    # folder.
                    with contextlib.suppress(FileNotFoundError):
                        if entry.stat(follow_symlinks=False).st_mtime < newest:
                            remove(Path(entry.path))
                            removed += 1
        return removed, folders

    def check(self) -> None:
        """Raise `ConfigurationError` if objects cannot be written to the folder."""
        trial = ObjectWriter(self._root / "check", make_folder=self._make_folder)
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
        # A symbolic link below the root may point outside.
        if self._may_contain_link(path) and not file.resolve().is_relative_to(self._root.resolve()):
            raise refused_path(path)
        return file

    def _may_contain_link(self, path: str) -> bool:
        """Whether a part of the path may be a link. Links are rare, and resolving every path would be slow, because it
        also reads all folders above the root."""
        part = str(self._root)
        for name in path.split("/"):
            part = f"{part}{os.sep}{name}"
            try:
                found = os.lstat(part)
            except (FileNotFoundError, NotADirectoryError):
                return False
            except OSError:
                return True
            if is_link(found):
                return True
        return False

    def _scan(self, path: str) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
        """Yield the paths and entries of a folder, if it exists."""
        try:
            with os.scandir(self._locate(path) if path else self._root) as found:
                for entry in found:
                    yield (f"{path}/{entry.name}" if path else entry.name), entry
        except (FileNotFoundError, NotADirectoryError):
            self._check_root()

    def _make_folder(self, folder: Path) -> None:
        if not self._is_created:
            self._root.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
            self._is_created = True
        if folder == self._root:
            self._check_root()
            return
        try:
            folder.mkdir(exist_ok=True, mode=FOLDER_MODE)
        except (FileNotFoundError, NotADirectoryError):
            self._make_folder(folder.parent)
            folder.mkdir(exist_ok=True, mode=FOLDER_MODE)

    def _check_root(self) -> None:
        """Raise `StorageUnavailable` if the root has disappeared."""
        if self._root.is_dir():
            self._is_created = True
        elif self._is_created:
            raise StorageUnavailable("The folder of object storage is missing.")

    def _prune(self, folder: Path) -> None:
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent


@contextlib.contextmanager
def disk(path: str) -> Iterator[None]:
    """Translate disk errors to ComfyRelay errors."""
    try:
        yield
    except (FileExistsError, IsADirectoryError, NotADirectoryError):
        # The path needs a folder where there is an object, or an object where there is a folder.
        raise refused_path(path) from None
    except OSError as error:
        reason = IN_USE if error.strerror == IN_USE else os.strerror(error.errno or errno.EIO)
        raise StorageUnavailable(f"The folder of object storage cannot be used: {reason}.") from error


def _stat(path: str, found: os.stat_result) -> ObjectStat:
    return ObjectStat(
        size=found.st_size,
        content_type=guess_content_type(path),
        modified_at=_time(found),
        # Two writes within the resolution of the clock make two files, as each file is renamed to its path.
        etag=f"{found.st_ino:x}-{found.st_mtime_ns:x}",
    )


def _time(stat: os.stat_result) -> datetime:
    return datetime.fromtimestamp(stat.st_mtime, UTC)
