"""Virtual environments with only the wheel and its dependencies.

Packages that are installed here are linked file by file: no network, and seconds instead of minutes.
"""

import os
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator, Sequence
from email import message_from_bytes
from importlib.metadata import Distribution, distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from comfyrelay.configuration import ENV_PREFIX
from tests.support.paths import ROOT

NAME = "comfyrelay"
# Variables that are not inherited from the environment of the tests.
_OWN = (ENV_PREFIX, "AWS_", "PYTHON")


class Wheel:
    def __init__(self, path: Path) -> None:
        self.path = path
        with ZipFile(path) as archive:
            [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            found = message_from_bytes(archive.read(metadata))
        self.extras = set(found.get_all("Provides-Extra", []))
        self._requirements = found.get_all("Requires-Dist", [])

    def direct(self, extra: str) -> set[str]:
        """Return the direct requirements of an extra, including extras of this package that it names."""
        found = set()
        for need in map(Requirement, self._requirements):
            if need.marker is not None and need.marker.evaluate({"extra": extra}):
                found |= {need.name} if need.name != NAME else set().union(*map(self.direct, need.extras))
        return found

    def needs(self, extras: Iterable[str] = ()) -> dict[str, Distribution]:
        """Return all packages that these extras install, by name."""
        needed: dict[str, Distribution] = {}
        done: set[tuple[str, str]] = set()
        pending = [(NAME, extra) for extra in ("", *extras)]
        while pending:
            name, extra = pending.pop()
            if (name, extra) in done:
                continue
            done.add((name, extra))
            if name != NAME:
                needed[name] = distribution(name)
            texts = self._requirements if name == NAME else needed[name].requires or []
            for need in _applicable(texts, extra):
                pending += [(canonicalize_name(need.name), option) for option in ("", *need.extras)]
        return needed


def _applicable(texts: Iterable[str], extra: str) -> Iterator[Requirement]:
    for need in map(Requirement, texts):
        if need.marker is None or need.marker.evaluate({"extra": extra}):
            yield need


def build_wheel(folder: Path) -> Wheel:
    """Build the wheel once per run."""
    for path in folder.glob("*.whl"):
        return Wheel(path)
    words = (sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    _checked(words)
    [path] = folder.glob("*.whl")
    return Wheel(path)


class Environment:
    """A virtual environment with the wheel and some extras, created once per run."""

    def __init__(self, folder: Path, wheel: Wheel, *extras: str) -> None:
        self._bin = folder / "bin"
        self._home = folder / "home"
        if not self._home.is_dir():
            self._make(folder, wheel, extras)
            self._home.mkdir()

    def _make(self, folder: Path, wheel: Wheel, extras: Sequence[str]) -> None:
        venv.create(folder, symlinks=True, with_pip=False)
        [packages] = folder.glob("lib/python*/site-packages")
        for need in wheel.needs(extras).values():
            _link(need, packages)
        self._pip("install", "--no-index", "--no-deps", str(wheel.path))
        # check that all requirements are installed in the right version
        self._pip("check")

    def environ(self, **more: str) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(_OWN)}
        return {**inherited, "HOME": str(self._home), "COLUMNS": "200", **more}

    def python(self, code: str) -> str:
        return _checked((str(self._bin / "python"), "-c", code), env=self.environ(), cwd=self._home)

    def words(self, *command: str) -> list[str]:
        return [str(self._bin / NAME), *command]

    def run(self, *command: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.words(*command),
            env=self.environ(**environ),
            cwd=self._home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def _pip(self, *words: str) -> None:
        _checked((sys.executable, "-m", "pip", "--python", str(self._bin / "python"), "--quiet", *words))


def _link(installed: Distribution, packages: Path) -> None:
    for file in installed.files or []:
        # skip scripts, which are outside the packages folder
        if ".." not in file.parts:
            place = packages / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(Path(str(installed.locate_file(file))))


def _checked(words: Sequence[str], *, env: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    done = subprocess.run(words, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
