"""`make dist` builds the same files from the same sources, anywhere and at any time."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.paths import ROOT

OLD_TIME, NEW_TIME = 1_000_000_000, 1_700_000_000
Hashes = dict[str, str]


def _copy(folder: Path, *, mtime: int) -> Path:
    """The sources without git and without a built web app."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
            os.utime(folder / name, (mtime, mtime))
    # The packages of the web app were installed for the other tests.
    shutil.copytree(ROOT / "ui" / "node_modules", folder / "ui" / "node_modules", symlinks=True)
    return folder


def _make_dist(folder: Path) -> Hashes:
    for script in ("ui/build.py", "tools/dist.py"):
        subprocess.run([sys.executable, script], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "dist").iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, built_app: None) -> tuple[Path, Hashes, Hashes]:
    folder = tmp_path_factory.mktemp("dist")
    first = _copy(folder / "first", mtime=OLD_TIME)
    second = _copy(folder / "elsewhere" / "in a deeper folder", mtime=NEW_TIME)
    with ThreadPoolExecutor() as pool:
        one, other = pool.map(_make_dist, (first, second))
    return first / "dist", one, other


def test_two_builds_have_the_same_bytes(built: tuple[Path, Hashes, Hashes]) -> None:
    _, one, other = built
    assert len(one) >= 2
    assert one == other


def test_sdist_and_wheel_have_the_web_app_and_no_tests(built: tuple[Path, Hashes, Hashes]) -> None:
    folder, *_ = built
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with ZipFile(wheel) as archive:
        packed = archive.namelist()
    with tarfile.open(sdist) as archive:
        sources = [name.partition("/")[2] for name in archive.getnames()]
    assert "comfyrelay/web/app/index.html" in packed
    assert "src/comfyrelay/web/app/index.html" in sources
    assert {name.partition("/")[0].partition("-")[0] for name in packed} == {"comfyrelay"}
    assert not [name for name in sources if "node_modules" in name or name.startswith(("tests/", "docs/"))]
