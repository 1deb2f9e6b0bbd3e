"""`comfyrelay fleet export …`."""

import typer

export_app = typer.Typer(no_args_is_help=True, help="Write what makes a fleet elsewhere: Terraform, Kubernetes.")
