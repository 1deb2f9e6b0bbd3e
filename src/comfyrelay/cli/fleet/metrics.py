"""`comfyrelay fleet`: figures of fleets for those who watch them."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from comfyrelay.cli.fleet.engine import with_engine

if TYPE_CHECKING:
    from comfyrelay.services.engine import Engine
    from comfyrelay.services.scaling.usage import UsageRow

metrics_app = typer.Typer()


class Grouped(StrEnum):
    FLEET = "fleet"
    WORKFLOW = "workflow"
    TENANT = "tenant"


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

    with_engine(work)


@metrics_app.command("costs")
def costs(
    by: Annotated[Grouped, typer.Option(help="What a line is for.")] = Grouped.FLEET,
    days: Annotated[int, typer.Option(min=1, max=3650, help="So many days back, today included.")] = 30,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Print what machines did and what it cost, by fleet, workflow or tenant."""

    async def work(engine: Engine) -> list[UsageRow]:
        from datetime import timedelta

        from comfyrelay.clock import utc_now
        from comfyrelay.services.scaling.usage import By

        await engine.databases.require_current()
        today = utc_now().date()
        return await engine.scaling.usage.report(By(by), first=today - timedelta(days=days - 1), last=today)

    rows = with_engine(work)
    if as_json:
        out.print_json(json.dumps([asdict(each) for each in rows]))
        return
    table = Table(by, "jobs", "busy", "lost", "idle", "boot", "cost", "machines cost")
    for each in rows:
        name = each.name if each.stage is None else f"{each.stage}/{each.name}"
        seconds = (each.busy_seconds, each.lost_seconds, each.idle_seconds, each.boot_seconds)
        hours = ["" if one is None else f"{one / 3600:.2f} h" for one in seconds]
        in_all = "" if each.machine_cost is None else f"{each.machine_cost:.2f}"
        table.add_row(escape(name), str(each.jobs), *hours, f"{each.cost:.2f}", in_all)
    out.print(table)
