"""`comfyrelay fleet`: a fleet as an Auto Scaling group."""

import typer

aws_app = typer.Typer()
