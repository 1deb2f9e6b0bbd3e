"""`comfyrelay fleet`: figures of fleets for those who watch them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console

from comfyrelay.extras import require

if TYPE_CHECKING:
    from comfyrelay.services.engine import Engine

T = TypeVar("T")
metrics_app = typer.Typer()
out = Console()
err = Console(stderr=True)


@metrics_app.command("publish-metrics")
def publish_metrics(
    once: Annotated[bool, typer.Option("--once", help="Send them now, and leave.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be sent, and leave.")] = False,
) -> None:
    """Send the figures of every fleet to CloudWatch, once a minute until it is stopped."""

    async def work(engine: Engine) -> None:
        from comfyrelay.clock import utc_now
        from comfyrelay.fleet.cloudwatch import CloudWatch, Publisher, metric_data

        await engine.databases.require_current()
        if dry_run:
            data = metric_data(await engine.scaling.figures.read(), at=utc_now())
            out.print_json(json.dumps(data, default=str))
            return
        cloudwatch = CloudWatch(namespace=engine.settings.cloudwatch_namespace)
        publisher = Publisher(engine.scaling.figures, cloudwatch)
        if once:
            err.print(f"{await publisher.publish()} figures sent.", highlight=False)
        else:
            await publisher.run()

    _run(work)


def _run(work: Callable[[Engine], Awaitable[T]]) -> T:
    require("server")
    from comfyrelay.services.engine import Engine
    from comfyrelay.settings import load_settings

    async def run() -> T:
        async with Engine(load_settings()) as engine:
            return await work(engine)

    return asyncio.run(run())
