"""`comfyrelay fleet`: the autoscaling loop, its status and its decisions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from comfyrelay.cli.fleet.databases import HERE, with_databases
from comfyrelay.cli.fleet.tables import TableRow, show
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import InvalidInput
from comfyrelay.extras import require

if TYPE_CHECKING:
    from comfyrelay.domain.autoscaling.machines import ScalingDecision
    from comfyrelay.services.autoscaling.views import ScalingView
    from comfyrelay.services.engine import Engine

scaling_app = typer.Typer()
out = Console()
err = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
FleetStage = Annotated[
    Stage, typer.Option("--stage", metavar="STAGE", help="Stage of the fleet: staging or production.")
]
Fleet = Annotated[str | None, typer.Argument(help="Slug of the fleet.")]
All = Annotated[bool, typer.Option("--all", help="All fleets of all stages.")]


@scaling_app.command("run", epilog=HERE)
def run(
    log_level: Annotated[str, typer.Option(help="Minimum level: debug, info, warning or error.")] = "info",
) -> None:
    """Run the autoscaling loop until Ctrl-C: decide how many machines fleets need, launch and terminate them.

    A server runs it too, unless COMFYRELAY_AUTOSCALING is false. One process at a time is active.
    """
    require("server")
    from comfyrelay.autoscaling.process import scaling_fleets
    from comfyrelay.logs import log_as_json
    from comfyrelay.server.http.secrets import load_secrets
    from comfyrelay.system.signals import on_stop

    async def work(engine: Engine) -> None:
        await engine.notify_channel.start()
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        secrets = load_secrets(engine.settings).fleet
        with on_stop(lambda _number: loop.call_soon_threadsafe(stopped.set)):
            async with scaling_fleets(engine, secrets=secrets):
                err.print("Autoscaling fleets. Press Ctrl-C to stop.", highlight=False)
                await stopped.wait()

    log_as_json(log_level)
    with_databases(work)


@scaling_app.command("status", epilog=HERE)
def status(as_json: Json = False) -> None:
    """Show machines, queue and last decision of every autoscaled fleet."""

    async def work(engine: Engine) -> list[ScalingView]:
        return await engine.autoscaling.views.all()

    views = with_databases(work)
    if as_json:
        from comfyrelay.server.admin.autoscaling import status_body

        out.print_json(json.dumps([status_body(view).model_dump(mode="json") for view in views]))
        return
    if not views:
        out.print("No fleet is autoscaled: configure the machines or the limits of a fleet.", highlight=False)
        return
    show(out, ("fleet", "provider", "policy", "machines", "queued", "cost/h"), [_status_row(view) for view in views])
    leader = views[0].leader
    if leader is None:
        err.print("No autoscaling loop runs: start a server, or `comfyrelay fleet run`.", highlight=False)


@scaling_app.command("decisions", epilog=HERE)
def decisions(
    fleet: Fleet = None,
    stage: FleetStage = Stage.PRODUCTION,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum per fleet.")] = 20,
    as_json: Json = False,
) -> None:
    """List the decisions for one or all fleets, newest first, with observation, actions and reason."""

    async def work(engine: Engine) -> list[tuple[str, ScalingDecision]]:
        views = engine.autoscaling.views
        which = [(stage, fleet)] if fleet is not None else await _scaled(engine)
        found = [
            (slug, decision) for of, slug in which for decision in (await views.decisions(of, slug, limit=limit)).items
        ]
        return sorted(found, key=lambda each: each[1].id, reverse=True)

    found = with_databases(work)
    if as_json:
        from comfyrelay.protocol.admin.autoscaling import Decision

        rows = [{"fleet": slug, **Decision.of(decision).model_dump(mode="json")} for slug, decision in found]
        out.print_json(json.dumps(rows))
        return
    if not found:
        out.print("No decisions yet.", highlight=False)
        return
    shown = [
        TableRow((f"{each.created_at:%Y-%m-%d %H:%M:%S}", slug, str(each.desired), _done(each)), _why(each))
        for slug, each in found
    ]
    show(out, ("at", "fleet", "desired", "done"), shown)


@scaling_app.command("pause", epilog=HERE)
def pause(fleet: Fleet = None, stage: FleetStage = Stage.PRODUCTION, every: All = False) -> None:
    """Stop launching and terminating machines of a fleet until it is resumed. Jobs and workers continue."""
    _set_paused(fleet, stage, every=every, is_paused=True)


@scaling_app.command("resume", epilog=HERE)
def resume(fleet: Fleet = None, stage: FleetStage = Stage.PRODUCTION, every: All = False) -> None:
    """Resume autoscaling of a paused fleet."""
    _set_paused(fleet, stage, every=every, is_paused=False)


def _set_paused(fleet: str | None, stage: Stage, *, every: bool, is_paused: bool) -> None:
    if (fleet is None) == (not every):
        raise InvalidInput("Give a fleet or --all.")

    async def work(engine: Engine) -> Sequence[tuple[Stage, str]]:
        which = await _scaled(engine) if fleet is None else [(stage, fleet)]
        for of, slug in which:
            await engine.autoscaling.views.set_paused(of, slug, is_paused=is_paused)
        return which

    for of, slug in with_databases(work):
        out.print(f"{slug} ({of}): {'paused' if is_paused else 'resumed'}", highlight=False)


async def _scaled(engine: Engine) -> list[tuple[Stage, str]]:
    fleets = await engine.autoscaling.snapshots.fleets()
    return [(Stage(fleet.stage), fleet.slug) for fleet in fleets if fleet.is_scaled]


def _status_row(view: ScalingView) -> TableRow:
    states = ", ".join(f"{count} {state}" for state, count in view.by_state.items() if count) or "none"
    scaling = view.seen.scaling
    switch = " (paused)" if scaling.is_paused else " (dry run)" if scaling.is_dry_run else ""
    queued = f"{view.queued_jobs} jobs, {view.queued_seconds:.0f} s" if view.queued_jobs else "nothing"
    provider = str(view.fleet.machine_spec.provider)
    # no price is set
    cost = "unknown" if view.machines and not view.spent_per_hour else f"{view.spent_per_hour:.2f}"
    name = f"{view.fleet.stage}/{view.fleet.slug}"
    why = () if view.decision is None else (f"{view.decision.created_at:%H:%M:%S}: {view.decision.reason}",)
    return TableRow((name, provider, f"{scaling.policy}{switch}", states, queued, cost), why)


def _done(decision: ScalingDecision) -> str:
    outcome = decision.outcome
    counts = [f"{outcome[name]} {name}" for name in ("launched", "refused", "ended") if outcome.get(name)]
    # KEDA creates and deletes the pods
    requested = [f"requested {outcome['requested']}"] if "requested" in outcome else []
    failed = ["failed"] if {"launch_failed", "end_failed"} & outcome.keys() else []
    return ", ".join([*requested, *counts, *failed]) or "nothing"


def _why(decision: ScalingDecision) -> Sequence[str]:
    outcome = decision.outcome
    failures = [str(outcome[name]) for name in ("launch_failed", "end_failed") if name in outcome]
    return [decision.reason, *map(str, outcome.get("refusals", ())), *failures]
