"""The CI workflows call commands that exist."""

import re
import tarfile
from pathlib import Path
from runpy import run_path

import pytest

from tests.support.paths import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_calls_existing_commands(path: Path) -> None:
    text = path.read_text("utf-8")
    assert set(re.findall(r"run: make ([a-z-]+)", text)) <= TARGETS
    for script in re.findall(r"python3? (tools/\S+\.py)", text):
        assert (ROOT / script).is_file()


def test_release_builds_checks_and_packs_before_it_publishes() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    called = re.findall(r"run: make ([a-z-]+)", text)
    assert called == ["audit", "dist", "chart", "images"]
    assert "needs: [test, build, smoke, images]" in text.partition("  publish:")[2]


def test_packed_chart_has_the_version_of_the_wheel(tmp_path: Path) -> None:
    place = run_path(str(ROOT / "tools" / "chart.py"))["pack"](tmp_path, "1.2.3")
    with tarfile.open(place) as archive:
        described = archive.extractfile("comfyrelay/Chart.yaml")
        assert described is not None
        text = described.read().decode()
        assert "comfyrelay/values.yaml" in archive.getnames()
    assert "version: 1.2.3\n" in text
    assert 'appVersion: "1.2.3"' in text
