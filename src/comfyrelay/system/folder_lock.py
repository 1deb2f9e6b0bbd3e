"""Lock a file or a folder for one process, until it closes the file or exits.

The lock file of a folder contains the id of the process that holds the lock. `filelock` is not used because it locks
the first byte, and on Windows other processes cannot read locked bytes.
"""

import os
import sys
import time
from pathlib import Path
from typing import IO

from comfyrelay.errors import ConfigurationError

LOCK_FILE = "lock"
# `holder` takes the lock for a moment, so failed attempts are repeated.
ATTEMPTS = 5
PAUSE_SECONDS = 0.05

if sys.platform == "win32":
    import msvcrt

    # Far beyond the content, which other processes must be able to read.
    _LOCKED_BYTE = 2**30

    def lock(file: IO[str]) -> None:
        """Lock an open file. Raises `OSError` if another process holds the lock."""
        before = os.lseek(file.fileno(), 0, os.SEEK_CUR)
        os.lseek(file.fileno(), _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(file.fileno(), before, os.SEEK_SET)

else:
    import fcntl

    def lock(file: IO[str]) -> None:
        """Lock an open file. Raises `OSError` if another process holds the lock."""
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class FolderLock:
    """A lock that is held until `release` or until the process exits, even if it is killed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK_FILE
        self._file: IO[str] | None = None

    def acquire(self, *, advice: str) -> None:
        """Take the lock. Raises `ConfigurationError` with this advice if another process holds it."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # The file may contain the id of the process that holds the lock, so it is not truncated.
            file = open(  # noqa: SIM115
                self._path, "a+", encoding="ascii", opener=lambda path, flags: os.open(path, flags, 0o600)
            )
        except OSError as error:
            raise ConfigurationError(
                f"The folder {self._path.parent} cannot be used: {error.strerror}. Choose a writable folder with "
                "--data-dir or COMFYRELAY_DATA_DIR."
            ) from None
        if not _acquire(file):
            file.seek(0)
            holder = file.read().strip()
            file.close()
            who = f" (process {holder})" if holder else ""
            raise ConfigurationError(f"Another process{who} uses the folder {self._path.parent}. {advice}")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file

    def holder(self) -> str | None:
        """Return the id of the process that holds the lock, if any."""
        if not self._path.exists():
            return None
        with self._path.open("a+", encoding="ascii") as file:
            try:
                lock(file)
            except OSError:
                file.seek(0)
                return file.read().strip() or "unknown"
        return None

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _acquire(file: IO[str]) -> bool:
    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            lock(file)
        except OSError:
            if attempts_left:
                time.sleep(PAUSE_SECONDS)
        else:
            return True
    return False
