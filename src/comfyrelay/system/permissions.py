"""What a process keeps on its disk is for its user alone."""

import os
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

FOLDER_MODE = 0o700
FILE_MODE = 0o600
_NOT_FOR_OTHERS = 0o077
# What we make in a data folder.
_FILES = (
    "lock",
    "secrets.json",
    "owner-secret",
    "page-password",
    ".furnished",
    ".comfyui-found",
    ".put-*",
    "*.db",
    "*.db-*",
)
_FOLDERS = (
    *("objects", "inputs", "outputs", "script", "simulator", "worker", ".inputs.part"),
    # of fleets whose machines are processes, or made by scripts
    *("machines", "fleet-commands"),
    # of a restore
    *("before-restore-*", ".restore-*"),
)
# What a disk has of itself.
_NOBODYS = ("lost+found",)


def keep_private(data_dir: Path) -> int:
    """From now on, what this process writes is its user's alone; so is what is in the data folder.

    Returns the umask of before, for what is written for the user and not for us.
    """
    before = os.umask(_NOT_FOR_OTHERS)
    if data_dir.is_dir():
        close_folder(data_dir)
        for pattern in ("*.db", "*.db-*", "secrets.json", "lock"):
            for path in data_dir.glob(pattern):
                # another user's, from when one was used with the rights of another: that one says who reads it
                with suppress(OSError):
                    path.chmod(FILE_MODE)
    return before


def close_folder(folder: Path) -> None:
    """What is in our folders is private. A data folder with other things of somebody's stays as open as it is."""
    found = list(folder.iterdir())
    closed = [each for each in found if _is_any(each.name, _FOLDERS) and each.is_dir() and not each.is_symlink()]
    if all(_is_any(each.name, (*_FILES, *_FOLDERS, *_NOBODYS)) for each in found):
        closed.append(folder)
    for each in closed:
        # another user's, or on a disk that takes no changes: who needs to write there says so
        with suppress(OSError):
            each.chmod(FOLDER_MODE)


def _is_any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def make_file(path: Path) -> None:
    """An empty file for its user alone, unless there is one."""
    # whoever opens it says what is wrong with its place
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))
