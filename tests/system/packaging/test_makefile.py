"""`make install` passes the right packages to pip."""

import re
import shutil
import subprocess
from pathlib import Path

from tests.support.paths import ROOT

NAME = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==", re.MULTILINE)


def test_each_package_is_installed_once_and_pip_last(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    recorder = "echo >>asked.txt"
    instead = ("ENVIRONMENT=mkdir -p .venv", f"PACKAGES=sh -c '{recorder} $$0'", "PROJECT=true")
    subprocess.run(["make", "install", *instead], cwd=tmp_path, check=True, capture_output=True)
    *parts, last = (tmp_path / "asked.txt").read_text().split()
    assert sorted(parts) == [f".venv/part-{number}.txt" for number in range(4)]
    names = {part: NAME.findall((tmp_path / part).read_text()) for part in (*parts, last)}
    assert sorted(names.pop(last)) == ["pip", "setuptools"]
    pinned = NAME.findall((ROOT / "requirements/dev.txt").read_text())
    assert sorted(["pip", "setuptools", *(name for found in names.values() for name in found)]) == sorted(pinned)
