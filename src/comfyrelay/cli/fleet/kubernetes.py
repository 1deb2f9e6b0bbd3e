"""`comfyrelay fleet scaler`."""

import asyncio
from typing import Annotated

import typer

from comfyrelay.cli.options import LogLevel
from comfyrelay.cli.output import print_note
from comfyrelay.extras import require


def scaler(
    bind: Annotated[str, typer.Option(help="Address and port to listen on for KEDA.")] = "127.0.0.1:8421",
    log_level: LogLevel = "info",
) -> None:
    """Report to KEDA how many workers each fleet needs, over gRPC, until Ctrl-C.

    In a cluster, the command also sets the deletion cost of pods, so that idle pods are deleted first.
    """
    require("server", "kubernetes")
    from comfyrelay.autoscaling.kubernetes.process import run_scaler
    from comfyrelay.logs import log_as_json
    from comfyrelay.settings import load_settings

    log_as_json(log_level)

    def ready(port: int) -> None:
        print_note(f"Listening for KEDA on {bind.rpartition(':')[0]}:{port}.")

    asyncio.run(run_scaler(load_settings(), bind=bind, on_ready=ready))
