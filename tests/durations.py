"""Where the time of a run goes: told at its end, and used to begin with what takes longest.

Each process of a run takes whole files, so that what the tests of a file share is made once; a long file at the end
would leave the others idle.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

RECORDED = Path(__file__).with_name("durations.json")
MOST = 15


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-durations", action="store_true", help=f"write what the files took to {RECORDED.name}")


def pytest_configure(config: pytest.Config) -> None:
    # the processes of a run report to the one that started them
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(is_written=config.getoption("--write-durations")))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = longest_first(items, recorded())


def longest_first(items: list[pytest.Item], seconds: Mapping[str, float]) -> list[pytest.Item]:
    """File by file, in each as it stands there; one that was never measured comes first."""
    places: dict[str, int] = {}
    for each in items:
        places.setdefault(file_of(each.nodeid), len(places))

    def rank(item: pytest.Item) -> tuple[float, int]:
        file = file_of(item.nodeid)
        return -seconds.get(file, float("inf")), places[file]

    return sorted(items, key=rank)


def recorded() -> dict[str, float]:
    found: dict[str, float] = json.loads(RECORDED.read_text("utf-8")) if RECORDED.exists() else {}
    return found


def file_of(node_id: str) -> str:
    return node_id.partition("::")[0]


class Durations:
    def __init__(self, *, is_written: bool) -> None:
        self._is_written = is_written
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[file_of(report.nodeid)] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        total = sum(self._seconds.values())
        if len(self._seconds) > 1:
            terminalreporter.section(f"{total:.0f} s of tests, and the files that took most of them")
            for file, seconds in sorted(self._seconds.items(), key=lambda each: -each[1])[:MOST]:
                terminalreporter.write_line(f"{seconds:7.1f} s  {seconds / total:4.0%}  {file}")
        if self._is_written:
            here = RECORDED.parent.parent
            kept = {file: seconds for file, seconds in recorded().items() if (here / file).exists()}
            now = {file: round(seconds, 1) for file, seconds in self._seconds.items()}
            RECORDED.write_text(json.dumps(kept | now, indent=1, sort_keys=True) + "\n", "utf-8")
