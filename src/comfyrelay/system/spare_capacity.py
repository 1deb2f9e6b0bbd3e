"""Measure idle CPU cores and free memory, within the limits of the container."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

# The indices of the cores that this process may use.
if sys.platform == "linux":
    _USABLE = sorted(os.sched_getaffinity(0))
else:
    _USABLE = list(range(os.cpu_count() or 1))
CORES = len(_USABLE)
# Usage is averaged over this time, because a starting process briefly uses all cores.
WINDOW_SECONDS = 10.0
# For versions 2 and 1 of control groups: the files of the limit and the usage, and the statistic of reclaimable cache.
_MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True, kw_only=True)
class CoreBudget:
    """A number of cores, and the total CPU seconds that they have used."""

    cores: float
    worked: Callable[[], float]


class SpareCores:
    """Measures from CPU times how many cores were idle in the last seconds.

    The load average would also count waiting threads, and work that ended a minute ago.
    """

    def __init__(
        self, budgets: Sequence[CoreBudget] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`budgets` are the cores of the machine and the quotas of containers. The tightest budget counts."""
        self._budgets = (
            (CoreBudget(cores=CORES, worked=seconds_worked), *quotas()) if budgets is None else tuple(budgets)
        )
        self._clock = clock
        self._samples: deque[tuple[float, list[float]]] = deque()

    def __call__(self, busy: int) -> float:
        """Return the number of idle cores. `busy` cores are known to be in use, which the average may not show yet."""
        now, worked = self._clock(), [budget.worked() for budget in self._budgets]
        self._samples.append((now, worked))
        # Keep one sample from before the window as the start of the window.
        while len(self._samples) > 2 and self._samples[1][0] <= now - WINDOW_SECONDS:
            self._samples.popleft()
        since, before = self._samples[0]
        seconds = now - since
        return min(
            budget.cores - max((last - first) / seconds if seconds > 0 else 0.0, float(busy))
            for budget, first, last in zip(self._budgets, before, worked, strict=True)
        )


def seconds_worked() -> float:
    """Return the CPU seconds of the usable cores since boot."""
    times = psutil.cpu_times(percpu=True)
    # Idle time does not count, and user time already includes guest time.
    kinds = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(getattr(times[core], kind, 0.0) for core in _USABLE if core < len(times) for kind in kinds)


def quotas(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[CoreBudget]:
    """Return the CPU quotas of the control groups that contain this process."""
    return [budget for folder in control_groups("cpu", root, own) for budget in _read_quotas(folder)]


def control_groups(controller: str, root: Path, own: Path) -> list[Path]:
    """Return the folders of the control groups that contain this process, the innermost first."""
    found: list[Path] = []
    with suppress(OSError):
        for line in own.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            tree = root / controllers if controllers else root
            inner = tree / path.lstrip("/")
            # A container may see only the end of the path.
            found += [folder for folder in (inner, *inner.parents) if folder.is_relative_to(tree)]
    return found


def _read_quotas(folder: Path) -> Iterator[CoreBudget]:
    """Yield the quota of a control group: `cpu.max` in version 2, `cpu.cfs_quota_us` in version 1."""
    with suppress(OSError, ValueError, ZeroDivisionError):
        allowed, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        if allowed != "max":
            yield CoreBudget(cores=int(allowed) / int(period), worked=partial(_usage, folder / "cpu.stat"))
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota = int((folder / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        if quota > 0:
            period_us = int((folder / "cpu.cfs_period_us").read_text(encoding="ascii"))
            yield CoreBudget(cores=quota / period_us, worked=partial(_usage, folder / "cpuacct.usage"))


def _usage(path: Path) -> float:
    """Return the CPU seconds of a control group, or 0 if they are unknown."""
    if path.name == "cpu.stat":
        return _read_stat(path, "usage_usec") / 1e6
    with suppress(OSError, ValueError):
        return int(path.read_text(encoding="ascii")) / 1e9
    return 0.0


def free_memory_bytes() -> int:
    """Return the bytes that can be allocated without swapping."""
    return max(min([psutil.virtual_memory().available, *free_within_limits()]), 0)


def free_within_limits(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[int]:
    """Return the unused bytes within the limit of each control group that contains this process."""
    found: list[int] = []
    for folder in control_groups("memory", root, own):
        for allowed, taken, cache in _MEMORY_FILES:
            # `max` means that there is no limit.
            with suppress(OSError, ValueError):
                limit = int((folder / allowed).read_text(encoding="ascii"))
                used = int((folder / taken).read_text(encoding="ascii"))
                found.append(limit - used + _read_stat(folder / "memory.stat", cache))
    return found


def _read_stat(path: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in path.read_text(encoding="ascii").splitlines():
            word, _, number = line.partition(" ")
            if word == name:
                return int(number)
    return 0
