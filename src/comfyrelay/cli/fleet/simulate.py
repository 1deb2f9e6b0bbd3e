"""`comfyrelay fleet simulate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from comfyrelay.cli.fleet.databases import with_databases
from comfyrelay.cli.options import Json
from comfyrelay.cli.output import out, print_json, print_note, progress_bar
from comfyrelay.domain.autoscaling.spec import Policy
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import InvalidInput

if TYPE_CHECKING:
    from comfyrelay.autoscaling.simulation.summary import SimulationSummary
    from comfyrelay.autoscaling.simulation.traces import TraceRequest
    from comfyrelay.autoscaling.simulation.world import WorldSettings
    from comfyrelay.services.autoscaling.views import ScalingView
    from comfyrelay.services.engine import Engine

DEFAULT_POLICIES = (Policy.CHEAP, Policy.BALANCED, Policy.FAST)
GENERATED_DAYS = 7.0
HISTORY_DAYS = 30.0


def simulate(
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A CSV file with the columns arrival_seconds, duration_seconds, workflow and model."
        ),
    ] = None,
    generate: Annotated[bool, typer.Option("--generate", help="Generate random bursts of requests.")] = False,
    fleet: Annotated[str | None, typer.Option(metavar="SLUG", help="Use the past jobs of this fleet.")] = None,
    stage: Annotated[Stage, typer.Option(help="Stage of that fleet.")] = Stage.PRODUCTION,
    policy: Annotated[
        list[Policy] | None, typer.Option(help="Policy to simulate. Repeatable. Default: cheap, balanced and fast.")
    ] = None,
    compare: Annotated[Policy | None, typer.Option(help="Baseline policy for the comparison.")] = None,
    days: Annotated[
        float | None,
        typer.Option(min=0.01, help="Days to generate (default 7), or days of the fleet's history (default 30)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of generated requests, boot times and evictions.")] = 1,
    boot_seconds: Annotated[
        float | None, typer.Option(min=1, help="Seconds from the launch of a machine to its worker; default 180.")
    ] = None,
    load_seconds: Annotated[float | None, typer.Option(min=0, help="Seconds to load a model; default 22.")] = None,
    price: Annotated[float | None, typer.Option(min=0, help="Price of a machine per hour; default 0.20.")] = None,
    max_machines: Annotated[int | None, typer.Option(min=1, help="Maximum number of machines; default 10.")] = None,
    evictions_per_hour: Annotated[float, typer.Option(min=0, help="Spot evictions per machine and hour.")] = 0.0,
    refused_share: Annotated[
        float, typer.Option(min=0, max=0.95, help="Share of Spot launches refused for lack of capacity.")
    ] = 0.0,
    alarm_points: Annotated[
        int, typer.Option(min=1, max=15, help="Consecutive data points that the alarms of the reference policy need.")
    ] = 1,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a plot of waiting time and cost to this SVG file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Simulate autoscaling policies, and compare their waiting times, machines and costs.

    The load comes from --trace, --generate or --fleet. The simulation uses the decision code of the real loop.
    """
    from comfyrelay.autoscaling.simulation.plot import trade_off
    from comfyrelay.autoscaling.simulation.summary import lower_bound
    from comfyrelay.autoscaling.simulation.world import WorldSettings

    _require_one_source(trace is not None, generate, fleet is not None)
    if plot is not None and not plot.absolute().parent.is_dir():
        raise InvalidInput(f"There is no folder {str(plot.absolute().parent)!r} for the plot.")
    base = WorldSettings(evictions_per_hour=evictions_per_hour, refused_share=refused_share, alarm_points=alarm_points)
    requests, base = _requests(trace, fleet, stage, days, seed, base)
    options: dict[str, Any] = {
        "boot_seconds": boot_seconds,
        "load_seconds": load_seconds,
        "price_per_hour": price,
        "max_machines": max_machines,
    }
    setting = replace(base, **{key: value for key, value in options.items() if value is not None})
    chosen = list(dict.fromkeys([*([compare] if compare else []), *(policy or DEFAULT_POLICIES)]))
    found = [_simulate(name, requests, setting, seed) for name in chosen]
    bound = lower_bound(requests, setting)
    if plot is not None:
        plot.write_text(trade_off([*found, bound], _title(requests), _subtitle(setting)), encoding="utf-8")
        print_note(f"Wrote the plot to {plot}.")
    if as_json:
        print_json({"policies": found, "clairvoyant": bound})
    else:
        _print_summaries(found, bound, compared=compare is not None)


def _require_one_source(*given: bool) -> None:
    if not any(given):
        raise InvalidInput("Give one source of requests: --trace FILE, --generate or --fleet SLUG.")
    if given.count(True) > 1:
        raise InvalidInput("Give only one of --trace FILE, --generate and --fleet SLUG.")


def _requests(
    trace: Path | None, fleet: str | None, stage: Stage, days: float | None, seed: int, setting: WorldSettings
) -> tuple[Sequence[TraceRequest], WorldSettings]:
    from comfyrelay.autoscaling.simulation.generator import Workload
    from comfyrelay.autoscaling.simulation.generator import generate as generated
    from comfyrelay.autoscaling.simulation.traces import read_trace

    if trace is not None:
        return read_trace(trace), setting
    if fleet is not None:
        return _read_fleet(stage, fleet, days or HISTORY_DAYS, setting)
    requests = generated(Workload(days=days or GENERATED_DAYS), seed)
    if not requests:
        raise InvalidInput("No requests in this period: increase --days, or change --seed.")
    return requests, setting


def _read_fleet(
    stage: Stage, slug: str, days: float, setting: WorldSettings
) -> tuple[Sequence[TraceRequest], WorldSettings]:
    """Read the past jobs of a fleet, and the boot time, price and limit of its machines."""
    from comfyrelay.autoscaling.simulation.traces import from_history

    async def work(engine: Engine) -> tuple[ScalingView, Sequence[TraceRequest]]:
        view = await engine.autoscaling.views.get(stage, slug)
        return view, from_history([job async for job in engine.autoscaling.history.done(stage, slug, days=days)])

    view, requests = with_databases(work)
    if not requests:
        raise InvalidInput(f"The {stage} fleet {slug!r} has completed no job in the last {days:g} days.")
    types = view.seen.instance_types
    return requests, replace(
        setting,
        boot_seconds=view.seen.boot_seconds,
        max_machines=view.seen.scaling.limits.max_machines,
        last_idle_seconds=view.seen.scaling.last_idle_seconds,
        price_per_hour=types[0].price_per_hour if types else setting.price_per_hour,
        # The recorded durations include the load time.
        load_seconds=0.0,
    )


def _simulate(policy: Policy, requests: Sequence[TraceRequest], setting: WorldSettings, seed: int) -> SimulationSummary:
    from rich.progress import MofNCompleteColumn

    from comfyrelay.autoscaling.simulation.simulator import simulate as run_simulation
    from comfyrelay.autoscaling.simulation.summary import summary

    with progress_bar(str(policy), MofNCompleteColumn) as progress:
        return summary(policy, run_simulation(requests, policy, setting, seed=seed, progress=progress), setting)


def _title(requests: Sequence[TraceRequest]) -> str:
    seconds = requests[-1].arrival_seconds - requests[0].arrival_seconds
    spans = ((86_400.0, "day"), (3600.0, "hour"), (60.0, "minute"))
    unit, word = next((span for span in spans if seconds >= span[0]), (1.0, "second"))
    period = f"{seconds / unit:.3g}"
    return f"{_number(len(requests))} in {period} {word}{'' if period == '1' else 's'}"


def _subtitle(setting: WorldSettings) -> str:
    machines = "1 machine" if setting.max_machines == 1 else f"{setting.max_machines} machines"
    return f"boot {setting.boot_seconds:g} s, at most {machines}, {setting.price_per_hour:g} per machine-hour"


def _number(requests: int) -> str:
    return "1 request" if requests == 1 else f"{requests:,} requests"


def _print_summaries(found: Sequence[SimulationSummary], bound: SimulationSummary, *, compared: bool) -> None:
    names = ("policy", "wait\np50", "\np95", "\np99", "machine-\nhours", "cold\nstarts", "cost\na job", "\nlaunches")
    # With these settings, the table fits into 80 columns.
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    first = found[0]
    for summary in (*found, bound):
        is_other = compared and summary is not first and summary is not bound
        p95, hours = f"{summary.wait_p95:.0f} s", f"{summary.machine_hours:.1f}"
        if is_other and first.wait_p95 and first.machine_hours:
            p95 += f"\n({summary.wait_p95 / first.wait_p95:.2f} ×)"
            hours += f"\n({summary.machine_hours / first.machine_hours:.2f} ×)"
        is_bound = summary is bound
        table.add_row(
            summary.policy,
            f"{summary.wait_p50:.0f} s",
            p95,
            f"{summary.wait_p99:.0f} s",
            hours,
            "" if is_bound else f"{summary.cold_starts:,}",
            f"{summary.cost_per_job:.4f}",
            "" if is_bound else f"{summary.launches:,}",
        )
    out.print(table)
    for summary in found:
        if summary.evictions or summary.refusals:
            lost = f"({summary.lost_hours:.1f} h of work lost)"
            out.print(f"{summary.policy}: {summary.evictions} evictions {lost}, {summary.refusals} refused launches.")
    out.print(f"{_number(first.jobs)}. {bound.policy}: a bound that no real policy can reach.", soft_wrap=True)
