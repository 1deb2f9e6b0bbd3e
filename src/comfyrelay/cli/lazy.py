"""A group of commands whose modules are imported when one of them runs, so that the other modules do not slow it
down."""

from collections import UserDict
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from comfyrelay.cli.help import make_readable

if TYPE_CHECKING:
    # Typer has its own copy of click.
    from typer._click import Command, Context


class LazyCommand(NamedTuple):
    """A command or a group of commands that is not imported yet."""

    panel: str
    # `module:name`, where the module is in `comfyrelay.cli`.
    target: str
    # The first paragraph of its help.
    summary: str


class LazyCommands(UserDict[str, "Command"]):
    """The commands of a table by name. Reading one imports its module."""

    def __init__(self, table: Mapping[str, LazyCommand]) -> None:
        super().__init__()
        self.table = table

    def __getitem__(self, name: str) -> "Command":
        if name not in self.data:
            self.data[name] = _load(name, self.table[name])
        return self.data[name]

    def __contains__(self, name: object) -> bool:
        return name in self.table

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)


def lazy_group(table: Mapping[str, LazyCommand]) -> type[TyperGroup]:
    """Return the class of a group with the commands of this table, in its order."""

    class LazyGroup(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands = LazyCommands(table)

        def list_commands(self, ctx: "Context") -> list[str]:  # noqa: ARG002
            return [*table]

        def get_command(self, ctx: "Context", cmd_name: str) -> "Command | None":  # noqa: ARG002
            """Return the details of a command that help and shell completion show."""
            entry = table.get(cmd_name)
            return entry and TyperCommand(cmd_name, help=entry.summary, rich_help_panel=entry.panel)

        def resolve_command(self, ctx: "Context", args: list[str]) -> "tuple[str | None, Command | None, list[str]]":
            name, _shown, rest = super().resolve_command(ctx, args)
            return name, None if name is None else self.commands[name], rest

    return LazyGroup


def _load(name: str, entry: LazyCommand) -> "Command":
    module, _, attribute = entry.target.partition(":")
    target = getattr(import_module(f"comfyrelay.cli.{module}"), attribute)
    parent = typer.Typer()
    if isinstance(target, typer.Typer):
        parent.add_typer(target, name=name, rich_help_panel=entry.panel)
    else:
        parent.command(name, rich_help_panel=entry.panel)(target)
    command = get_group(parent).commands[name]
    make_readable(command)
    return command
