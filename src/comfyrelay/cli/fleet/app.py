"""`comfyrelay fleet`."""

import typer

from comfyrelay.cli.fleet.aws import deprovision, provision, user_data
from comfyrelay.cli.fleet.blocks import blocks, unblock
from comfyrelay.cli.fleet.configure import change, create
from comfyrelay.cli.fleet.databases import DATABASES_NOTE
from comfyrelay.cli.fleet.kubernetes import scaler
from comfyrelay.cli.fleet.metrics import costs, publish_metrics, revenue
from comfyrelay.cli.fleet.run import decisions, machines, pause, reset, resume, run, status
from comfyrelay.cli.fleet.simulate import simulate

fleet_app = typer.Typer(no_args_is_help=True, help="Create fleets, and scale, provision and inspect their machines.")
COMMANDS = (
    run,
    *(provision, deprovision, user_data),
    *(scaler, publish_metrics, costs, revenue),
    *(blocks, unblock),
)
# These commands also work from another machine, over the admin API.
fleet_app.command()(create)
fleet_app.command("set")(change)
for remote_command in (status, decisions, machines, pause, resume, reset):
    fleet_app.command()(remote_command)
for command in COMMANDS:
    fleet_app.command(epilog=DATABASES_NOTE)(command)
fleet_app.command()(simulate)
