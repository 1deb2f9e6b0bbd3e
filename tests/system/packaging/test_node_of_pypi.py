"""Without Node on the machine, the web app is built with Node from PyPI, and a worker is installed without Node."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT


@pytest.fixture
def path_without_node(tmp_path: Path) -> str:
    """Return a PATH with all programs of the machine except Node's."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for path in Path(folder).glob("*"):
            if path.name not in {"node", "nodejs", "npm", "npx", "corepack", "pnpm"}:
                (programs / path.name).unlink(missing_ok=True)
                (programs / path.name).symlink_to(path)
    return str(programs)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return the sources without a built web app."""
    folder = tmp_path / "checkout"
    not_copied = shutil.ignore_patterns("node_modules", "__pycache__")
    for name in ("ui", "requirements", "src", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=not_copied)
    shutil.rmtree(folder / "src" / "comfyrelay" / "web" / "app", ignore_errors=True)
    for name in ("pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    return folder


def test_web_app_is_built_without_a_local_node(checkout: Path, path_without_node: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = next(path for path in (tmp_path / "venv").glob("*/python*") if path.stem == "python")
    subprocess.run([python, "ui/build.py"], cwd=checkout, env={**os.environ, "PATH": path_without_node}, check=True)
    assert (checkout / "src" / "comfyrelay" / "web" / "app" / "index.html").is_file()


@pytest.mark.parametrize("is_worker", [True, False])
def test_worker_is_installed_without_node(
    is_worker: bool, checkout: Path, path_without_node: str, tmp_path: Path
) -> None:
    env = {**os.environ, "PATH": path_without_node, "COMFYRELAY_WITHOUT_UI": str(int(is_worker))}
    needed = "from hatchling.build import get_requires_for_build_wheel as needs; print(needs())"
    found = subprocess.run([sys.executable, "-c", needed], cwd=checkout, env=env, check=True, capture_output=True)
    assert (found.stdout == b"[]\n") is is_worker
    # without a package index, nothing can be downloaded for the build
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--quiet", "--target", str(tmp_path / "installed"))
    pip = [sys.executable, "-m", "pip", "install", *offline, "."]
    installed = subprocess.run(pip, cwd=checkout, env={**env, "PIP_NO_INDEX": "1"}, check=False, capture_output=True)
    assert (installed.returncode == 0) is is_worker, installed.stderr
    assert (tmp_path / "installed" / "comfyrelay" / "worker").is_dir() is is_worker
