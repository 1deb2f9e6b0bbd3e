"""The `comfyrelay` command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.markup import escape

from comfyrelay import __version__
from comfyrelay.cli.desk.backup import backup, restore
from comfyrelay.cli.desk.batch_i2v import batch_i2v
from comfyrelay.cli.desk.comfyui import comfyui_app
from comfyrelay.cli.desk.page import doctor, open_desk, password
from comfyrelay.cli.desk.up import up
from comfyrelay.cli.fleet.app import fleet_app
from comfyrelay.cli.help import command_line
from comfyrelay.cli.jobs.actions import cancel, delete, move, pause, rerun, resume, retry
from comfyrelay.cli.jobs.batch import batch_app
from comfyrelay.cli.jobs.library import notify_app, presets_app, workflows_app
from comfyrelay.cli.jobs.listing import batches, jobs, logs, show, top
from comfyrelay.cli.jobs.run import run
from comfyrelay.cli.output import err, print_line, print_note
from comfyrelay.cli.servers.admin import admin_app, db_app
from comfyrelay.cli.servers.server import reconcile, server
from comfyrelay.cli.servers.simulator import simulator
from comfyrelay.cli.servers.worker import worker_app
from comfyrelay.errors import ComfyRelayError, InvalidInput
from comfyrelay.system.terminal import replace_unencodable_output

DESK = "On your own machine"
JOBS = "Jobs, here or elsewhere"
SERVERS = "Servers and workers"
BACKUP = "Backup"
CANNOT_RUN = 2
# Also for `python -m comfyrelay`: shell completion depends on it.
NAME = "comfyrelay"
FIRST = ("up", "open", "run", "batch", "jobs", "batches", "show")


def version() -> None:
    """Print the version."""
    print_line(__version__)


COMMANDS = {
    DESK: (up, run, password, doctor, batch_i2v),
    JOBS: (jobs, batches, show, logs, cancel, pause, resume, retry, rerun, delete, move, top),
    SERVERS: (server, reconcile, simulator, version),
    BACKUP: (backup, restore),
}
GROUPS = {
    DESK: {"batch": batch_app, "comfyui": comfyui_app},
    JOBS: {"presets": presets_app, "workflows": workflows_app, "notify": notify_app},
    SERVERS: {"db": db_app, "admin": admin_app, "worker": worker_app, "fleet": fleet_app},
}
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.command("open", rich_help_panel=DESK)(open_desk)
for panel, groups in GROUPS.items():
    for name, group in groups.items():
        app.add_typer(group, name=name, rich_help_panel=panel)


def main() -> None:
    """Run the command. An expected error is printed as one sentence, with exit code 2."""
    replace_unencodable_output()
    try:
        command_line(app, first=FIRST)(prog_name=NAME)
    except ComfyRelayError as error:
        err.print(f"[red]Error[/red]: {escape(str(error))}", soft_wrap=True)
        if isinstance(error, InvalidInput) and str(error) == str(InvalidInput()):
            for field, text in error.errors.items():
                print_note(f"  {field}: {text}")
        sys.exit(CANNOT_RUN)


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
