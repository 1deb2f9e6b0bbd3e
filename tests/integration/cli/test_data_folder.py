"""Commands read the configuration file of their data folder."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from comfyrelay.cli.jobs.run import _connect
from comfyrelay.cli.main import app
from comfyrelay.cli.target import load_settings_of
from comfyrelay.desk import running_desks
from comfyrelay.desk.desk import Desk
from comfyrelay.errors import ConfigurationError
from comfyrelay.system import permissions
from comfyrelay.system.owner_secret import RunningDesk
from tests.support.server_processes import free_port


@pytest.fixture(autouse=True)
def default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the default data folder, which is empty, in an environment without settings."""
    for name in list(os.environ):
        if name.startswith(("COMFYRELAY_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running_desks, "running_desks", list)
    folder = tmp_path / ".local" / "share" / "comfyrelay"
    folder.mkdir(parents=True)
    return folder


def write_settings(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "comfyrelay.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("command", [["backup", "to"], ["restore", "from"], ["password"], ["comfyui", "list"]])
def test_command_reads_the_file_of_its_data_folder(command: list[str], tmp_path: Path) -> None:
    path = write_settings(tmp_path / "mine", "prot = 1\n")
    result = CliRunner().invoke(app, [*command, "--data-dir", str(tmp_path / "mine")])
    assert isinstance(result.exception, ConfigurationError)
    assert f"{path}: unknown setting 'prot'" in result.exception.detail


def test_settings_of_a_running_desk_are_read_from_its_folder(
    default_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(default_folder, "max_attempts = 4\n")
    write_settings(tmp_path / "mine", "max_attempts = 5\n")
    assert load_settings_of(None).max_attempts == 4
    desk = RunningDesk("http://127.0.0.1:9000", tmp_path / "mine")
    monkeypatch.setattr(running_desks, "running_desks", lambda: [desk])
    settings = load_settings_of(None)
    assert (settings.max_attempts, settings.data_dir) == (5, tmp_path / "mine")


def test_page_writes_to_the_file_that_sets_the_data_folder(
    default_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_settings(default_folder, f"data_dir = '{tmp_path / 'disk'}'\nport = {free_port()}\n")
    found = []

    async def run(self: Desk) -> None:
        found.append((self.settings.data_dir, self._live_settings(self.settings).file))

    monkeypatch.setattr(Desk, "run", run)
    monkeypatch.setattr(permissions, "restrict_to_user", lambda _folder: None)
    result = CliRunner().invoke(app, ["up"])
    assert result.exit_code == 0, result.output
    assert found == [(tmp_path / "disk", path)]


async def test_run_warns_of_a_configuration_file_that_is_not_read(
    default_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_settings(tmp_path, "max_attempts = 9\n")
    path = write_settings(default_folder, f"data_dir = '{tmp_path / 'disk'}'\nport = {free_port()}\n")
    found = []

    @asynccontextmanager
    async def open_(self: Desk) -> AsyncIterator[None]:
        found.append(self._live_settings(self.settings).file)
        yield

    monkeypatch.setattr(Desk, "open", open_)
    async with _connect(None):
        pass
    assert found == [path]
    assert f"{tmp_path / 'comfyrelay.toml'} is not read." in capsys.readouterr().err.replace("\n", " ")
