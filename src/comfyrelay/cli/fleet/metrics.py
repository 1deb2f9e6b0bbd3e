"""`comfyrelay fleet`: figures of fleets for those who watch them."""

import typer

metrics_app = typer.Typer()
