"""Free disk space and file system types."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import psutil

# How Windows marks a network drive.
REMOTE = "remote"
_SHARE = "\\\\"


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def filesystem_of(folder: Path, *, mounts: Iterable[tuple[str, str]] | None = None) -> str:
    """Return the file system type of a folder, or `remote`; empty if unknown. `mounts` are pairs of path and type, by
    default those of this machine."""
    place = folder.resolve()
    if place.drive.startswith(_SHARE):
        return REMOTE
    known = _mounts() if mounts is None else mounts
    found = [(Path(where), kind) for where, kind in known if place.is_relative_to(where)]
    # of two mounts at the same path, the later one is visible
    return max(enumerate(found), key=lambda each: (len(each[1][0].parts), each[0]))[1][1] if found else ""


def _mounts() -> list[tuple[str, str]]:
    try:
        found = psutil.disk_partitions(all=True)
    except OSError:
        return []
    return [(each.mountpoint, REMOTE if REMOTE in each.opts.split(",") else each.fstype) for each in found]
