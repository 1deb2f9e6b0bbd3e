"""ComfyUI is found in its usual places, together with the Python that has its packages."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from comfyrelay.comfyui.processes import python as pythons
from comfyrelay.comfyui.processes.installs import Install, InstallKind, SystemFolders, find_installs, resolve_install
from comfyrelay.comfyui.processes.options import ManagedOptions
from comfyrelay.comfyui.processes.python import check_python, find_python
from comfyrelay.errors import ConfigurationError
from comfyrelay.protocol.desk import CheckVerdict
from comfyrelay.worker import check

PLACES = ("home", "programs", "app-data", "disk")


@pytest.fixture
def places(tmp_path: Path) -> SystemFolders:
    home, programs, app_data, disk = (tmp_path / name for name in PLACES)
    for folder in (home, programs, app_data, disk):
        folder.mkdir()
    return SystemFolders(home=home, programs=(programs,), app_data=app_data, roots=(disk,))


def code(folder: Path, *, version: str = "0.7.0") -> Path:
    (folder / "comfy").mkdir(parents=True)
    (folder / "main.py").touch()
    (folder / "comfyui_version.py").write_text(f'# made by a release\n__version__ = "{version}"\n')
    return folder


def python(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def venv(folder: Path) -> Path:
    program = python(folder / "bin" / "python")
    (folder / "pyvenv.cfg").touch()
    return program


def manual(places: SystemFolders) -> tuple[Path, Path]:
    folder = code(places.home / "ComfyUI")
    return folder, venv(folder / "venv")


def with_comfy_cli(places: SystemFolders) -> tuple[Path, Path]:
    folder = code(places.home / "comfy" / "ComfyUI")
    return folder, venv(folder / ".venv")


def portable(places: SystemFolders) -> tuple[Path, Path]:
    folder = places.roots[0] / "ComfyUI_windows_portable"
    code(folder / "ComfyUI")
    return folder, python(folder / "python_embeded" / "bin" / "python")


def pinokio(places: SystemFolders) -> tuple[Path, Path]:
    folder = places.home / "pinokio" / "api" / "comfy.git"
    code(folder / "app")
    (folder / "pinokio.js").touch()
    return folder, venv(folder / "app" / "env")


def conda(places: SystemFolders) -> tuple[Path, Path]:
    folder = code(places.roots[0] / "ComfyUI")
    (folder / "conda_env" / "conda-meta").mkdir(parents=True)
    return folder, python(folder / "conda_env" / "bin" / "python")


def desktop(places: SystemFolders) -> tuple[Path, Path]:
    code(places.programs[0] / "ComfyUI")
    base = places.home / "Documents" / "My ComfyUI"
    own = places.app_data / "ComfyUI"
    own.mkdir()
    (own / "config.json").write_text(json.dumps({"basePath": str(base), "installState": "installed"}))
    (own / "extra_models_config.yaml").touch()
    return base, venv(base / ".venv")


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (manual, InstallKind.MANUAL),
        (with_comfy_cli, InstallKind.MANUAL),
        (portable, InstallKind.PORTABLE),
        (pinokio, InstallKind.PINOKIO),
        (conda, InstallKind.MANUAL),
        (desktop, InstallKind.DESKTOP),
    ],
)
def test_every_kind_of_install_is_found_and_named(
    places: SystemFolders, make: Callable[[SystemFolders], tuple[Path, Path]], kind: InstallKind
) -> None:
    folder, expected_python = make(places)
    [found] = find_installs(places)
    assert (found.kind, found.named, found.version) == (kind, folder, "0.7.0")
    assert resolve_install(folder, places) == found
    assert find_python(found, variables={}) == expected_python


def test_every_install_is_found_once(places: SystemFolders) -> None:
    named = {make(places)[0] for make in (manual, portable, pinokio, desktop)}
    (places.home / "comfyui").symlink_to(places.home / "ComfyUI")
    assert {install.named for install in find_installs(places)} == named


def test_desktop_app_uses_the_model_folder_of_its_user(places: SystemFolders) -> None:
    base, _ = desktop(places)
    found = resolve_install(base, places)
    assert found.code == places.programs[0] / "ComfyUI"
    assert (found.data, found.extra_models) == (base, places.app_data / "ComfyUI" / "extra_models_config.yaml")


def test_main_py_of_another_program_is_not_an_install(places: SystemFolders) -> None:
    other = places.home / "ComfyUI-tools"
    other.mkdir()
    (other / "main.py").touch()
    assert find_installs(places) == []
    with pytest.raises(ConfigurationError, match="No ComfyUI found in"):
        resolve_install(other, places)


def test_path_may_name_main_py(places: SystemFolders) -> None:
    folder, _ = manual(places)
    assert resolve_install(folder / "main.py", places).code == folder


def test_missing_folder_is_reported(places: SystemFolders) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        resolve_install(places.home / "nowhere", places)


def test_supported_options_of_a_version_are_known(places: SystemFolders) -> None:
    folder, _ = manual(places)
    (folder / "comfy" / "cli_args.py").write_text('parser.add_argument("--user-directory")')
    found = resolve_install(folder, places)
    assert found.has_option("--user-directory")
    assert not found.has_option("--database-url")


class TestPython:
    @pytest.fixture
    def install(self, places: SystemFolders) -> Install:
        return Install(kind=InstallKind.MANUAL, named=code(places.home / "ComfyUI"), code=places.home / "ComfyUI")

    def test_named_python_is_preferred(self, install: Install, tmp_path: Path) -> None:
        venv(install.code / "venv")
        other = venv(tmp_path / "other")
        assert find_python(install, given=other) == other
        assert find_python(install, given=tmp_path / "other") == other
        with pytest.raises(ConfigurationError, match=r"^HERE is .* which is not a Python"):
            find_python(install, given=tmp_path, setting="HERE")

    def test_broken_environment_is_an_error(self, install: Install, tmp_path: Path) -> None:
        program = venv(install.code / "venv")
        program.unlink()
        program.symlink_to(tmp_path / "gone")
        active = venv(tmp_path / "active")
        with pytest.raises(ConfigurationError, match=r"venv of ComfyUI cannot be used.*HERE"):
            find_python(install, setting="HERE", variables={"VIRTUAL_ENV": str(active.parents[1])})

    def test_folder_that_is_not_an_environment_is_skipped(self, install: Install, tmp_path: Path) -> None:
        (install.code / "env").mkdir()
        active = tmp_path / "active"
        program = venv(active)
        (active / "lib" / "python3.12" / "site-packages" / "torch").mkdir(parents=True)
        assert find_python(install, variables={"CONDA_PREFIX": str(active)}) == program

    def test_current_python_is_used_only_if_it_has_torch(
        self, install: Install, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pythons, "find_spec", lambda _name: None)
        with pytest.raises(ConfigurationError, match="No Python was found"):
            find_python(install, variables={})
        monkeypatch.setattr(pythons, "find_spec", lambda name: name == "torch")
        assert find_python(install, variables={}) == Path(sys.executable)

    def test_python_without_torch_is_reported_with_its_own_error(self, tmp_path: Path) -> None:
        broken = python(tmp_path / "bin" / "python")
        broken.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n")
        assert check_python(broken) == ("ModuleNotFoundError: No module named 'torch'.", "")
        assert (check_python(tmp_path / "none")[0] or "").startswith("it does not run")

    @pytest.mark.parametrize(
        ("body", "verdict", "text"),
        [
            ("echo 2.9.1", CheckVerdict.FINE, "and torch 2.9.1. ComfyRelay can start it: start "),
            (
                "echo \"No module named 'torch'\" >&2; exit 1",
                CheckVerdict.WARNING,
                "cannot run it: No module named 'torch'.",
            ),
            (None, CheckVerdict.WARNING, "Set HERE to the Python that you start it with."),
        ],
    )
    async def test_check_names_the_python_and_whether_it_works(
        self, install: Install, monkeypatch: pytest.MonkeyPatch, body: str | None, verdict: CheckVerdict, text: str
    ) -> None:
        monkeypatch.setattr(pythons, "find_spec", lambda _name: None)
        monkeypatch.setattr(check, "find_installs", lambda: [install])
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
            monkeypatch.delenv(name, raising=False)
        if body is not None:
            venv(install.code / "venv").write_text(f"#!/bin/sh\n{body}\n")
        [found] = await check.check_installs(lambda folder: f"start {folder}", python=None, setting="HERE")
        assert (found.verdict, text in found.text) == (verdict, True), found.text
        assert found.text.endswith(f"start {install.named}")

    @pytest.mark.parametrize(("version", "word"), [("0.2.0", "older"), ("99.0", "newer")])
    async def test_check_warns_of_an_untested_version(
        self, install: Install, monkeypatch: pytest.MonkeyPatch, version: str, word: str
    ) -> None:
        (install.code / "comfyui_version.py").write_text(f'__version__ = "{version}"\n')
        venv(install.code / "venv").write_text("#!/bin/sh\necho 2.9.1\n")
        monkeypatch.setattr(check, "find_installs", lambda: [install])
        monkeypatch.setattr(check, "find_gpus", lambda _arguments: [])
        [found] = await check.check_installs(lambda folder: f"start {folder}", python=None, setting="HERE")
        managed = await check.check_managed_comfyui(ManagedOptions(folder=install.code))
        for result in (found, managed):
            assert result.verdict is CheckVerdict.WARNING, result.text
            assert f"ComfyUI {version} is {word} than" in result.text
