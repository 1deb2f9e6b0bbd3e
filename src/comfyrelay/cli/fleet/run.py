"""`comfyrelay fleet`: the scaling loop and what it did."""

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
OfStage = Annotated[
    Stage, typer.Option("--stage", metavar="STAGE", help="The stage of the fleet: staging or production.")
]
Fleet = Annotated[str | None, typer.Argument(help="The slug of a fleet.")]
All = Annotated[bool, typer.Option("--all", help="Every fleet of every stage.")]


@scaling_app.command("run", epilog=HERE)
def run(
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Decide how many machines fleets have, and launch and end them, until Ctrl-C.

    A server does so by itself, unless COMFYRELAY_SCALING is false. Of several, one does it.
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
                err.print("Scaling fleets. Press Ctrl-C to stop.", highlight=False)
                await stopped.wait()

    log_as_json(log_level)
    with_databases(work)


@scaling_app.command("status", epilog=HERE)
def status(as_json: Json = False) -> None:
    """Show the machines of every fleet that is scaled, what waits for it, and what was decided last."""

    async def work(engine: Engine) -> list[ScalingView]:
        return await engine.scaling.views.all()

    views = with_databases(work)
    if as_json:
        from comfyrelay.server.admin.autoscaling import status_body

        out.print_json(json.dumps([status_body(each).model_dump(mode="json") for each in views]))
        return
    if not views:
        out.print("No fleet is scaled: configure its machines, or how many there should be.", highlight=False)
        return
    show(out, ("fleet", "provider", "policy", "machines", "queued", "cost/h"), [_status_row(each) for each in views])
    leader = views[0].leader
    if leader is None:
        err.print("Nobody scales them: start a server, or `comfyrelay fleet run`.", highlight=False)


@scaling_app.command("decisions", epilog=HERE)
def decisions(
    fleet: Fleet = None,
    stage: OfStage = Stage.PRODUCTION,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many of each fleet.")] = 20,
    as_json: Json = False,
) -> None:
    """List what was decided for a fleet, or for all of them, newest first: what was seen, what was done, and why."""

    async def work(engine: Engine) -> list[tuple[str, ScalingDecision]]:
        views = engine.scaling.views
        which = [(stage, fleet)] if fleet is not None else await _scaled(engine)
        found = [
            (slug, decision) for of, slug in which for decision in (await views.decisions(of, slug, limit=limit)).items
        ]
        return sorted(found, key=lambda each: each[1].id, reverse=True)

    found = with_databases(work)
    if as_json:
        from comfyrelay.server.admin.autoscaling import decision_body

        rows = [{"fleet": slug, **decision_body(each).model_dump(mode="json")} for slug, each in found]
        out.print_json(json.dumps(rows))
        return
    if not found:
        out.print("Nothing was decided yet.", highlight=False)
        return
    shown = [
        TableRow((f"{each.created_at:%Y-%m-%d %H:%M:%S}", slug, str(each.desired), _done(each)), _why(each))
        for slug, each in found
    ]
    show(out, ("at", "fleet", "desired", "done"), shown)


@scaling_app.command("pause", epilog=HERE)
def pause(fleet: Fleet = None, stage: OfStage = Stage.PRODUCTION, every: All = False) -> None:
    """Launch nothing and end nothing for a fleet, until it is resumed. Jobs and workers continue."""
    _set_paused(fleet, stage, every=every, is_paused=True)


@scaling_app.command("resume", epilog=HERE)
def resume(fleet: Fleet = None, stage: OfStage = Stage.PRODUCTION, every: All = False) -> None:
    """Let a fleet that was paused be scaled again."""
    _set_paused(fleet, stage, every=every, is_paused=False)


def _set_paused(fleet: str | None, stage: Stage, *, every: bool, is_paused: bool) -> None:
    if (fleet is None) == (not every):
        raise InvalidInput("Name one fleet, or all of them with --all.")

    async def work(engine: Engine) -> Sequence[tuple[Stage, str]]:
        which = await _scaled(engine) if fleet is None else [(stage, fleet)]
        for of, slug in which:
            await engine.scaling.views.set_paused(of, slug, is_paused=is_paused)
        return which

    for of, slug in with_databases(work):
        out.print(f"{slug} ({of}): {'paused' if is_paused else 'resumed'}", highlight=False)


async def _scaled(engine: Engine) -> list[tuple[Stage, str]]:
    fleets = await engine.scaling.snapshots.fleets()
    return [(Stage(each.stage), each.slug) for each in fleets if each.is_scaled]


def _status_row(view: ScalingView) -> TableRow:
    states = ", ".join(f"{count} {state}" for state, count in view.by_state.items() if count) or "none"
    scaling = view.seen.scaling
    switch = " (paused)" if scaling.is_paused else " (dry run)" if scaling.is_dry_run else ""
    queued = f"{view.queued_jobs} jobs, {view.queued_seconds:.0f} s" if view.queued_jobs else "nothing"
    provider = str(view.fleet.machine_spec.provider)
    # a price of 0 is one that is not set
    cost = "unknown" if view.machines and not view.spent_per_hour else f"{view.spent_per_hour:.2f}"
    name = f"{view.fleet.stage}/{view.fleet.slug}"
    why = () if view.decision is None else (f"{view.decision.created_at:%H:%M:%S}: {view.decision.reason}",)
    return TableRow((name, provider, f"{scaling.policy}{switch}", states, queued, cost), why)


def _done(decision: ScalingDecision) -> str:
    outcome = decision.outcome
    words = [f"{outcome[name]} {name}" for name in ("launched", "refused", "ended") if outcome.get(name)]
    # a cluster does itself what it is told
    told = [f"asked for {outcome['told']}"] if "told" in outcome else []
    failed = ["failed"] if {"launch_failed", "end_failed"} & outcome.keys() else []
    return ", ".join([*told, *words, *failed]) or "nothing"


def _why(decision: ScalingDecision) -> Sequence[str]:
    outcome = decision.outcome
    failures = [str(outcome[name]) for name in ("launch_failed", "end_failed") if name in outcome]
    return [decision.reason, *map(str, outcome.get("refusals", ())), *failures]
