"""`comfyrelay fleet`: what a policy would have done."""

import typer

simulate_app = typer.Typer()
