"""The machine's memory, and how much of it is free for us: in a container, within what that is allowed."""

from contextlib import suppress
from pathlib import Path

import psutil

from comfyrelay.system.cores import control_groups

# By version of control groups: what is allowed, what is taken, and what of that is files that could be read again.
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_bytes() -> int:
    """What could be taken without anything being moved to the disk."""
    return max(min([psutil.virtual_memory().available, *free_within_limits()]), 0)


def free_within_limits(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[int]:
    """What containers and services around this process have left of what they are allowed; nothing where that is all
    there is."""
    found: list[int] = []
    for folder in control_groups("memory", root, own):
        for allowed, taken, files in _FILES:
            # `max` is no number
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
