"""`comfyrelay fleet scaler` and `comfyrelay fleet export kubernetes`: a fleet in a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from comfyrelay.cli.fleet.databases import HERE, with_databases
from comfyrelay.cli.fleet.export import export_app, require_provider, write_files
from comfyrelay.domain.queue.states import Stage
from comfyrelay.extras import require

if TYPE_CHECKING:
    from comfyrelay.domain.records.workers import Fleet
    from comfyrelay.services.engine import Engine

kubernetes_app = typer.Typer()
out = Console()
err = Console(stderr=True)


@kubernetes_app.command(epilog=HERE)
def scaler(
    bind: Annotated[str, typer.Option(help="The address and port at which KEDA asks.")] = "127.0.0.1:8421",
    log_level: Annotated[str, typer.Option(help="How much is logged: debug, info, warning or error.")] = "info",
) -> None:
    """Tell KEDA how many workers each fleet should have, over gRPC, until Ctrl-C.

    It reads the same databases as the server. In a cluster it also says
    which pods have least to do, so that those end first.
    """
    require("server", "kubernetes")
    from comfyrelay.autoscaling.kubernetes.process import run_scaler
    from comfyrelay.logs import log_as_json
    from comfyrelay.settings import load_settings

    log_as_json(log_level)

    def ready(port: int) -> None:
        err.print(f"KEDA can ask at {bind.rpartition(':')[0]}:{port}.", highlight=False)

    asyncio.run(run_scaler(load_settings(), bind=bind, on_ready=ready))


@export_app.command("kubernetes", epilog=HERE)
def export_kubernetes(
    fleet: Annotated[str, typer.Argument(help="The slug of the fleet.")],
    stage: Annotated[Stage, typer.Option(help="The stage of the fleet, and of the server.")] = Stage.PRODUCTION,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a file for each part into this folder.")
    ] = None,
    namespace: Annotated[str | None, typer.Option(help="The namespace; if not given, comfyrelay.")] = None,
    comfyui_image: Annotated[
        str | None, typer.Option(help="The image of ComfyUI; if not given, what the fleet says its machines are.")
    ] = None,
    max_pods: Annotated[
        int | None,
        typer.Option(
            help="Most workers; if not given, what the fleet's limits say. With it no database is asked.", min=1
        ),
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs of each worker; if not given, 1.", min=0)] = None,
    finish_seconds: Annotated[
        int | None, typer.Option(help="How long a worker may take to finish its job; if not given, 570.", min=0)
    ] = None,
    server_image: Annotated[str | None, typer.Option(help="The image of server and scaler.")] = None,
    worker_image: Annotated[str | None, typer.Option(help="The image of the worker.")] = None,
    storage_url: Annotated[str | None, typer.Option(help="Object storage; if not given, s3://comfyrelay.")] = None,
    public_url: Annotated[
        str | None, typer.Option(help="How users reach the server; if not given, only the cluster does.")
    ] = None,
) -> None:
    """Write what a cluster needs to run a fleet: server, scaler and workers, for `kubectl apply`."""
    require("kubernetes")
    from comfyrelay.autoscaling.kubernetes.export import as_yaml, cluster_fleet, manifests

    given = {
        "namespace": namespace,
        "comfyui_image": comfyui_image,
        "max_pods": max_pods,
        "gpus": gpus,
        "finish_seconds": finish_seconds,
        "server_image": server_image,
        "worker_image": worker_image,
        "storage_url": storage_url,
        "public_url": public_url,
    }
    known = _known(stage, fleet) if max_pods is None else None
    made = cluster_fleet(fleet, stage, known, given)
    files = manifests(made)
    for image in (made.server_image, made.worker_image, made.comfyui_image):
        if "/" not in image:
            err.print(
                f"Warning: {image} names no registry; nodes find it only where it was loaded.",
                highlight=False,
                soft_wrap=True,
            )
    if output is None:
        for found in files.values():
            typer.echo(as_yaml(found), nl=False)
        return
    write_files(output, {name: as_yaml(found) for name, found in files.items()}, make_folder=True)
    for name in files:
        out.print(str(output / name), highlight=False, soft_wrap=True)


def _known(stage: Stage, slug: str) -> Fleet:
    require("server", "kubernetes")

    async def work(engine: Engine) -> Fleet:
        return (await engine.fleet.views.get(stage, slug)).fleet

    fleet = with_databases(work)
    require_provider(slug, str(fleet.machine_spec.provider), "kubernetes")
    return fleet
