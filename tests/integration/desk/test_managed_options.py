"""Options of a managed ComfyUI."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from comfyrelay.cli.main import app
from comfyrelay.errors import ConfigurationError
from tests.support.desk import make_desk
from tests.support.server_processes import free_port


async def test_missing_comfyui_is_reported_before_the_start(tmp_path: Path) -> None:
    desk = make_desk(tmp_path / "desk", comfyui_dir=tmp_path)
    with pytest.raises(ConfigurationError, match="No ComfyUI found in"):
        async with desk.open():
            pass


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--per-gpu", "2"], "set its folder with --comfyui"),
        (["--comfyui", "a", "--comfyui-url", "http://127.0.0.1:1"], "not both"),
    ],
)
def test_conflicting_options_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], reason: str
) -> None:
    monkeypatch.setenv("COMFYRELAY_DATA_DIR", str(tmp_path / "desk"))
    monkeypatch.setenv("COMFYRELAY_PORT", str(free_port()))
    result = CliRunner().invoke(app, ["up", *options])
    assert reason in str(result.exception)
    assert CliRunner().invoke(app, ["up", "--comfyui", "a", "--per-gpu", "none"]).exit_code == 2
