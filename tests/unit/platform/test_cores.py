"""The number of spare processor cores is computed from their recent load."""

import os
from pathlib import Path

import pytest

from comfyrelay.system.spare_capacity import CORES, WINDOW_SECONDS, CoreBudget, SpareCores, quotas, seconds_worked


class Machine:
    """A machine with sixteen cores and some load; a container may use fewer cores."""

    def __init__(self, *more: CoreBudget) -> None:
        self.now = self.worked = 0.0
        self.spare = SpareCores((CoreBudget(cores=16, worked=lambda: self.worked), *more), lambda: self.now)

    def work(self, cores: float, seconds: float, *, own: int = 1) -> float:
        found = 0.0
        for _ in range(int(seconds)):
            self.now += 1
            self.worked += cores
            found = self.spare(own)
        return found


def test_busy_cores_are_not_spare() -> None:
    machine = Machine()
    assert machine.spare(1) == 15
    assert machine.work(3.5, WINDOW_SECONDS, own=3) == 12.5


def test_past_work_does_not_count() -> None:
    machine = Machine()
    assert machine.work(16, 60) == 0
    assert machine.work(2, WINDOW_SECONDS + 1) == 14


def test_newly_started_threads_count_at_once() -> None:
    machine = Machine()
    machine.work(1, 60)
    assert machine.spare(4) == 12


def test_cpu_time_of_the_machine_advances() -> None:
    before = seconds_worked()
    while (worked := seconds_worked()) == before:
        sum(range(10_000))
    assert worked > before
    assert 1 <= CORES <= (os.cpu_count() or 1)
    assert SpareCores()(0) <= CORES


# For each version of control groups, the group of this process and the files that give its container 2.5 cores.
CONTAINERS = {
    "second": (
        "0::/pod/worker\n",
        {"pod/cpu.max": "250000 100000", "pod/cpu.stat": "usage_usec 7000000\nuser_usec 1\n"},
    ),
    "second, own end only": ("0::/\n", {"cpu.max": "250000 100000", "cpu.stat": "usage_usec 7000000\n"}),
    "first": (
        "9:name=systemd:/\n4:cpu,cpuacct:/docker/1\n",
        {
            "cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
            "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "cpu,cpuacct/cpuacct.usage": "7000000000\n",
        },
    ),
}


def container(folder: Path, own: str, files: dict[str, str]) -> list[CoreBudget]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "own").write_text(own)
    return quotas(folder, folder / "own")


@pytest.mark.parametrize("version", CONTAINERS)
def test_container_quota_limits_spare_cores(tmp_path: Path, version: str) -> None:
    [quota] = container(tmp_path, *CONTAINERS[version])
    assert quota.worked() == 7.0
    assert quota.cores == 2.5
    machine = Machine(quota)
    assert machine.work(0, WINDOW_SECONDS, own=1) == 1.5


def test_work_of_other_processes_does_not_reduce_a_quota() -> None:
    machine = Machine(CoreBudget(cores=4, worked=lambda: machine.now))
    assert machine.work(8, WINDOW_SECONDS, own=1) == 3
    assert machine.work(15, 2 * WINDOW_SECONDS, own=1) == 1


@pytest.mark.parametrize("files", [{"cpu.max": "max 100000"}, {"cpu.max": "garbage"}, {}])
def test_cores_of_the_machine_are_the_limit_without_a_quota(tmp_path: Path, files: dict[str, str]) -> None:
    assert container(tmp_path, "0::/\n1:cpu:/\n", files) == []
    assert quotas(tmp_path, tmp_path / "missing") == []
