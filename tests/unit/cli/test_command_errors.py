"""A failed command names the invalid fields, unless the message already does."""

import pytest

from comfyrelay.cli import main
from comfyrelay.errors import InvalidInput


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (
            InvalidInput(errors={"password": "This must have at least 8 characters."}),
            ["Error: The input is invalid.", "  password: This must have at least 8 characters."],
        ),
        (InvalidInput("There is no file x.png."), ["Error: There is no file x.png."]),
        (InvalidInput("The name is too long.", errors={"name": "Too long."}), ["Error: The name is too long."]),
    ],
)
def test_command_error_names_invalid_fields(
    error: InvalidInput, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**_options: object) -> None:
        raise error

    monkeypatch.setattr(main, "command_line", lambda: fails)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines() == lines
