"""The requirements page lists exactly the acceptance tests, with their docstrings."""

import ast
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.unit.docs.test_docs import read

MODULES = sorted((ROOT / "tests" / "system" / "acceptance").glob("test_*.py"))
_ROW = re.compile(r"^\| (.+?) \| (.+?) \| `(test_\w+)` \|$", re.M)
_PLACE = re.compile(r"`((?:comfyui|desk|domain|services|store|system|web|worker)/[\w/.]*)`")


def docstrings(module: Path) -> dict[str, str]:
    """The tests of a module with their docstrings."""
    return {
        node.name: ast.get_docstring(node) or ""
        for node in ast.parse(read(module)).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def page_section(module: Path) -> str:
    """The part of the page about a module: from its name to the next heading."""
    _, _, rest = read(ROOT / "docs" / "reference" / "requirements.md").partition(
        f"`tests/system/acceptance/{module.name}`\n"
    )
    return rest.partition("\n## ")[0]


def test_acceptance_tests_are_found() -> None:
    assert MODULES


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_requirements_match_acceptance_tests(module: Path) -> None:
    assert {name: requirement for requirement, _, name in _ROW.findall(page_section(module))} == docstrings(module)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_named_modules_exist(module: Path) -> None:
    named = _PLACE.findall(page_section(module))
    assert [place for place in named if not (ROOT / "src" / "comfyrelay" / place).exists()] == []


def test_modules_of_every_source_document_exist() -> None:
    page = read(ROOT / "docs" / "reference" / "requirements.md")
    sources, _, desk = page.partition("\n## Functions\n")
    assert desk
    headings = re.findall(r"^## (.+)$", sources, re.M)
    assert headings == [
        "Where we differ",
        "ADR-0004: ComfyUI worker routing + leased dispatch queue",
        "ADR-0005: AWS Auto Scaling for ComfyUI Workers",
        "ADR-0006: AI Job Processing Pipeline",
        "Hash-Based Routing Architecture",
        "Queue Manager Design for ComfyUI Batch I2V",
    ]
    named = re.findall(r"`((?:[a-z_]+/)*[a-z_]+(?:\.py|/))`", sources)
    assert named
    assert [place for place in named if not (ROOT / "src" / "comfyrelay" / place).exists()] == []
