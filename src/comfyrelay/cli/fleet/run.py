"""`comfyrelay fleet`: the scaling loop and what it did."""

import typer

scaling_app = typer.Typer()
