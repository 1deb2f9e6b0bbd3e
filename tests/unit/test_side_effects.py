"""Every side effect outside the databases has a kill point, another test, or a reason to need none."""

import ast
from collections import Counter

import pytest

from tests.support.kill_points import find_function
from tests.support.paths import ROOT
from tests.support.side_effects import (
    ALL_KILL_POINTS,
    COVERED_BY,
    HARMLESS,
    TESTED_BY,
    find_side_effects,
    functions_with_side_effects,
)

FOUND = find_side_effects()
KILLED = {point.function for point in ALL_KILL_POINTS}


def test_every_side_effect_has_one_entry() -> None:
    entries = Counter([*KILLED, *COVERED_BY, *TESTED_BY, *HARMLESS])
    assert {name: FOUND[name] for name in FOUND if name not in entries} == {}
    assert [name for name, count in entries.items() if count > 1] == []


def test_entries_name_existing_functions_and_tests() -> None:
    listed = (*COVERED_BY, *TESTED_BY, *HARMLESS)
    assert [name for name in listed if name not in FOUND] == []
    assert {name: by for name, by in COVERED_BY.items() if by not in KILLED} == {}
    for name in KILLED:
        find_function(name)
    sources = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    assert [test for test in set(TESTED_BY.values()) if not any(f"def {test}(" in text for text in sources)] == []


@pytest.mark.parametrize(
    "statement",
    [
        "path.unlink()",
        "files.remove(path)",
        "await asyncio.to_thread(shutil.rmtree, path)",
        "await self._objects.put(path, data)",
        "with part_of(path): pass",
        "await self._http.post('/free')",
        "subprocess.Popen(command)",
    ],
)
def test_new_side_effect_is_found(statement: str) -> None:
    tree = ast.parse(f"class Desk:\n    async def change(self):\n        {statement}\n    def read(self): return 1\n")
    assert [name for name, _ in functions_with_side_effects(tree)] == ["Desk.change"]
