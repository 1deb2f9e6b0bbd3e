"""The command line with readable help, and the most used commands first."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption
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
    """Build the command line with readable help. The commands of `first` and their panels come first."""
    root = get_command(app)
    pending = [root]
    while pending:
        command = pending.pop()
        # Typer would keep the line breaks of docstrings.
        command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", command.help or "")
        # Only the context knows --help.
        for param in command.get_params(typer.Context(command)):
            if isinstance(param, TyperArgument):
                # Typer shows a type such as `<list[str]>` after every argument.
                vars(param)["display_type_rich"] = lambda ctx: None  # noqa: ARG005
            elif isinstance(param, TyperOption) and param.is_flag:
                # Typer shows `<bool>` after every flag unless the metavar is empty.
                param.metavar = ""
            elif isinstance(param, TyperOption) and param.metavar is None:
                param.metavar = _METAVARS.get(getattr(getattr(param, "type_descriptor", None), "annotation", None))
        if isinstance(command, TyperGroup):
            pending.extend(command.commands.values())
    if isinstance(root, TyperGroup):
        names = dict.fromkeys((*first, *root.commands))
        root.commands = {name: root.commands[name] for name in names}
    return root
