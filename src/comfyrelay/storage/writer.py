"""One file on its way to disk: complete under its name, or not there at all."""

import contextlib
import os
import uuid
from pathlib import Path
from typing import BinaryIO

from comfyrelay.storage.paths import TEMPORARY_PREFIX

__all__ = ["FileWriter"]


class FileWriter:
    """Writes beside the target and takes its place at the end; blocking, for use in a thread."""

    def __init__(self, target: Path) -> None:
        self.target = target
        # in the same folder, because a rename is atomic only inside one file system
        self._temporary = target.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
        self._file: BinaryIO | None = None

    def open(self) -> None:
        """Make the folder and the temporary file."""
        missed: OSError = FileNotFoundError(self.target.parent)
        for _ in range(100):
            try:
                self.target.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._temporary.open("xb")
            # whoever removes the last object of a folder removes the folder too, maybe right now: then it was not
            # there for the file, nor, between two looks of `mkdir`, there as a folder
            except (FileNotFoundError, FileExistsError) as error:
                missed = error
            else:
                return
        raise missed

    def write(self, data: bytes) -> None:
        """Append to the temporary file."""
        self._opened().write(data)

    def commit(self) -> None:
        """Put the whole file under its name; readers see the old one or this one, never a part."""
        with self._opened() as file:
            file.flush()
            # without it a power cut may leave an empty file under the final name
            os.fsync(file.fileno())
        self._temporary.replace(self.target)

    def discard(self) -> None:
        """Leave nothing behind."""
        # a full disk cannot take what is still to be flushed, and that must not stop the removal
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
        self._temporary.unlink(missing_ok=True)

    def _opened(self) -> BinaryIO:
        if self._file is None:
            raise ValueError("The file is not open.")
        return self._file
