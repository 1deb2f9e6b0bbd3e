"""The page of requirements names every test of its folder, with its own words, and no other."""

import ast
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.unit.docs.test_docs import read

MODULES = sorted((ROOT / "tests" / "requirements").glob("test_*.py"))
_ROW = re.compile(r"^\| (.+?) \| (.+?) \| `(test_\w+)` \|$", re.M)
_PLACE = re.compile(r"`((?:comfy|desk|domain|services|store|web|worker)/[\w/.]*)`")


def told_in(module: Path) -> dict[str, str]:
    """The tests of a module with what they say of themselves."""
    return {
        each.name: ast.get_docstring(each) or ""
        for each in ast.parse(read(module)).body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test_")
    }


def page_of(module: Path) -> str:
    """The part of the page about a module: from its name to the next heading."""
    _, _, rest = read(ROOT / "docs" / "reference" / "requirements.md").partition(
        f"`tests/requirements/{module.name}`\n"
    )
    return rest.partition("\n## ")[0]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_every_requirement_has_a_test_and_every_test_is_a_requirement(module: Path) -> None:
    assert {name: words for words, _, name in _ROW.findall(page_of(module))} == told_in(module)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_every_place_that_is_named_exists(module: Path) -> None:
    named = _PLACE.findall(page_of(module))
    assert [each for each in named if not (ROOT / "src" / "comfyrelay" / each).exists()] == []
