"""Render the docstrings of tests/system/acceptance as a page of the documentation site."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "tests" / "system" / "acceptance").glob("test_*.py"))
WHERE = "Where: "
_HEAD = """# Acceptance tests

The requirements of "Queue Manager Design for ComfyUI Batch I2V", where they are implemented (relative to
`src/comfyrelay`), and the test of each: `pytest tests/system/acceptance`.
"""


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """`where` names commands, settings, pages and modules."""

    text: str
    where: str
    test: str


def requirements_of(module: Path) -> Iterator[Requirement]:
    """Read the requirements from the docstrings of a module's tests."""
    for node in ast.parse(module.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            text, _, where = (ast.get_docstring(node) or "").partition(f"\n\n{WHERE}")
            yield Requirement(text=text, where=where, test=node.name)


def render_requirements() -> str:
    return "\n".join([_HEAD, *(line for module in MODULES for line in _render_module(module))])


def _render_module(module: Path) -> list[str]:
    title = (ast.get_docstring(ast.parse(module.read_text("utf-8"))) or module.stem).rstrip(".")
    rows = [f"| {found.text} | {found.where} | `{found.test}` |" for found in requirements_of(module)]
    return [f"## {title}", "", f"`{module.name}`", "", "| requirement | where | test |", "|---|---|---|", *rows, ""]
