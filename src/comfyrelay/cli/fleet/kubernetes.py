"""`comfyrelay fleet scaler`."""

import asyncio
from typing import Annotated

import typer
from rich.console import Console

from comfyrelay.cli.fleet.databases import HERE
from comfyrelay.extras import require

kubernetes_app = typer.Typer()
err = Console(stderr=True)


@kubernetes_app.command(epilog=HERE)
def scaler(
    bind: Annotated[str, typer.Option(help="Address and port for KEDA.")] = "127.0.0.1:8421",
    log_level: Annotated[str, typer.Option(help="Minimum level: debug, info, warning or error.")] = "info",
) -> None:
    """Report to KEDA how many workers each fleet needs, over gRPC, until Ctrl-C.

    It reads the same databases as the server. In a cluster it also sets the
    deletion cost of pods, so that idle pods are deleted first.
    """
    require("server", "kubernetes")
    from comfyrelay.autoscaling.kubernetes.process import run_scaler
    from comfyrelay.logs import log_as_json
    from comfyrelay.settings import load_settings

    log_as_json(log_level)

    def ready(port: int) -> None:
        err.print(f"Listening for KEDA on {bind.rpartition(':')[0]}:{port}.", highlight=False)

    asyncio.run(run_scaler(load_settings(), bind=bind, on_ready=ready))
