"""Which tests run with every change, so that it takes minutes; the others do in `make long`.

Most tests take next to nothing. One that is known to take more of the processors than `DEAR_SECONDS` is left for later,
but for

- the cheapest case of each test that `docs/reference/guarantee-index.md` names, and of a file that it names as a whole
  the cheapest of all, if nothing else of it would run;
- of a group, a class or a file, of which nothing else would run, the cheapest, unless it takes more than
  `DEAREST_SECONDS`;
- of crashes, which are a sample already, every third: all others of the sample run in `make long`;
- what is marked `everyday`.

What is asked for by its file or by a word runs whatever it takes, and so does what was never measured.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from tests.durations import DEAR_SECONDS, file_of, recorded
from tests.on_postgresql import CHOSEN, GUARANTEES, guaranteed

DEAREST_SECONDS = 0.6
CRASHES_APART = 3
# Their tests share a server, a browser or a desk, which take seconds to set up: whichever comes first takes that.
SHARED = frozenset(
    {
        "tests/system/desk/test_commands.py",
        "tests/integration/autoscaling/aws/test_terraform.py",
        "tests/system/browser/test_console_catalogue.py",
        "tests/system/browser/test_console_operating.py",
        "tests/system/browser/test_studio.py",
    }
)


@dataclass(frozen=True)
class Case:
    """A test with its parameters, as it is named on the command line."""

    node_id: str

    @property
    def file(self) -> str:
        return file_of(self.node_id)

    @property
    def group(self) -> str:
        return self.test.rpartition("::")[0]

    @property
    def test(self) -> str:
        return self.node_id.partition("[")[0]

    @property
    def name(self) -> str:
        return self.test.rpartition("::")[2]


def left_for_later(cases: list[Case], seconds: Mapping[str, float], named: Mapping[str, set[str]]) -> Iterator[Case]:
    """Those that need not run with every change."""

    def cost(case: Case) -> float:
        return seconds.get(case.node_id, 0.0) + (2 * DEAREST_SECONDS if case.file in SHARED else 0.0)

    dear = {each for each in cases if cost(each) > DEAR_SECONDS}
    files: defaultdict[str, list[Case]] = defaultdict(list)
    groups: defaultdict[str, list[Case]] = defaultdict(list)
    tests: defaultdict[str, list[Case]] = defaultdict(list)
    for each in cases:
        files[each.file].append(each)
        groups[each.group].append(each)
        if each.name in named.get(each.file, ()):
            tests[each.test].append(each)
    samples = {min(group, key=cost) for group in groups.values() if dear.issuperset(group)}
    whole = [files[file] for file, those in named.items() if not those and dear.issuperset(files[file])]
    kept = {
        *(each for each in samples if cost(each) <= DEAREST_SECONDS),
        *(min(each, key=cost) for each in (*tests.values(), *whole) if each),
        *[each for each in cases if each in dear and each.file.startswith(CHOSEN)][::CRASHES_APART],
    }
    return (each for each in cases if each in dear and each not in kept)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # after those that do not come to PostgreSQL now were found: they do not count among what runs
    is_asked_for = config.option.keyword or any("::" in each or each.endswith(".py") for each in config.args)
    if is_asked_for:
        return
    marked = ("long", "everyday")
    candidates = {Case(item.nodeid): item for item in items if not any(map(item.get_closest_marker, marked))}
    later = left_for_later([*candidates], recorded().tests, guaranteed(GUARANTEES.read_text("utf-8")))
    for each in later:
        candidates[each].add_marker(pytest.mark.long)
