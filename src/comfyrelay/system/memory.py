"""Free memory of the machine, within the limit of the container."""

from contextlib import suppress
from pathlib import Path

import psutil

from comfyrelay.system.cores import control_groups

# By version of control groups: the files with the limit and the usage, and the statistic of reclaimable file cache.
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_bytes() -> int:
    """Return the bytes that can be allocated without swapping."""
    return max(min([psutil.virtual_memory().available, *free_within_limits()]), 0)


def free_within_limits(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[int]:
    """Return the bytes that are left within the limit of each control group around this process."""
    found: list[int] = []
    for folder in control_groups("memory", root, own):
        for allowed, taken, files in _FILES:
            # `max` means no limit
            with suppress(OSError, ValueError):
                limit = int((folder / allowed).read_text(encoding="ascii"))
                used = int((folder / taken).read_text(encoding="ascii"))
                found.append(limit - used + _read_stat(folder / "memory.stat", files))
    return found


def _read_stat(path: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in path.read_text(encoding="ascii").splitlines():
            word, _, number = line.partition(" ")
            if word == name:
                return int(number)
    return 0
