"""What `comfyrelay server` prints at its start."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.cli.servers import server as command
from comfyrelay.errors import ConfigurationError
from comfyrelay.server.http.secrets import Secrets


@pytest.mark.parametrize("is_ready", [False, True])
def test_address_is_printed_when_the_server_listens(
    is_ready: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def serve(*_: object, on_ready: Callable[[Any], None], **_options: object) -> None:
        if not is_ready:
            raise ConfigurationError("The schema is unknown.")
        on_ready(Secrets(fleet={}, signing=()))

    monkeypatch.setenv("COMFYRELAY_DATA_DIR", str(tmp_path))
    monkeypatch.setattr("comfyrelay.server.main.serve", serve)
    if is_ready:
        command.server()
    else:
        with pytest.raises(ConfigurationError):
            command.server()
    captured = capsys.readouterr()
    assert ("serves at" in captured.out + captured.err) is is_ready
