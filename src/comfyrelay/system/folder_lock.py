"""A folder that one process uses at a time."""

import os
import time
from pathlib import Path
from typing import IO

from comfyrelay.errors import ConfigurationError
from comfyrelay.system.locks import lock

# Who only looks whether somebody has it has it, too, for a moment.
TRIES = 5
PAUSE_SECONDS = 0.05


class FolderLock:
    """Held until it is given up or the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._file: IO[str] | None = None

    def take(self, *, advice: str) -> None:
        """`ConfigurationError` with this advice when another process has it."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # not emptied: who has the lock has written there who it is
            file = open(  # noqa: SIM115
                self._path, "a+", encoding="ascii", opener=lambda path, flags: os.open(path, flags, 0o600)
            )
        except OSError as error:
            raise ConfigurationError(
                f"The folder {self._path.parent} cannot be used: {error.strerror}. Choose a folder that you may write "
                "to, with --data-dir or COMFYRELAY_DATA_DIR."
            ) from None
        if not _is_taken(file):
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
        """Which process has it now; nothing when none does."""
        if not self._path.exists():
            return None
        with self._path.open("a+", encoding="ascii") as file:
            try:
                lock(file)
            except OSError:
                file.seek(0)
                return file.read().strip() or "unknown"
        return None

    def give_up(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _is_taken(file: IO[str]) -> bool:
    for tries_left in reversed(range(TRIES)):
        try:
            lock(file)
        except OSError:
            if tries_left:
                time.sleep(PAUSE_SECONDS)
        else:
            return True
    return False
