"""Make the help of commands readable."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

if TYPE_CHECKING:
    # Typer has its own copy of click.
    from typer._click import Command

# Metavars that replace Python types.
_METAVARS: dict[object, str] = {
    str: "TEXT",
    list[str]: "TEXT",
    Path: "PATH",
    list[Path]: "PATH",
    int: "NUMBER",
    float: "NUMBER",
}


def make_readable(command: "Command") -> None:
    """Make the help of a command and its subcommands readable."""
    make_page_readable(command)
    if isinstance(command, TyperGroup):
        for subcommand in command.commands.values():
            make_readable(subcommand)


def make_page_readable(command: "Command") -> None:
    """Show paragraphs instead of lines, and metavars instead of Python types."""
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
