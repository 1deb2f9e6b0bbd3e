"""`make dist` builds the same files from the same sources, anywhere and at any time."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from runpy import run_path
from zipfile import ZipFile

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.utils import canonicalize_name

from tests.support.environments import Wheel
from tests.support.paths import ROOT

OLD_TIME, NEW_TIME = 1_000_000_000, 1_700_000_000
Hashes = dict[str, str]


def _copy(folder: Path, *, mtime: int) -> Path:
    """Copy the sources without git and without a built web app."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
            os.utime(folder / name, (mtime, mtime))
    # Use the packages of the web app that were installed for other tests.
    shutil.copytree(ROOT / "ui" / "node_modules", folder / "ui" / "node_modules", symlinks=True)
    return folder


def _make_dist(folder: Path) -> Hashes:
    # Only the web app needs Node; the wheel is built from the sdist without Node.
    without_node = {**os.environ, "PATH": "", "PIP_NO_INDEX": "1"}
    for script, env in (("ui/build.py", None), ("tools/dist.py", without_node), ("tools/sbom.py", without_node)):
        subprocess.run([sys.executable, script], cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
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
    assert len(one) == 3
    assert one == other


def test_file_over_its_limit_fails_the_build(tmp_path: Path) -> None:
    too_large = run_path(str(ROOT / "tools" / "dist.py"))["too_large"]
    (tmp_path / "a.whl").write_bytes(bytes(11))
    assert too_large(tmp_path / "a.whl", {".whl": 10}) == "a.whl has 11 bytes; the limit is 10."
    assert too_large(tmp_path / "a.whl", {".whl": 11}) is None


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


def test_wheel_has_the_licence_of_every_package_in_the_web_app(built: tuple[Path, Hashes, Hashes]) -> None:
    folder, *_ = built
    [wheel] = folder.glob("*.whl")
    with ZipFile(wheel) as archive:
        app = "comfyrelay/web/app"
        notices = archive.read(f"{app}/licenses.txt").decode()
        packages = json.loads(archive.read(f"{app}/packages.json"))
        scripts = b"".join(archive.read(name) for name in archive.namelist() if name.endswith(".js"))
        fonts = {Path(name).name.partition("-")[0] for name in archive.namelist() if name.endswith(".woff2")}
    names = {package["name"] for package in packages}
    for package in packages:
        _, _, text = notices.partition(f"\n{package['name']} {package['version']} ({package['license']})\n\n")
        assert len(text.partition("-" * 80)[0]) > 400, package["name"]
    # These packages are found in the built files, independent of the list.
    assert fonts == {"inter"}
    assert "@fontsource-variable/inter" in names
    for name in ("react-dom", "uplot", "cmdk"):
        assert name.encode() in scripts
        assert name in names


def test_sbom_is_valid_and_lists_all_packages(built: tuple[Path, Hashes, Hashes], wheel: Wheel) -> None:
    folder, *_ = built
    [path] = folder.glob("*.cdx.json")
    text = path.read_text("utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    listed = {each["purl"]: each for each in json.loads(text)["components"]}
    names = {url.partition("@")[0].removeprefix("pkg:pypi/") for url in listed}
    assert {canonicalize_name(name) for name in wheel.needs(wheel.extras)} <= names
    assert "pkg:npm/react" in {url.partition("@")[0] for url in listed}
    assert {"pytest", "cyclonedx-python-lib", "hatchling"} & names == set()
    # The metadata of this package states no licence.
    assert {each["name"] for each in listed.values() if "licenses" not in each} <= {"comfyui-frontend-package"}
