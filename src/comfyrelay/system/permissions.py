"""Restrict the files of a data folder to their user."""

import os
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

FOLDER_MODE = 0o700
FILE_MODE = 0o600
_NOT_FOR_OTHERS = 0o077
# Files and folders that ComfyRelay creates in a data folder.
_FILES = (
    "lock",
    "secrets.json",
    "owner-secret",
    "page-password",
    ".furnished",
    ".comfyui-found",
    ".put-*",
    ".restore-*",
    "*.db",
    "*.db-*",
)
_FOLDERS = (
    *("copies", "objects", "inputs", "outputs", "script", "simulator", "worker", ".inputs.part"),
    # Machines of the providers `local` and `command`.
    *("machines", "fleet-commands"),
    # Restored backups.
    *("before-restore-*", ".restore-*"),
)
# Created by the file system.
_SYSTEM_FOLDERS = ("lost+found",)


def restrict_to_user(data_dir: Path) -> int:
    """Set the umask and restrict the data folder to its user.

    Returns the previous umask, for files outside the data folder.
    """
    before = os.umask(_NOT_FOR_OTHERS)
    if data_dir.is_dir():
        restrict_folder(data_dir)
        for pattern in ("*.db", "*.db-*", "secrets.json", "lock"):
            for path in data_dir.glob(pattern):
                # The file may belong to another user, because an earlier run had other rights.
                with suppress(OSError):
                    path.chmod(FILE_MODE)
    return before


def restrict_folder(folder: Path) -> None:
    """Restrict ComfyRelay's folders. A data folder that also contains other files keeps its mode."""
    found = list(folder.iterdir())
    private = [path for path in found if _matches(path, _FOLDERS) and path.is_dir() and not path.is_symlink()]
    if all(_matches(path, (*_FILES, *_FOLDERS, *_SYSTEM_FOLDERS)) for path in found):
        private.append(folder)
    for path in private:
        # The folder may belong to another user or be read-only. A later write reports the problem.
        with suppress(OSError):
            path.chmod(FOLDER_MODE)


def _matches(path: Path, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(path.name, pattern) for pattern in patterns)


def create_private_file(path: Path) -> None:
    """Create an empty private file if it does not exist."""
    # Opening the file later reports the error.
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))
