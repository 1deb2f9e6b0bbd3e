"""Every acceptance test has a requirement, and the pages about requirements name existing modules."""

import re
from pathlib import Path

import pytest

from docs.tools.acceptance_tests import MODULES, render_requirements, requirements_of
from tests.support.paths import ROOT
from tests.unit.docs.test_docs import read

_MODULE = re.compile(r"`((?:[a-z_]+/)*[a-z_]+(?:\.py|/))`")
SOURCES = [
    "Where we differ",
    "ADR-0004: ComfyUI worker routing + leased dispatch queue",
    "ADR-0005: AWS Auto Scaling for ComfyUI Workers",
    "ADR-0006: AI Job Processing Pipeline",
    "Hash-Based Routing Architecture",
    "Queue Manager Design for ComfyUI Batch I2V",
]


def modules_in(text: str) -> list[str]:
    """Return the modules and packages that a text names."""
    return _MODULE.findall(text)


def missing_modules(text: str) -> list[str]:
    return [name for name in modules_in(text) if not (ROOT / "src" / "comfyrelay" / name).exists()]


def test_acceptance_tests_are_found() -> None:
    assert MODULES


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_acceptance_test_names_its_requirement_and_where_it_is_implemented(module: Path) -> None:
    found = list(requirements_of(module))
    assert found
    assert [
        entry.test for entry in found if not entry.text.endswith(".") or "\n" in entry.text or not entry.where
    ] == []
    assert missing_modules("\n".join(entry.where for entry in found)) == []


def test_acceptance_page_lists_each_test_once() -> None:
    page = render_requirements()
    tests = [found.test for module in MODULES for found in requirements_of(module)]
    assert [test for test in tests if page.count(f"`{test}` |") != 1] == []


def test_modules_of_every_source_document_exist() -> None:
    page = read(ROOT / "docs" / "reference" / "requirements.md")
    assert re.findall(r"^## (.+)$", page, re.M) == SOURCES
    assert modules_in(page)
    assert missing_modules(page) == []
