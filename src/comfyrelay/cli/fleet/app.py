"""`comfyrelay fleet`."""

import typer

from comfyrelay.cli.fleet.aws import deprovision, provision, user_data
from comfyrelay.cli.fleet.databases import DATABASES_NOTE
from comfyrelay.cli.fleet.kubernetes import scaler
from comfyrelay.cli.fleet.metrics import costs, publish_metrics
from comfyrelay.cli.fleet.run import decisions, pause, resume, run, status
from comfyrelay.cli.fleet.simulate import simulate

fleet_app = typer.Typer(no_args_is_help=True, help="Scale, provision and inspect the machines of workers.")
COMMANDS = (
    *(run, status, decisions, pause, resume),
    *(provision, deprovision, user_data),
    *(scaler, publish_metrics, costs),
)
for command in COMMANDS:
    fleet_app.command(epilog=DATABASES_NOTE)(command)
fleet_app.command()(simulate)
