"""Install npm packages that tests call unmodified."""

import shutil
import subprocess
from pathlib import Path

import pytest


def install(package: str, folder: Path) -> Path:
    """Install a package and return its folder; skip the test without node, npm or the registry."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip(f"{package} needs node and npm, which are not installed.")
    options = ["--no-audit", "--no-fund", "--no-save", "--ignore-scripts"]
    done = subprocess.run([npm, "install", *options, package], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"npm cannot install {package}: {done.stderr[-300:]}")
    return folder
