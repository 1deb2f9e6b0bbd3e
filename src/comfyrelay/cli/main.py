"""The `comfyrelay` command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from comfyrelay import __version__
from comfyrelay.cli.admin import admin_app, db_app
from comfyrelay.cli.backup import backup_app
from comfyrelay.cli.batch_i2v import batch_i2v
from comfyrelay.cli.comfyui import comfyui_app
from comfyrelay.cli.command_line import command_line
from comfyrelay.cli.desk import doctor, open_desk, password
from comfyrelay.cli.fleet.app import fleet_app
from comfyrelay.cli.jobs import jobs_app
from comfyrelay.cli.run import DESK, run_app
from comfyrelay.cli.server import reconcile, server
from comfyrelay.cli.simulator import simulator
from comfyrelay.cli.up import up
from comfyrelay.cli.worker import worker_app
from comfyrelay.errors import ComfyRelayError, InvalidInput
from comfyrelay.system.terminal import replace_unencodable_output

SERVERS = "Servers and workers"
CANNOT = 2
# also for `python -m comfyrelay`: shell completion depends on it
NAME = "comfyrelay"
FIRST = ("up", "open", "run", "batch", "jobs", "batches", "show")

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(db_app, name="db", rich_help_panel=SERVERS)
app.add_typer(admin_app, name="admin", rich_help_panel=SERVERS)
app.add_typer(worker_app, name="worker", rich_help_panel=SERVERS)
app.add_typer(comfyui_app, name="comfyui", rich_help_panel=DESK)
app.add_typer(fleet_app, name="fleet", rich_help_panel=SERVERS)
app.add_typer(run_app)
app.add_typer(jobs_app)
app.add_typer(backup_app)
app.command(rich_help_panel=DESK)(up)
app.command("open", rich_help_panel=DESK)(open_desk)
app.command(rich_help_panel=DESK)(password)
app.command(rich_help_panel=DESK)(doctor)
app.command(rich_help_panel=DESK)(batch_i2v)
app.command(rich_help_panel=SERVERS)(server)
app.command(rich_help_panel=SERVERS)(reconcile)
app.command(rich_help_panel=SERVERS)(simulator)
out = Console()
err = Console(stderr=True)


def main() -> None:
    """Print an expected error as one sentence, and exit with 2."""
    replace_unencodable_output()
    try:
        command_line(app, first=FIRST)(prog_name=NAME)
    except ComfyRelayError as error:
        err.print(f"[red]Error[/red]: {escape(str(error))}", soft_wrap=True, highlight=False)
        if isinstance(error, InvalidInput) and str(error) == str(InvalidInput()):
            for field, text in error.errors.items():
                err.print(f"  {field}: {text}", soft_wrap=True, highlight=False, markup=False)
        sys.exit(CANNOT)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        out.print(__version__, highlight=False)
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """One queue for all your ComfyUI GPUs, from one desktop GPU to a Spot fleet in the cloud.

    Start with `comfyrelay up`: it runs the queue, its page and a worker on this machine.
    """


@app.command(rich_help_panel=SERVERS)
def version() -> None:
    """Print the version."""
    out.print(__version__, highlight=False)
