"""The `comfyrelay` command."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Annotated

import typer
from typer.main import get_command

from comfyrelay.cli.commands import COMMANDS
from comfyrelay.cli.help import make_page_readable
from comfyrelay.cli.lazy import lazy_group
from comfyrelay.errors import ComfyRelayError, InvalidInput

# Make httpx's import of its own command line fail, because it would load click and pygments.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
# Typer imports this for help texts in Markdown, which no command uses.
_unused_markdown = ModuleType("rich.markdown")
vars(_unused_markdown)["Markdown"] = object
sys.modules.setdefault(_unused_markdown.__name__, _unused_markdown)
CANNOT_RUN = 2
# Also set for `python -m comfyrelay`, because shell completion depends on the name.
NAME = "comfyrelay"
app = typer.Typer(cls=lazy_group(COMMANDS), no_args_is_help=True, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command. An expected error is printed as one sentence, with exit code 2."""
    _replace_unencodable_output()
    try:
        command_line()(prog_name=NAME)
    except ComfyRelayError as error:
        _print_error(error)
        sys.exit(CANNOT_RUN)


def command_line() -> Callable[..., object]:
    """Build the command line. A command is imported and built when it runs."""
    root_command = get_command(app)
    make_page_readable(root_command)
    return root_command


def version() -> None:
    """Print the version."""
    from comfyrelay import __version__

    typer.echo(__version__)


def _replace_unencodable_output() -> None:
    """Print `?` for characters that the output cannot encode. On Windows, many outputs support only a few."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _print_error(error: ComfyRelayError) -> None:
    from rich.markup import escape

    from comfyrelay.cli.output import err, print_note

    text = str(error)
    if isinstance(error, InvalidInput) and text.startswith("This ") and [*error.errors.values()] == [text]:
        # A page would show the message next to the field.
        text = f"{next(iter(error.errors))}: {text}"
    err.print(f"[red]Error[/red]: {escape(text)}", soft_wrap=True)
    if isinstance(error, InvalidInput) and str(error) == str(InvalidInput()):
        for field, text in error.errors.items():
            print_note(f"  {field}: {text}")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        version()
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """One queue for all your ComfyUI GPUs, from one desktop GPU to a Spot fleet in the cloud.

    Start with `comfyrelay up`: it runs the queue, its web page and a worker on this machine.
    """
