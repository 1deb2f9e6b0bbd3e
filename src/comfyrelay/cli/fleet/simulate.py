"""`comfyrelay fleet`: what a policy would have done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from comfyrelay.domain.autoscaling.spec import Policy
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import InvalidInput

if TYPE_CHECKING:
    from comfyrelay.autoscaling.simulation.summary import SimulationSummary
    from comfyrelay.autoscaling.simulation.traces import TraceRequest
    from comfyrelay.autoscaling.simulation.world import WorldSettings

simulate_app = typer.Typer()
out = Console()
err = Console(stderr=True)

OURS = (Policy.CHEAP, Policy.BALANCED, Policy.FAST)
GENERATED_DAYS = 7.0
HISTORY_DAYS = 30.0


@simulate_app.command("simulate")
def simulate(
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A CSV with the columns arrival_seconds, duration_seconds, workflow and model."
        ),
    ] = None,
    generate: Annotated[bool, typer.Option("--generate", help="Requests in bursts, generated from --seed.")] = False,
    fleet: Annotated[str | None, typer.Option(metavar="SLUG", help="The past jobs of this fleet.")] = None,
    stage: Annotated[Stage, typer.Option(help="The stage of that fleet.")] = Stage.PRODUCTION,
    policy: Annotated[
        list[Policy] | None, typer.Option(help="Simulate this policy; may be repeated. Without it: all of our own.")
    ] = None,
    compare: Annotated[Policy | None, typer.Option(help="Simulate this one first, and compare others with it.")] = None,
    days: Annotated[
        float | None,
        typer.Option(min=0.01, help="How much is generated (7 by default), or looked back at in a fleet (30)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed draws other requests, boots and evictions.")] = 1,
    boot_seconds: Annotated[float | None, typer.Option(min=1, help="From launch to worker; 180 by default.")] = None,
    load_seconds: Annotated[float | None, typer.Option(min=0, help="To load a model; 22 by default.")] = None,
    price: Annotated[float | None, typer.Option(min=0, help="Of a machine, for an hour; 0.20 by default.")] = None,
    max_machines: Annotated[int | None, typer.Option(min=1, help="No more machines; 10 by default.")] = None,
    evictions_per_hour: Annotated[
        float, typer.Option(min=0, help="Spot: how often a machine is taken away in an hour.")
    ] = 0.0,
    refused_share: Annotated[
        float, typer.Option(min=0, max=0.95, help="Spot: the share of launches for which there is no capacity.")
    ] = 0.0,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the trade-off as an SVG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Simulate policies on a load: waiting, machines and money, with the same decisions as the scaling loop."""
    from comfyrelay.autoscaling.simulation.plot import trade_off
    from comfyrelay.autoscaling.simulation.summary import lower_bound
    from comfyrelay.autoscaling.simulation.world import WorldSettings

    ways = [trace is not None, generate, fleet is not None].count(True)
    if ways == 0:
        raise InvalidInput("Say which requests arrive: give one of --trace FILE, --generate and --fleet SLUG.")
    if ways > 1:
        raise InvalidInput("Give only one of --trace FILE, --generate and --fleet SLUG: requests come from one.")
    if plot is not None and not plot.absolute().parent.is_dir():
        raise InvalidInput(f"There is no folder {str(plot.absolute().parent)!r} for the plot.")
    base = WorldSettings(evictions_per_hour=evictions_per_hour, refused_share=refused_share)
    requests, base = _requests(trace, fleet, stage, days, seed, base)
    said: dict[str, Any] = {
        "boot_seconds": boot_seconds,
        "load_seconds": load_seconds,
        "price_per_hour": price,
        "max_machines": max_machines,
    }
    setting = replace(base, **{key: value for key, value in said.items() if value is not None})
    chosen = list(dict.fromkeys([*([compare] if compare else []), *(policy or OURS)]))
    found = [_simulated(each, requests, setting, seed) for each in chosen]
    bound = lower_bound(requests, setting)
    if plot is not None:
        plot.write_text(trade_off([*found, bound], _title(requests), _subtitle(setting)), encoding="utf-8")
        err.print(f"The trade-off is drawn in {plot}.", highlight=False)
    if as_json:
        out.print_json(json.dumps({"policies": [asdict(each) for each in found], "clairvoyant": asdict(bound)}))
    else:
        _show(found, bound, compared=compare is not None)


def _requests(
    trace: Path | None, fleet: str | None, stage: Stage, days: float | None, seed: int, setting: WorldSettings
) -> tuple[Sequence[TraceRequest], WorldSettings]:
    from comfyrelay.autoscaling.simulation.generator import Workload
    from comfyrelay.autoscaling.simulation.generator import generate as generated
    from comfyrelay.autoscaling.simulation.traces import read_trace

    if trace is not None:
        return read_trace(trace), setting
    if fleet is not None:
        return asyncio.run(_of_fleet(stage, fleet, days or HISTORY_DAYS, setting))
    requests = generated(Workload(days=days or GENERATED_DAYS), seed)
    if not requests:
        raise InvalidInput("So short a time brought no request: give more --days, or another --seed.")
    return requests, setting


async def _of_fleet(
    stage: Stage, slug: str, days: float, setting: WorldSettings
) -> tuple[Sequence[TraceRequest], WorldSettings]:
    """Its jobs, and its machines as they were: how long they boot, what they cost, how many there may be."""
    from comfyrelay.extras import require

    require("server")
    from comfyrelay.autoscaling.simulation.traces import from_history
    from comfyrelay.services.engine import Engine
    from comfyrelay.settings import load_settings

    async with Engine(load_settings()) as engine:
        await engine.databases.require_current()
        view = await engine.scaling.views.get(stage, slug)
        done = [each async for each in engine.scaling.history.done(stage, slug, days=days)]
    if not done:
        raise InvalidInput(f"The {stage} fleet {slug!r} has completed no job in the last {days:g} days.")
    types = view.seen.instance_types
    return from_history(done), replace(
        setting,
        boot_seconds=view.seen.boot_seconds,
        max_machines=view.seen.scaling.limits.max_machines,
        last_idle_seconds=view.seen.scaling.last_idle_seconds,
        price_per_hour=types[0].price_per_hour if types else setting.price_per_hour,
        # it is in the durations already
        load_seconds=0.0,
    )


def _simulated(
    policy: Policy, requests: Sequence[TraceRequest], setting: WorldSettings, seed: int
) -> SimulationSummary:
    from comfyrelay.autoscaling.simulation.simulator import simulate as simulated
    from comfyrelay.autoscaling.simulation.summary import summary

    with _progress(f"{policy}") as progress:
        return summary(policy, simulated(requests, policy, setting, seed=seed, progress=progress), setting)


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, and nothing elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _title(requests: Sequence[TraceRequest]) -> str:
    seconds = requests[-1].arrival_seconds - requests[0].arrival_seconds
    spans = ((86_400.0, "day"), (3600.0, "hour"), (60.0, "minute"))
    unit, word = next((each for each in spans if seconds >= each[0]), (1.0, "second"))
    period = f"{seconds / unit:.3g}"
    return f"{_number(len(requests))} in {period} {word}{'' if period == '1' else 's'}"


def _subtitle(setting: WorldSettings) -> str:
    machines = "1 machine" if setting.max_machines == 1 else f"{setting.max_machines} machines"
    return f"boot {setting.boot_seconds:g} s, at most {machines}, {setting.price_per_hour:g} an hour for each"


def _number(requests: int) -> str:
    return "1 request" if requests == 1 else f"{requests:,} requests"


def _show(found: Sequence[SimulationSummary], bound: SimulationSummary, *, compared: bool) -> None:
    names = ("policy", "wait\np50", "\np95", "\np99", "machine-\nhours", "cold\nstarts", "cost\na job", "\nlaunches")
    # 80 columns are enough for it
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    first = found[0]
    for each in (*found, bound):
        is_other = compared and each is not first and each is not bound
        p95, hours = f"{each.wait_p95:.0f} s", f"{each.machine_hours:.1f}"
        if is_other and first.wait_p95 and first.machine_hours:
            p95 += f"\n({each.wait_p95 / first.wait_p95:.2f} ×)"
            hours += f"\n({each.machine_hours / first.machine_hours:.2f} ×)"
        is_bound = each is bound
        table.add_row(
            each.policy,
            f"{each.wait_p50:.0f} s",
            p95,
            f"{each.wait_p99:.0f} s",
            hours,
            "" if is_bound else f"{each.cold_starts:,}",
            f"{each.cost_per_job:.4f}",
            "" if is_bound else f"{each.launches:,}",
        )
    out.print(table)
    for each in found:
        if each.evictions or each.refusals:
            out.print(
                f"{each.policy}: {each.evictions} machines were taken away ({each.lost_hours:.1f} h of work lost), "
                f"{each.refusals} launches were refused.",
                highlight=False,
            )
    out.print(
        f"{_number(first.jobs)}. {bound.policy}: a bound that no real policy can reach.",
        highlight=False,
        soft_wrap=True,
    )
