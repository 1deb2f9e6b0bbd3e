"""Files that somebody else may have open: Windows neither replaces nor removes them before they are closed."""

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from comfyrelay.system.platform import IS_WINDOWS

# Scanners and indexers open what is new, for a moment; whoever watches a video does so for longer than anybody waits.
PAUSES: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
IN_USE: Final = "it is open in another program, or may not be changed; close it there, and try again"
# `os.open` does not follow a link with it; Windows has no such flag.
NO_LINK: Final[int] = getattr(os, "O_NOFOLLOW", 0)


def replace(source: Path, target: Path) -> None:
    """Put a file in the place of another, if there is one."""
    _once_closed(target, lambda: source.replace(target))


def move(source: Path, target: Path) -> None:
    """Give a file or a folder another name, which nothing has yet."""
    _once_closed(source, lambda: source.rename(target))


def remove(path: Path, *, missing_ok: bool = False) -> None:
    """Remove a file."""
    _once_closed(path, lambda: path.unlink(missing_ok=missing_ok))


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it."""
    _once_closed(folder, lambda: shutil.rmtree(folder))


def name_new(source: Path, target: Path) -> None:
    """Give a file a name that nothing has; `FileExistsError` when something does. The old name may stay, too."""
    if IS_WINDOWS:
        # it never replaces there, and needs no disk that can link
        source.rename(target)
    else:
        os.link(source, target)


def leads_elsewhere(found: os.stat_result) -> bool:
    """Whether what `os.lstat` found is a link of any kind; Windows has several."""
    return stat.S_ISLNK(found.st_mode) or bool(getattr(found, "st_reparse_tag", 0))


def _once_closed(path: Path, change: Callable[[], object]) -> None:
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
