"""CPU cores, and how many of them are idle."""

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

# The cores that this process may use.
OURS = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else list(range(os.cpu_count() or 1))
CORES = len(OURS)
# Usage is averaged over this time, because a starting process briefly uses all cores.
WINDOW_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class CoreBudget:
    """A number of cores, and the total seconds that they have worked."""

    cores: float
    worked: Callable[[], float]


class SpareCores:
    """Returns how many cores were idle in the last seconds.

    It measures CPU time. The load average also counts waiting threads, and work that ended a minute ago.
    """

    def __init__(
        self, budgets: Sequence[CoreBudget] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`budgets` are the cores of the machine and the quotas of containers; the tightest one counts."""
        self._budgets = (
            (CoreBudget(cores=CORES, worked=seconds_worked), *quotas()) if budgets is None else tuple(budgets)
        )
        self._clock = clock
        self._looks: deque[tuple[float, list[float]]] = deque()

    def __call__(self, own: int) -> float:
        """`own` is the number of cores known to be busy now, which the average may not show yet."""
        now, worked = self._clock(), [budget.worked() for budget in self._budgets]
        self._looks.append((now, worked))
        # keep one sample from before the window as its start
        while len(self._looks) > 2 and self._looks[1][0] <= now - WINDOW_SECONDS:
            self._looks.popleft()
        since, before = self._looks[0]
        seconds = now - since
        return min(
            each.cores - max((last - first) / seconds if seconds > 0 else 0.0, float(own))
            for each, first, last in zip(self._budgets, before, worked, strict=True)
        )


def seconds_worked() -> float:
    """Return the CPU seconds of the usable cores since boot."""
    of_each = psutil.cpu_times(percpu=True)
    return sum(_worked(of_each[each]) for each in OURS if each < len(of_each))


def _worked(times: object) -> float:
    """Add up CPU times without idle time and without those that are counted twice."""
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


def quotas(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[CoreBudget]:
    """Return the CPU quotas of the control groups around this process."""
    return [budget for folder in control_groups("cpu", root, own) for budget in _of(folder)]


def control_groups(controller: str, root: Path, own: Path) -> list[Path]:
    """Return the folders of the control groups around this process, the innermost first."""
    found: list[Path] = []
    with suppress(OSError):
        for line in own.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            tree = root / controllers if controllers else root
            inner = tree / path.lstrip("/")
            # a container may see only the end of the path
            found += [folder for folder in (inner, *inner.parents) if folder.is_relative_to(tree)]
    return found


def _of(folder: Path) -> Iterator[CoreBudget]:
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
    """Return the CPU seconds of a control group; 0 if unknown."""
    with suppress(OSError, ValueError, StopIteration):
        text = path.read_text(encoding="ascii")
        if path.name == "cpuacct.usage":
            return int(text) / 1e9
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("usage_usec ")) / 1e6
    return 0.0
