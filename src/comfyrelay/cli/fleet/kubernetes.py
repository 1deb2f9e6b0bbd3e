"""`comfyrelay fleet`: a fleet in a cluster."""

import typer

kubernetes_app = typer.Typer()
