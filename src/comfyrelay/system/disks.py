"""Find the free space and the file system type of a folder."""

import shutil
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path

import psutil

# The type of network drives on Windows.
REMOTE = "remote"
_SHARE = "\\\\"


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def disk_usage(folder: Path) -> tuple[int, int]:
    """Return the size of the disk of a folder and its free space, in bytes."""
    usage = shutil.disk_usage(folder)
    return usage.total, usage.free


def filesystem_of(folder: Path, *, mounts: Iterable[tuple[str, str]] | None = None) -> str:
    """Return the file system type of a folder, or `remote`; empty if unknown. `mounts` are pairs of path and type, by
    default the mounts of this machine."""
    resolved = folder.resolve()
    if resolved.drive.startswith(_SHARE):
        return REMOTE
    known = _mounts() if mounts is None else mounts
    found = [(len(Path(path).parts), kind) for path, kind in known if resolved.is_relative_to(path)]
    # Of two mounts at the same path, the later one is visible, and `max` returns the first maximum.
    return max(reversed(found), key=itemgetter(0))[1] if found else ""


def _mounts() -> list[tuple[str, str]]:
    try:
        found = psutil.disk_partitions(all=True)
    except OSError:
        return []
    return [(mount.mountpoint, REMOTE if REMOTE in mount.opts.split(",") else mount.fstype) for mount in found]
