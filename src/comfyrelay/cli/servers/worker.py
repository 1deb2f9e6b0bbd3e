"""`comfyrelay worker` and `comfyrelay worker check`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from comfyrelay.cli.options import Json
from comfyrelay.cli.output import print_check_results
from comfyrelay.cli.unknown_settings import warn_of_unknown

worker_app = typer.Typer(invoke_without_command=True)
BROKEN = 1


@worker_app.callback()
def worker(
    context: typer.Context,
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve Prometheus metrics on this port; 0 chooses a free one.", min=0, max=65535)
    ] = None,
    metrics_host: Annotated[
        str,
        typer.Option(help="Address to serve metrics on. They need no sign-in; 0.0.0.0 shows them to other machines."),
    ] = "127.0.0.1",
) -> None:
    """Take jobs from a server and run them on this machine's ComfyUI, or on Comfy Cloud, until Ctrl-C.

    Environment variables configure the worker. API_BASE_URL, FLEET_SECRET and FLEET_SLUG are required, and
    COMFYUI_BASE_URL if ComfyUI is not at http://127.0.0.1:8188. `comfyrelay worker check` reports missing ones.

    The first Ctrl-C finishes or requeues the running jobs. The second exits.
    """
    if context.invoked_subcommand is not None:
        return
    from comfyrelay.traces import exporting
    from comfyrelay.worker.agent import Agent
    from comfyrelay.worker.console import WorkerConsole
    from comfyrelay.worker.metrics import WorkerMetrics
    from comfyrelay.worker.settings import load_worker_settings

    warn_of_unknown()
    settings = load_worker_settings()
    metrics = WorkerMetrics()

    async def run() -> None:
        with WorkerConsole() as console:
            await Agent(settings, metrics=metrics, on_status=console.status, last_lines=console.recent.last).run()

    serving = metrics.serve(metrics_port, metrics_host) if metrics_port is not None else None
    try:
        with exporting(settings.traces_url, service="comfyrelay-worker"):
            asyncio.run(run())
    finally:
        if serving is not None:
            serving()


@worker_app.command()
def check(as_json: Json = False) -> None:
    """Check that a worker can run here, and which workflows it would be assigned.

    The exit code is 1 if it cannot run. Nothing is registered or changed.
    """
    from comfyrelay.worker.check import check as check_worker
    from comfyrelay.worker.settings import load_worker_settings

    if not print_check_results(check_worker(load_worker_settings()), as_json=as_json):
        raise typer.Exit(BROKEN)
