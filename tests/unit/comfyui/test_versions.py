"""Versions of ComfyUI are compared by number, and the documentation lists the tried ones."""

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
def test_version_outside_the_tried_ones_has_a_note(version: str, word: str) -> None:
    assert f"ComfyUI {version} is {word} than" in str(version_note(version))


@pytest.mark.parametrize("version", [*TRIED, "0.10.2", "unknown"])
def test_version_between_the_tried_ones_has_no_note(version: str) -> None:
    assert version_note(version) is None


def test_documentation_lists_the_tried_versions() -> None:
    page = (ROOT / "docs/reference/comfyui-versions.md").read_text("utf-8")
    header = next(line for line in page.splitlines() if line.startswith("| Tried"))
    assert [cell.strip() for cell in header.strip("|").split("|")][1:] == list(TRIED)
    assert TRIED_ON in page
