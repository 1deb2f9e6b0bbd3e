"""The commands as they are run, with help that shows a type only where a value is to be given."""

from collections.abc import Callable

import typer
from typer.core import TyperGroup, TyperOption
from typer.main import get_command


def command_line(app: typer.Typer) -> Callable[..., object]:
    """Since typer takes options apart by itself, its help shows `<bool>` after every flag, unless told otherwise."""
    whole = get_command(app)
    pending = [whole]
    while pending:
        command = pending.pop()
        # with its context, for only that knows --help
        for each in command.get_params(typer.Context(command)):
            if isinstance(each, TyperOption) and each.is_flag:
                each.metavar = ""
        if isinstance(command, TyperGroup):
            pending.extend(command.commands.values())
    return whole
