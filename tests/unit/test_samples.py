"""Which tests run with every change: nothing that is guaranteed is left for later."""

from pathlib import Path

import pytest

from tests.durations import DEAR_SECONDS, recorded
from tests.everyday import DEAREST_SECONDS, SHARED, Case, left_for_later
from tests.integration.crashes.cases import on_both, sampled_on_both
from tests.integration.crashes.test_crashes import CASES, SCENARIOS
from tests.on_postgresql import CHOSEN, GUARANTEES, WHOLE, guaranteed
from tests.support.paths import ROOT


def now(cases: list[object], backend: str) -> list[tuple[object, ...]]:
    """The values of those that run with every change."""
    return [each.values[1:] for each in cases if each.values[0] == backend and not each.marks]  # type: ignore[attr-defined]


def test_tests_are_named_one_by_one_or_by_their_file() -> None:
    text = "`tests/a.py` (`test_x`, `test_y`); `tests/b.py`; `tests/c.py` (`test_x`), `tests/c.py`"
    assert guaranteed(text) == {"tests/a.py": {"test_x", "test_y"}, "tests/b.py": set(), "tests/c.py": set()}


@pytest.mark.parametrize(("file", "tests"), sorted(guaranteed(GUARANTEES.read_text("utf-8")).items()))
def test_what_the_guarantees_name_is_there(file: str, tests: set[str]) -> None:
    source = (ROOT / file).read_text("utf-8")
    assert [each for each in sorted(tests) if f"def {each}(" not in source] == []


@pytest.mark.parametrize("file", sorted(file for file in guaranteed(GUARANTEES.read_text("utf-8")) if "test_" in file))
def test_something_of_each_file_that_the_guarantees_name_runs_with_every_change(file: str) -> None:
    """After all that leaves something for later: by what is known of each, beside what was never measured."""
    named = guaranteed(GUARANTEES.read_text("utf-8"))
    known = {node_id: cpu for node_id, cpu in recorded().tests.items() if node_id.startswith(f"{file}::")}
    cases = [Case(each) for each in known]
    assert not known or len([*left_for_later(cases, known, named)]) < len(cases)


@pytest.mark.parametrize("file", sorted(WHOLE))
def test_files_that_come_to_postgresql_as_a_whole_are_there(file: str) -> None:
    assert Path(ROOT / file).is_file()


def test_every_boundary_and_every_scenario_is_in_the_sample_of_crashes() -> None:
    chosen = sampled_on_both([*CASES.values()], named=2)
    on_sqlite, on_postgresql = now([*chosen], "sqlite"), now([*chosen], "postgresql")
    assert {(step, boundary) for step, boundary, *_ in on_sqlite} == {*CASES}
    assert {scenario for _, _, scenario, _ in on_sqlite} == {*SCENARIOS}
    assert {step for step, *_ in on_postgresql} == {step for step, _ in CASES}
    assert len(chosen) == 2 * sum(map(len, CASES.values()))


def test_of_each_group_all_run_on_sqlite_and_the_first_on_postgresql() -> None:
    chosen = on_both([[("a",), ("b",)], [("c",)]])
    assert now([*chosen], "sqlite") == [("a",), ("b",), ("c",)]
    assert now([*chosen], "postgresql") == [("a",), ("c",)]


DEAR, DEARER, CHEAP = DEAR_SECONDS * 2, DEAR_SECONDS * 3, DEAR_SECONDS / 2


def later(seconds: dict[str, float], named: dict[str, set[str]] | None = None) -> list[str]:
    return [each.node_id for each in left_for_later([Case(each) for each in seconds], seconds, named or {})]


def test_what_takes_long_is_left_for_later_and_what_does_not_never_is() -> None:
    assert later({"a.py::test_x": DEAR, "a.py::test_y": CHEAP, "a.py::TestZ::test_z": CHEAP}) == ["a.py::test_x"]


def test_of_a_group_of_which_nothing_else_would_run_the_cheapest_runs() -> None:
    seconds = {"a.py::test_x": CHEAP, "a.py::TestZ::test_x[1]": DEARER, "a.py::TestZ::test_y": DEAR}
    assert later(seconds) == ["a.py::TestZ::test_x[1]"]
    assert later({"a.py::test_x": DEAREST_SECONDS + 1}) == ["a.py::test_x"]


def test_one_case_of_what_is_guaranteed_runs_whatever_it_takes() -> None:
    seconds = {
        "a.py::test_x[a]": DEAREST_SECONDS + 2,
        "a.py::test_x[b]": DEAREST_SECONDS + 1,
        "a.py::test_y": DEAR,
        "a.py::test_z": CHEAP,
    }
    assert later(seconds, {"a.py": {"test_x"}}) == ["a.py::test_x[a]", "a.py::test_y"]
    assert later(seconds, {"a.py": set()}) == ["a.py::test_x[a]", "a.py::test_x[b]", "a.py::test_y"]


def test_of_a_file_that_is_guaranteed_as_a_whole_one_test_runs_whatever_it_takes() -> None:
    seconds = {"a.py::test_x": DEAREST_SECONDS + 2, "a.py::TestZ::test_y": DEAREST_SECONDS + 1}
    assert later(seconds, {"a.py": set()}) == ["a.py::test_x"]


def test_of_crashes_every_third_runs() -> None:
    seconds = {f"{CHOSEN}a.py::test_x[{number}]": DEAR for number in range(7)} | {f"{CHOSEN}a.py::test_y": CHEAP}
    assert later(seconds) == [f"{CHOSEN}a.py::test_x[{number}]" for number in (1, 2, 4, 5)]


@pytest.mark.parametrize("file", sorted(SHARED))
def test_what_shares_a_dear_set_up_is_not_cheap(file: str) -> None:
    assert (ROOT / file).is_file()
    assert later({f"{file}::test_x": CHEAP, f"{file}::test_y": CHEAP}) == [f"{file}::test_x", f"{file}::test_y"]
