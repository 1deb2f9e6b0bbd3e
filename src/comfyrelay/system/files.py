"""Replace and remove files that another program may have open, which Windows refuses until they are closed."""

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from comfyrelay.system.platform import IS_WINDOWS

# Virus scanners and indexers open new files briefly, so a retry helps. A video player keeps them open for longer.
PAUSES: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
IN_USE: Final = "it is open in another program or write-protected. Close it there and try again"
# Makes `os.open` refuse symbolic links; Windows has no such flag.
NO_LINK: Final[int] = getattr(os, "O_NOFOLLOW", 0)


def replace(source: Path, target: Path) -> None:
    """Rename a file, replacing the target if it exists."""
    _retry_until_closed(target, lambda: source.replace(target))


def move(source: Path, target: Path) -> None:
    """Rename a file or folder to a name that is not taken."""
    _retry_until_closed(source, lambda: source.rename(target))


def remove(path: Path, *, missing_ok: bool = False) -> None:
    _retry_until_closed(path, lambda: path.unlink(missing_ok=missing_ok))


def remove_tree(folder: Path) -> None:
    _retry_until_closed(folder, lambda: shutil.rmtree(folder))


def link_new(source: Path, target: Path) -> None:
    """Give a file a new name. Raises `FileExistsError` if the name is taken. The file may keep its old name, too."""
    if IS_WINDOWS:
        # On Windows, a rename never replaces a file, and it also works on disks without hard links.
        source.rename(target)
        return
    try:
        os.link(source, target)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:
        # Some file systems have no hard links. There, two concurrent writers could both succeed.
        if target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        source.rename(target)


def is_link(found: os.stat_result) -> bool:
    """Whether an `os.lstat` result is a link. Windows has several kinds of links."""
    return stat.S_ISLNK(found.st_mode) or bool(getattr(found, "st_reparse_tag", 0))


def _retry_until_closed(path: Path, change: Callable[[], object]) -> None:
    for seconds in PAUSES if IS_WINDOWS else ():
        try:
            change()
        except PermissionError:
            time.sleep(seconds)
        else:
            return
    try:
        change()
    except PermissionError as error:
        if not IS_WINDOWS:
            raise
        raise PermissionError(errno.EACCES, IN_USE, str(path)) from error
