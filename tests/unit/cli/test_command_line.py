"""The command line explains itself: help texts, the overview, and suggestions for mistyped commands."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from typer.main import get_command

from comfyrelay.cli.commands import COMMANDS
from comfyrelay.cli.lazy import LazyCommands
from comfyrelay.cli.main import app, command_line, main


def every_command() -> Iterator[tuple[str, ...]]:
    pending: list[tuple[tuple[str, ...], Any]] = [((), get_command(app))]
    while pending:
        words, command = pending.pop()
        yield words
        pending.extend(((*words, name), subcommand) for name, subcommand in getattr(command, "commands", {}).items())


def test_help_shows_no_type_for_flags(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["comfyrelay", "up", "--help"])
    runs: list[Callable[[], object]] = [main]
    whole = command_line()
    runs += [partial(whole, [*words, "--help"]) for words in every_command()]
    for run in runs:
        with pytest.raises(SystemExit) as ended:
            run()
        shown = capsys.readouterr().out
        assert (ended.value.code, "--help" in shown, "bool" in shown) == (0, True, False), shown


@pytest.mark.parametrize(("name", "command"), LazyCommands(COMMANDS).items())
def test_overview_shows_first_paragraph_of_each_help(name: str, command: Any) -> None:
    entry = COMMANDS[name]
    assert (command.name, command.help.partition("\n\n")[0].strip(), command.rich_help_panel) == (
        name,
        entry.summary,
        entry.panel,
    )


def test_mistyped_command_suggests_a_similar_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line()(["joobs"])
    assert ended.value.code == 2
    assert "Did you mean 'jobs'?" in capsys.readouterr().err
