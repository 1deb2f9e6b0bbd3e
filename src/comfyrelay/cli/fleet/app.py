"""`comfyrelay fleet`."""

import typer

from comfyrelay.cli.fleet.aws import deprovision, provision, user_data
from comfyrelay.cli.fleet.blocks import blocks, unblock
from comfyrelay.cli.fleet.configure import change, create
from comfyrelay.cli.fleet.databases import DATABASES_NOTE
from comfyrelay.cli.fleet.kubernetes import scaler
from comfyrelay.cli.fleet.metrics import costs, publish_metrics
from comfyrelay.cli.fleet.run import decisions, machines, pause, reset, resume, run, status
from comfyrelay.cli.fleet.simulate import simulate

fleet_app = typer.Typer(no_args_is_help=True, help="Scale, provision and inspect the machines of workers.")
COMMANDS = (
    run,
    *(provision, deprovision, user_data),
    *(scaler, publish_metrics, costs),
    *(blocks, unblock),
)
# These also work from another machine, over the admin API.
REMOTE_COMMANDS = (status, decisions, machines, create, pause, resume, reset)
for remote_command in REMOTE_COMMANDS:
    fleet_app.command()(remote_command)
fleet_app.command("set")(change)
for command in COMMANDS:
    fleet_app.command(epilog=DATABASES_NOTE)(command)
fleet_app.command()(simulate)
