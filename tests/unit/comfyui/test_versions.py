"""ComfyUI versions are compared by number, and the documentation lists the tested versions."""

import ast

import pytest

from comfyrelay.comfyui.versions import TRIED, TRIED_ON, version_key, version_note
from tests.support.paths import ROOT


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("0.28.0", (0, 28, 0)),
        ("v0.7.0", (0, 7, 0)),
        ("0.28.0rc1", (0, 28, 0)),
        ("0.3.64+local", (0, 3, 64)),
        ("", None),
    ],
)
def test_version_is_read_up_to_its_suffix(text: str, key: tuple[int, ...] | None) -> None:
    assert version_key(text) == key


def test_versions_are_compared_by_number() -> None:
    assert sorted(["0.28.0", "0.7.0", "0.3.64"], key=version_key) == list(TRIED)  # type: ignore[arg-type]


@pytest.mark.parametrize(("version", "word"), [("0.3.10", "older"), ("0.38.1", "newer"), ("1.0", "newer")])
def test_untested_version_has_a_note(version: str, word: str) -> None:
    assert f"ComfyUI {version} is {word} than" in str(version_note(version))


@pytest.mark.parametrize("version", [*TRIED, "0.10.2", "unknown"])
def test_version_between_tested_versions_has_no_note(version: str) -> None:
    assert version_note(version) is None


def test_documentation_lists_the_tested_versions() -> None:
    page = (ROOT / "docs/reference/comfyui-versions.md").read_text("utf-8")
    header = next(line for line in page.splitlines() if line.startswith("| Tried"))
    assert [cell.strip() for cell in header.strip("|").split("|")][1:] == list(TRIED)
    assert TRIED_ON in page


def test_documentation_lists_every_row_of_the_suite() -> None:
    """The rows have the order of the suite, in which `make compat ARGS=--write` writes them."""
    modules = [ast.parse((ROOT / "tests/compat" / name).read_text("utf-8")) for name in ("suite.py", "mixed_fleet.py")]
    functions = [node for module in modules for node in module.body if isinstance(node, ast.AsyncFunctionDef)]
    tests = [function for function in functions if function.name.startswith("test_")]
    rows = [str(ast.get_docstring(function)).splitlines()[0] for function in tests]
    page = (ROOT / "docs/reference/comfyui-versions.md").read_text("utf-8")
    table = page.partition("<!-- table -->")[2].partition("<!-- end of table -->")[0]
    listed = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][1:]
    assert listed == list(dict.fromkeys(rows))
