"""Without Node on the machine, the web app is built with Node from PyPI."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT


def test_web_app_is_built_without_a_local_node(tmp_path: Path) -> None:
    """PATH has all programs of the machine except Node's."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for path in Path(folder).glob("*"):
            if path.name not in {"node", "nodejs", "npm", "npx", "corepack", "pnpm"}:
                (programs / path.name).unlink(missing_ok=True)
                (programs / path.name).symlink_to(path)
    checkout = tmp_path / "checkout"
    not_copied = shutil.ignore_patterns("node_modules", "__pycache__")
    shutil.copytree(ROOT / "ui", checkout / "ui", ignore=not_copied)
    shutil.copytree(ROOT / "requirements", checkout / "requirements")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = next(path for path in (tmp_path / "venv").glob("*/python*") if path.stem == "python")
    subprocess.run([python, "ui/build.py"], cwd=checkout, env={**os.environ, "PATH": str(programs)}, check=True)
    assert (checkout / "src" / "comfyrelay" / "web" / "app" / "index.html").is_file()
