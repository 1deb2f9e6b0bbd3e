"""Disks: how much room they have, and of which kind they are."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import psutil

# What the system itself says of a drive that is another machine's.
REMOTE = "remote"
_SHARE = "\\\\"


def free_bytes(folder: Path) -> int:
    """What can still be written there."""
    return shutil.disk_usage(folder).free


def filesystem_of(folder: Path, *, mounts: Iterable[tuple[str, str]] | None = None) -> str:
    """The kind of file system that a folder is on, or `remote`; empty where that cannot be told. `mounts` are places
    and their kinds, those of this machine if not given."""
    place = folder.resolve()
    if place.drive.startswith(_SHARE):
        return REMOTE
    known = _mounts() if mounts is None else mounts
    found = [(Path(where), kind) for where, kind in known if place.is_relative_to(where)]
    # of two at one place, the later one is on top
    return max(enumerate(found), key=lambda each: (len(each[1][0].parts), each[0]))[1][1] if found else ""


def _mounts() -> list[tuple[str, str]]:
    try:
        found = psutil.disk_partitions(all=True)
    except OSError:
        return []
    return [(each.mountpoint, REMOTE if REMOTE in each.opts.split(",") else each.fstype) for each in found]
