"""Files that are whole under their name, or not there at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from comfyrelay.system import files

# What is still being written is hidden, and its name begins like this.
PART_PREFIX = ".put-"


@contextmanager
def part_of(path: Path, *, part: Path | None = None) -> Iterator[Path]:
    """Where to write what takes the place of `path` at the end; an error leaves what was there, and nothing else.

    A `part` that always has the same name is overwritten by the next try when this one is killed.
    """
    part = part or _part(path)
    try:
        yield part
        files.replace(part, path)
    except BaseException:
        files.remove(part, missing_ok=True)
        raise


@contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """The same, for who writes piece by piece; `mode` is who may read it, less the umask."""
    writer = FileWriter(path, mode=mode)
    try:
        yield writer.open()
        writer.commit()
    except BaseException:
        writer.discard()
        raise


def write(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write all of it."""
    with replacing(path, mode=mode) as file:
        file.write(data)


def write_new(path: Path, data: bytes, *, mode: int = 0o666) -> bool:
    """Whether it was written: of several that try at once one is first, and its file stays."""
    writer = FileWriter(path, mode=mode)
    try:
        with writer.open() as file:
            file.write(data)
        # unlike a rename it does not replace what is there
        files.name_new(writer.part, path)
    except FileExistsError:
        return False
    finally:
        writer.discard()
    return True


class FileWriter:
    """Writes beside the target and takes its place at the end; blocking, for use in a thread where that may take long.

    `is_durable` waits for the disk: without it a power cut may leave an empty file under the final name.
    """

    def __init__(self, target: Path, *, mode: int = 0o666, is_durable: bool = False) -> None:
        self.target = target
        self.part = _part(target)
        self._mode = mode
        self._is_durable = is_durable
        self._file: BinaryIO | None = None

    def open(self) -> BinaryIO:
        """Make the part, which nobody else has."""
        self._file = open(self.part, "xb", opener=lambda path, flags: os.open(path, flags, self._mode))  # noqa: SIM115
        return self._file

    def write(self, data: bytes) -> None:
        """Append to the part."""
        self._opened().write(data)

    def commit(self) -> None:
        """Put the whole file under its name; readers see the old one or this one, never a part."""
        with self._opened() as file:
            if self._is_durable:
                file.flush()
                os.fsync(file.fileno())
        files.replace(self.part, self.target)

    def discard(self) -> None:
        """Leave nothing behind."""
        # a full disk cannot take what is still to be flushed, and that must not stop the removal
        with suppress(OSError):
            if self._file is not None:
                self._file.close()
        files.remove(self.part, missing_ok=True)

    def _opened(self) -> BinaryIO:
        if self._file is None:
            raise ValueError("The file is not open.")
        return self._file


def _part(path: Path) -> Path:
    # in the same folder, because a rename is atomic only inside one file system
    return path.with_name(f"{PART_PREFIX}{uuid4().hex}")
