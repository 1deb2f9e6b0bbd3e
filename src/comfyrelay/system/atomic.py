"""Atomic file writes: a file appears under its name only when it is complete."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from comfyrelay.system import files

# The names of incomplete files have this prefix, which hides them.
PART_PREFIX = ".put-"


@contextmanager
def part_of(path: Path, *, part: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` at the end. After an error, `path` is unchanged.

    With a fixed `part`, the next attempt overwrites the leftovers of a killed process.
    """
    part = part or _part(path)
    try:
        yield part
        files.replace(part, path)
    except BaseException:
        files.remove(part, missing_ok=True)
        raise


@contextmanager
def replacing(path: Path, *, mode: int = 0o666, is_durable: bool = False) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` at the end. The umask applies to `mode`."""
    writer = FileWriter(path, mode=mode, is_durable=is_durable)
    try:
        yield writer.open()
        writer.commit()
    except BaseException:
        writer.discard()
        raise


def write(path: Path, data: bytes, *, mode: int = 0o666, is_durable: bool = False) -> None:
    with replacing(path, mode=mode, is_durable=is_durable) as file:
        file.write(data)


def remove_parts(folder: Path) -> None:
    """Remove the temporary files of killed processes. No other process may be writing to this folder."""
    for part in folder.glob(f"{PART_PREFIX}*"):
        files.remove(part, missing_ok=True)


def write_new(path: Path, data: bytes, *, mode: int = 0o666) -> bool:
    """Write a new file. Returns false if the file exists. Of concurrent writers, exactly one succeeds."""
    writer = FileWriter(path, mode=mode)
    try:
        with writer.open() as file:
            file.write(data)
        # Unlike a rename, this does not replace an existing file.
        files.link_new(writer.part, path)
    except FileExistsError:
        return False
    except FileNotFoundError:
        # Another process has written the file, and removed this temporary file as a leftover.
        if not path.exists():
            raise
        return False
    finally:
        writer.discard()
    return True


class FileWriter:
    """Writes a temporary file, which replaces the target in `commit`. Writes block: use a thread for large files.

    `is_durable` syncs to disk. Without it, a power failure may leave an empty file under the final name.
    """

    def __init__(self, target: Path, *, mode: int = 0o666, is_durable: bool = False) -> None:
        self.target = target
        self.part = _part(target)
        self._mode = mode
        self._is_durable = is_durable
        self._file: BinaryIO | None = None

    def open(self) -> BinaryIO:
        """Create the temporary file."""
        self._file = open(self.part, "xb", opener=lambda path, flags: os.open(path, flags, self._mode))  # noqa: SIM115
        return self._file

    def write(self, data: bytes) -> None:
        self._require_open().write(data)

    def commit(self) -> None:
        """Replace the target. Readers see the old or the new file, never a part of it."""
        self._close()
        files.replace(self.part, self.target)

    def commit_new(self) -> None:
        """Like `commit`, but raise `FileExistsError` if the target exists. Of concurrent writers, exactly one
        succeeds."""
        self._close()
        files.link_new(self.part, self.target)
        files.remove(self.part, missing_ok=True)

    def discard(self) -> None:
        """Remove the temporary file."""
        # On a full disk, the last flush fails, which must not prevent the removal.
        with suppress(OSError):
            if self._file is not None:
                self._file.close()
        files.remove(self.part, missing_ok=True)

    def _close(self) -> None:
        with self._require_open() as file:
            if self._is_durable:
                file.flush()
                os.fsync(file.fileno())

    def _require_open(self) -> BinaryIO:
        if self._file is None:
            raise ValueError("The file is not open.")
        return self._file


def _part(path: Path) -> Path:
    # Renames are atomic only within a file system, so the temporary file is in the same folder.
    return path.with_name(f"{PART_PREFIX}{uuid4().hex}")
