"""Where the time of a run goes: told at its end, written down, and used to begin with what takes longest.

Each process of a run takes whole files, so that what the tests of a file share is made once; a long file at the end
would leave the others idle.
"""

import json
from collections import defaultdict
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.support.cpu import Cpu

RECORDED = Path(__file__).with_name("durations.json")
# Of the last run: each file and each test, the dearest first.
LAST_RUN = RECORDED.parent.parent / ".durations.json"
MOST = 15
# Of the processors: a test that takes more is written down, and left for later (tests/everyday.py).
DEAR_SECONDS = 0.12


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-durations", action="store_true", help=f"write what the files took to {RECORDED.name}")


def pytest_configure(config: pytest.Config) -> None:
    # the processes of a run report to the one that started them
    is_told = not hasattr(config, "workerinput")
    if is_told:
        config.pluginmanager.register(Durations(is_written=config.getoption("--write-durations")))
    if not is_told or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Measuring())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = longest_first(items, recorded().files)


def longest_first(items: list[pytest.Item], seconds: Mapping[str, float]) -> list[pytest.Item]:
    """File by file, in each as it stands there; one that was never measured comes first."""
    places: dict[str, int] = {}
    for each in items:
        places.setdefault(file_of(each.nodeid), len(places))

    def rank(item: pytest.Item) -> tuple[float, int]:
        file = file_of(item.nodeid)
        return -seconds.get(file, float("inf")), places[file]

    return sorted(items, key=rank)


@dataclass(frozen=True)
class Recorded:
    """Seconds of the clock, by file, and of the processors, by test; of those that take some at all."""

    files: dict[str, float]
    tests: dict[str, float]


@cache
def recorded() -> Recorded:
    found = json.loads(RECORDED.read_text("utf-8"))
    return Recorded(
        files={file: each["seconds"] for file, each in found.items()},
        tests={f"{file}::{test}": cpu for file, each in found.items() for test, cpu in each.get("tests", {}).items()},
    )


def file_of(node_id: str) -> str:
    return node_id.partition("::")[0]


class Measuring:
    """In each process of a run: what its tests use, with their set-up and all that they started."""

    def __init__(self) -> None:
        self._cpu = Cpu()

    def pytest_collection_finish(self) -> None:
        # that was nobody's
        self._cpu.since()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            report.user_properties.append(("cpu", self._cpu.since()))
        return report


@dataclass(slots=True)
class Took:
    wall: float = 0.0
    cpu: float = 0.0

    def add(self, report: pytest.TestReport) -> None:
        self.wall += report.duration
        self.cpu += sum(float(str(value)) for name, value in report.user_properties if name == "cpu")


class Durations:
    def __init__(self, *, is_written: bool) -> None:
        self._is_written = is_written
        self._files: defaultdict[str, Took] = defaultdict(Took)
        self._tests: defaultdict[str, Took] = defaultdict(Took)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._files[file_of(report.nodeid)].add(report)
        self._tests[report.nodeid].add(report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        wall, cpu = (sum(getattr(each, name) for each in self._files.values()) for name in ("wall", "cpu"))
        if len(self._files) > 1:
            terminalreporter.section(f"{wall:.0f} s of tests, {cpu:.0f} s of processors, and the dearest files")
            for file, took in sorted(self._files.items(), key=lambda each: -each[1].cpu)[:MOST]:
                terminalreporter.write_line(f"{took.wall:7.1f} s  {took.cpu:7.1f} s  {file}")
            terminalreporter.write_line(f"All of them, and each test, are in {LAST_RUN.name}.")
            listed = {"files": _listed(self._files), "tests": _listed(self._tests)}
            LAST_RUN.write_text(json.dumps(listed, indent=1), "utf-8")
        if self._is_written:
            RECORDED.write_text(json.dumps(self._written(), indent=1, sort_keys=True) + "\n", "utf-8")

    def _written(self) -> dict[str, dict[str, object]]:
        """What is known now: of files that did not run, and are still there, what was known before."""
        here = RECORDED.parent.parent
        known = json.loads(RECORDED.read_text("utf-8"))
        found = {file: each for file, each in known.items() if (here / file).exists()}
        found |= {file: {"seconds": round(took.wall, 1)} for file, took in self._files.items()}
        dear: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for node_id, took in self._tests.items():
            if took.cpu > DEAR_SECONDS:
                file, _, test = node_id.partition("::")
                dear[file][test] = round(took.cpu, 2)
        return found | {file: {**found[file], "tests": tests} for file, tests in dear.items()}


def _listed(took: Mapping[str, Took]) -> dict[str, dict[str, float]]:
    dearest = sorted(took.items(), key=lambda each: -each[1].cpu)
    return {name: {"cpu": round(each.cpu, 2), "wall": round(each.wall, 2)} for name, each in dearest}
