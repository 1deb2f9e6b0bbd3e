"""How much of the processors a test used, with all that it started: the browser, PostgreSQL, servers and workers.

Wall-clock time says how busy the machine was; this says what a test costs wherever it is run.
"""

import os
from pathlib import Path
from uuid import uuid4

# Whatever this process starts has it in its environment, also what has left the tree of its children since.
MARK = "TESTS_CPU_MARK"
_HERE = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


class Cpu:
    """Seconds of processor time, where Linux tells them; elsewhere none."""

    def __init__(self) -> None:
        self._mark = f"{MARK}={uuid4().hex}"
        name, _, value = self._mark.partition("=")
        os.environ[name] = value
        self._others: dict[int, bool] = {os.getpid(): True}
        self._before = self._used()

    def since(self) -> float:
        """What was used since this was asked last."""
        now = self._used()
        used, self._before = now - self._before, now
        # what nobody has waited for takes with it what it had used
        return max(0.0, used)

    def _used(self) -> float:
        if not _HERE.is_dir():
            return 0.0
        alive = {int(each) for each in os.listdir(_HERE) if each.isdigit()}  # noqa: PTH208 - a tenth of the time
        self._others = {pid: ours for pid, ours in self._others.items() if pid in alive}
        for pid in alive - self._others.keys():
            self._others[pid] = self._is_ours(pid)
        return sum(_ticks(pid) for pid, ours in self._others.items() if ours) / _TICKS

    def _is_ours(self, pid: int) -> bool:
        try:
            return self._mark.encode() in (_HERE / str(pid) / "environ").read_bytes()
        except OSError:
            return False


def _ticks(pid: int) -> int:
    """Of a process, and of all its children that it has waited for."""
    try:
        fields = (_HERE / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return sum(map(int, fields[11:15]))
