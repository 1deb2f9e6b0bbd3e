"""The Dockerfiles pass hadolint."""

import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.support.compose_files import (
    DOCKERFILES,
)

BIN = Path(sysconfig.get_path("scripts"))


def hadolint(path: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([BIN / "hadolint", path], capture_output=True, text=True, check=False)


@pytest.fixture(params=DOCKERFILES, ids=lambda path: path.name)
def dockerfile(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_dockerfile_passes_the_linter(dockerfile: Path) -> None:
    done = hadolint(dockerfile)
    assert (done.returncode, done.stdout) == (0, "")


def test_linter_finds_errors(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM python\nRUN cd /tmp && sudo pip install requests\n")
    assert hadolint(bad).returncode != 0
