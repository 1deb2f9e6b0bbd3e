"""`comfyrelay fleet publish-metrics` and `comfyrelay fleet costs`."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from comfyrelay.cli.fleet.databases import HERE, with_databases
from comfyrelay.cli.fleet.tables import TableRow, show

if TYPE_CHECKING:
    from comfyrelay.protocol.admin.fleets import Usage
    from comfyrelay.services.engine import Engine

metrics_app = typer.Typer()


class Grouped(StrEnum):
    FLEET = "fleet"
    WORKFLOW = "workflow"
    TENANT = "tenant"


out = Console()
err = Console(stderr=True)


@metrics_app.command("publish-metrics", epilog=HERE)
def publish_metrics(
    once: Annotated[bool, typer.Option("--once", help="Send the metrics once and exit.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the metrics and exit.")] = False,
) -> None:
    """Send the metrics of every fleet to CloudWatch once a minute, until Ctrl-C."""

    async def work(engine: Engine) -> None:
        from comfyrelay.autoscaling.cloudwatch import CloudWatch, Publisher, metric_data
        from comfyrelay.clock import utc_now

        if dry_run:
            data = metric_data(await engine.autoscaling.figures.read(), at=utc_now())
            out.print_json(json.dumps(data, default=str))
            return
        cloudwatch = CloudWatch(namespace=engine.settings.cloudwatch_namespace)
        publisher = Publisher(engine.autoscaling.figures, cloudwatch)
        if once:
            err.print(f"{await publisher.publish()} metrics sent.", highlight=False)
        else:
            await publisher.run()

    with_databases(work)


@metrics_app.command("costs", epilog=HERE)
def costs(
    by: Annotated[Grouped, typer.Option(help="Group by fleet, workflow or tenant.")] = Grouped.FLEET,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Number of days, including today.")] = 30,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Print machine time and costs by fleet, workflow or tenant.

    `cost` covers the time in which jobs ran: busy, and lost to failed runs.
    `machines cost` covers the whole lifetime of a fleet's machines, with
    boot and idle time.
    """

    async def work(engine: Engine) -> list[Usage]:
        from datetime import timedelta

        from comfyrelay.clock import utc_now
        from comfyrelay.services.autoscaling.usage import UsageGrouping

        today = utc_now().date()
        return await engine.autoscaling.usage.report(UsageGrouping(by), first=today - timedelta(days=days - 1), last=today)

    rows = with_databases(work)
    if as_json:
        out.print_json(json.dumps([row.model_dump(mode="json") for row in rows]))
        return
    if not rows:
        out.print("No machine time in this period.", highlight=False)
        return
    machines = by is Grouped.FLEET
    head = (by, "jobs", "busy", "lost", *(("idle", "boot") if machines else ()), "cost")
    show(out, (*head, "machines cost") if machines else head, [_costs(row, machines=machines) for row in rows])
    out.print("\nTimes are hours:minutes:seconds.", highlight=False)
    out.print("cost: time in which jobs ran (busy and lost).", highlight=False)
    if machines:
        out.print("machines cost: whole lifetime of the machines, with boot and idle time.", highlight=False)


def _costs(row: Usage, *, machines: bool) -> TableRow:
    name = row.name if row.stage is None else f"{row.stage}/{row.name}"
    ran = row.busy_seconds + row.lost_seconds
    cells = [name, str(row.jobs), _hours(row.busy_seconds), _hours(row.lost_seconds)]
    if not machines:
        return TableRow((*cells, money(row.cost, ran)))
    idle, boot = row.idle_seconds or 0.0, row.boot_seconds or 0.0
    total = money(row.machine_cost or 0.0, ran + idle + boot)
    return TableRow((*cells, _hours(idle), _hours(boot), money(row.cost, ran), total))


def _hours(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"


def money(cost: float, seconds: float) -> str:
    """Unknown if no price is set. Four decimals for small amounts: a minute of a cheap machine is less than a cent."""
    if seconds and not cost:
        return "unknown"
    if 0 < cost < 0.0001:
        return "<0.0001"
    return f"{cost:.2f}" if cost >= 1 or not cost else f"{cost:.4f}"
