"""The `--help` texts of all commands."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from typer.main import get_command

from comfyrelay.cli.main import app, command_line, main


def every_command() -> Iterator[tuple[str, ...]]:
    pending: list[tuple[tuple[str, ...], Any]] = [((), get_command(app))]
    while pending:
        words, command = pending.pop()
        yield words
        pending.extend(((*words, name), subcommand) for name, subcommand in getattr(command, "commands", {}).items())


def test_flag_shows_no_type_in_the_help_of_any_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["comfyrelay", "up", "--help"])
    runs: list[Callable[[], object]] = [main]
    whole = command_line()
    runs += [partial(whole, [*words, "--help"]) for words in every_command()]
    for run in runs:
        with pytest.raises(SystemExit) as ended:
            run()
        shown = capsys.readouterr().out
        assert (ended.value.code, "--help" in shown, "bool" in shown) == (0, True, False), shown
