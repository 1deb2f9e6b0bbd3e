"""A failed command names the invalid fields, unless the message already does."""

import pytest
from typer.testing import CliRunner

from comfyrelay.cli import main
from comfyrelay.errors import InvalidInput


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (
            InvalidInput(errors={"password": "This must have at least 8 characters."}),
            ["Error: The input is invalid.", "  password: This must have at least 8 characters."],
        ),
        (
            InvalidInput("This is too short.", errors={"password": "This is too short."}),
            ["Error: password: This is too short."],
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


@pytest.mark.parametrize("other", ["--anyway", "--keep-both"])
def test_replacing_a_workflow_excludes_waiting_for_nodes_and_keeping_both(other: str) -> None:
    result = CliRunner().invoke(main.app, ["workflows", "add", "absent.json", "--replace", other])
    assert isinstance(result.exception, InvalidInput)
    assert "but not both" in result.exception.detail
    assert other in result.exception.detail


@pytest.mark.parametrize("command", [["server"], ["fleet", "run"], ["fleet", "scaler"]])
def test_unknown_log_level_is_refused_with_the_known_ones(command: list[str]) -> None:
    result = CliRunner().invoke(main.app, [*command, "--log-level", "loud"], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "'loud' is not a level. Write debug, info, warning or error." in result.output
