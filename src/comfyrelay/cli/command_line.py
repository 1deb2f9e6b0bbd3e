"""The command line with readable help, and the most used commands first."""

from collections.abc import Callable, Sequence
from pathlib import Path

import typer
from typer.core import TyperGroup, TyperOption
from typer.main import get_command

# Metavars instead of Python types.
_METAVARS: dict[object, str] = {
    str: "TEXT",
    list[str]: "TEXT",
    Path: "PATH",
    list[Path]: "PATH",
    int: "NUMBER",
    float: "NUMBER",
}


def command_line(app: typer.Typer, *, first: Sequence[str] = ()) -> Callable[..., object]:
    """Typer shows `<bool>` after every flag unless the metavar is empty.

    The commands of `first` and their panels come first.
    """
    whole = get_command(app)
    pending = [whole]
    while pending:
        command = pending.pop()
        # only the context knows --help
        for param in command.get_params(typer.Context(command)):
            if isinstance(param, TyperOption) and param.is_flag:
                param.metavar = ""
            elif isinstance(param, TyperOption) and param.metavar is None:
                param.metavar = _METAVARS.get(getattr(getattr(param, "type_descriptor", None), "annotation", None))
        if isinstance(command, TyperGroup):
            pending.extend(command.commands.values())
    if isinstance(whole, TyperGroup):
        names = [*first, *(each for each in whole.commands if each not in first)]
        whole.commands = {name: whole.commands[name] for name in names}
    return whole
