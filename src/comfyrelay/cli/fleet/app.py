"""`comfyrelay fleet`."""

import typer

from comfyrelay.cli.fleet.aws import aws_app
from comfyrelay.cli.fleet.kubernetes import kubernetes_app
from comfyrelay.cli.fleet.metrics import metrics_app
from comfyrelay.cli.fleet.run import scaling_app
from comfyrelay.cli.fleet.simulate import simulate_app

fleet_app = typer.Typer(no_args_is_help=True, help="Machines for workers: scale, provision and inspect them.")
for each in (scaling_app, simulate_app, aws_app, kubernetes_app, metrics_app):
    fleet_app.add_typer(each)
