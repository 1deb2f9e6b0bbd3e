"""`comfyrelay fleet publish-metrics`, `comfyrelay fleet costs` and `comfyrelay fleet revenue`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from comfyrelay.cli.fleet.databases import with_databases
from comfyrelay.cli.fleet.tables import TableRow, print_table
from comfyrelay.cli.options import Json
from comfyrelay.cli.output import out, print_json, print_line, print_note

if TYPE_CHECKING:
    from comfyrelay.protocol.admin.fleets import Usage
    from comfyrelay.protocol.admin.revenue import Revenue
    from comfyrelay.services.engine import Engine


def publish_metrics(
    once: Annotated[bool, typer.Option("--once", help="Send the metrics once and exit.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the metrics and exit.")] = False,
) -> None:
    """Send the metrics of every fleet to CloudWatch once a minute, until Ctrl-C."""

    async def work(engine: Engine) -> None:
        from comfyrelay.autoscaling.cloudwatch import CloudWatch, Publisher, metric_data
        from comfyrelay.clock import utc_now

        if dry_run:
            data = metric_data(await engine.autoscaling.metrics.read(), at=utc_now())
            out.print_json(json.dumps(data, default=str))
            return
        cloudwatch = CloudWatch(namespace=engine.settings.cloudwatch_namespace)
        publisher = Publisher(engine.autoscaling.metrics, cloudwatch)
        if once:
            print_note(f"{await publisher.publish()} metrics sent.")
        else:
            await publisher.run()

    with_databases(work)


def costs(
    by: Annotated[Literal["fleet", "workflow", "tenant"], typer.Option(help="What to group by.")] = "fleet",
    days: Annotated[int, typer.Option(min=1, max=3650, help="Number of days, including today.")] = 30,
    as_json: Json = False,
) -> None:
    """Print machine time and costs by fleet, workflow or tenant.

    `cost` covers the time in which jobs ran: busy, and lost to failed runs. `machines cost` covers the whole lifetime
    of a fleet's machines, with boot and idle time.
    """

    async def work(engine: Engine) -> list[Usage]:
        from datetime import timedelta

        from comfyrelay.clock import utc_now
        from comfyrelay.services.autoscaling.usage import UsageGrouping

        today = utc_now().date()
        return await engine.autoscaling.usage.report(
            UsageGrouping(by), first=today - timedelta(days=days - 1), last=today
        )

    rows = with_databases(work)
    if as_json:
        print_json([row.model_dump(mode="json") for row in rows])
        return
    if not rows:
        print_line("No machine time in this period.")
        return
    machines = by == "fleet"
    head = (by, "jobs", "busy", "lost", *(("idle", "boot") if machines else ()), "cost")
    print_table((*head, "machines cost") if machines else head, [_costs(row, machines=machines) for row in rows])
    print_line("\nTimes are hours:minutes:seconds.")
    print_line("cost: time in which jobs ran (busy and lost).")
    if machines:
        print_line("machines cost: whole lifetime of the machines, with boot and idle time.")


def revenue(
    by: Annotated[Literal["effect", "tenant", "day"], typer.Option(help="What to group by.")] = "effect",
    days: Annotated[int, typer.Option(min=1, max=3650, help="Number of days, including today.")] = 30,
    as_json: Json = False,
) -> None:
    """Print charged tokens and GPU costs by effect, tenant or day.

    `revenue` needs the value of a token (COMFYRELAY_TOKEN_VALUE).
    """

    async def work(engine: Engine) -> list[Revenue]:
        from datetime import timedelta

        from comfyrelay.clock import utc_now
        from comfyrelay.services.accounts.revenue import RevenueGrouping

        today = utc_now().date()
        return await engine.accounts.revenue.report(
            RevenueGrouping(by), first=today - timedelta(days=days - 1), last=today
        )

    rows = with_databases(work)
    if as_json:
        print_json([row.model_dump(mode="json") for row in rows])
        return
    if not rows:
        print_line("No jobs in this period.")
        return
    head = (by, "jobs", "tokens", "revenue", "GPU time", "cost")
    print_table(head, [_revenue(row) for row in rows])


def _revenue(row: Revenue) -> TableRow:
    value = "unknown" if row.revenue is None else money(row.revenue)
    cells = (row.name, str(row.jobs), str(row.tokens), value, _hours(row.gpu_seconds))
    return TableRow((*cells, cost_text(row.cost, row.gpu_seconds, row.unpriced_seconds)))


def _costs(row: Usage, *, machines: bool) -> TableRow:
    name = row.name if row.stage is None else f"{row.stage}/{row.name}"
    ran = row.busy_seconds + row.lost_seconds
    cells = [name, str(row.jobs), _hours(row.busy_seconds), _hours(row.lost_seconds)]
    cost = cost_text(row.cost, ran, row.unpriced_seconds)
    if not machines:
        return TableRow((*cells, cost))
    idle, boot = row.idle_seconds or 0.0, row.boot_seconds or 0.0
    if row.machine_cost is None:
        return TableRow((*cells, "–", "–", cost, "–"))
    seconds = ran + idle + boot
    total = cost_text(row.machine_cost, seconds, row.unpriced_seconds if row.machine_cost else seconds)
    return TableRow((*cells, _hours(idle), _hours(boot), cost, total))


def _hours(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"


def cost_text(cost: float, seconds: float, unpriced_seconds: float) -> str:
    """Format the cost of machine time as in the web app. `unpriced_seconds` of it were without a price."""
    if not unpriced_seconds:
        return money(cost)
    # Both are sums of floats.
    return "unknown" if seconds - unpriced_seconds < 0.001 else f"{money(cost)} + unknown"


def money(cost: float) -> str:
    """Format an amount with up to four decimals below 1: a minute of a machine is less than a cent."""
    if 0 < cost < 0.0001:
        return "<0.0001"
    text = f"{cost:,.2f}" if cost >= 1 else f"{cost:.4f}"
    whole, decimals = text.split(".")
    return f"{whole}.{decimals[:2]}{decimals[2:].rstrip('0')}"
