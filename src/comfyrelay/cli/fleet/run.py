"""`comfyrelay fleet`: the autoscaling loop, its status and its decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from comfyrelay.cli.fleet.databases import with_databases
from comfyrelay.cli.fleet.tables import TableRow, print_table
from comfyrelay.cli.options import FleetStage, Json, LogLevel
from comfyrelay.cli.output import print_json, print_line, print_note
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import InvalidInput
from comfyrelay.extras import require

if TYPE_CHECKING:
    from comfyrelay.domain.autoscaling.machines import ScalingDecision
    from comfyrelay.services.autoscaling.views import ScalingView
    from comfyrelay.services.engine import Engine

Fleet = Annotated[str | None, typer.Argument(help="Slug of the fleet.")]
All = Annotated[bool, typer.Option("--all", help="All fleets of all stages.")]


def run(log_level: LogLevel = "info") -> None:
    """Run the autoscaling loop, which launches and terminates machines, until Ctrl-C.

    Every server also runs it, unless COMFYRELAY_AUTOSCALING is false. Only one process at a time is active.
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
                print_note("Autoscaling fleets. Press Ctrl-C to stop.")
                await stopped.wait()

    log_as_json(log_level)
    with_databases(work)


def status(as_json: Json = False) -> None:
    """Show the machines, queue and last decision of every autoscaled fleet."""

    async def work(engine: Engine) -> list[ScalingView]:
        return await engine.autoscaling.views.all()

    views = with_databases(work)
    if as_json:
        from comfyrelay.server.admin.autoscaling import status_body

        print_json([status_body(view).model_dump(mode="json") for view in views])
        return
    if not views:
        print_line("No fleet is autoscaled. Configure the machines or the limits of a fleet.")
        return
    print_table(("fleet", "provider", "policy", "machines", "queued", "cost/h"), [_status_row(view) for view in views])
    if views[0].leader is None:
        print_note("No autoscaling loop runs. Start a server, or `comfyrelay fleet run`.")


def decisions(
    fleet: Fleet = None,
    stage: FleetStage = Stage.PRODUCTION,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number per fleet.")] = 20,
    as_json: Json = False,
) -> None:
    """List the autoscaling decisions for one or all fleets, newest first, with their reasons."""

    async def work(engine: Engine) -> list[tuple[str, ScalingDecision]]:
        views = engine.autoscaling.views
        fleets = [(stage, fleet)] if fleet is not None else await _autoscaled(engine)
        found = [
            (slug, decision)
            for fleet_stage, slug in fleets
            for decision in (await views.decisions(fleet_stage, slug, limit=limit)).items
        ]
        return sorted(found, key=lambda pair: pair[1].id, reverse=True)

    found = with_databases(work)
    if as_json:
        from comfyrelay.protocol.admin.autoscaling import Decision

        print_json([{"fleet": slug, **Decision.of(decision).model_dump(mode="json")} for slug, decision in found])
        return
    if not found:
        print_line("No decisions yet.")
        return
    rows = [
        TableRow(
            (f"{decision.created_at:%Y-%m-%d %H:%M:%S}", slug, str(decision.desired), _done(decision)),
            _reasons(decision),
        )
        for slug, decision in found
    ]
    print_table(("at", "fleet", "desired", "done"), rows)


def pause(fleet: Fleet = None, stage: FleetStage = Stage.PRODUCTION, all_fleets: All = False) -> None:
    """Pause autoscaling of a fleet: no machine is launched or terminated. Jobs and workers continue."""
    _set_paused(fleet, stage, all_fleets=all_fleets, is_paused=True)


def resume(fleet: Fleet = None, stage: FleetStage = Stage.PRODUCTION, all_fleets: All = False) -> None:
    """Resume autoscaling of a paused fleet."""
    _set_paused(fleet, stage, all_fleets=all_fleets, is_paused=False)


def _set_paused(fleet: str | None, stage: Stage, *, all_fleets: bool, is_paused: bool) -> None:
    if (fleet is None) == (not all_fleets):
        raise InvalidInput("Give either a fleet or --all.")

    async def work(engine: Engine) -> Sequence[tuple[Stage, str]]:
        fleets = await _autoscaled(engine) if fleet is None else [(stage, fleet)]
        for fleet_stage, slug in fleets:
            await engine.autoscaling.views.set_paused(fleet_stage, slug, is_paused=is_paused)
        return fleets

    for fleet_stage, slug in with_databases(work):
        print_line(f"{slug} ({fleet_stage}): {'paused' if is_paused else 'resumed'}")


async def _autoscaled(engine: Engine) -> list[tuple[Stage, str]]:
    fleets = await engine.autoscaling.snapshots.fleets()
    return [(Stage(fleet.stage), fleet.slug) for fleet in fleets if fleet.is_scaled]


def _status_row(view: ScalingView) -> TableRow:
    states = ", ".join(f"{count} {state}" for state, count in view.by_state.items() if count) or "none"
    scaling = view.seen.scaling
    mode = " (paused)" if scaling.is_paused else " (dry run)" if scaling.is_dry_run else ""
    queued = f"{view.queued_jobs} jobs, {view.queued_seconds:.0f} s" if view.queued_jobs else "nothing"
    provider = str(view.fleet.machine_spec.provider)
    # Without a price, the cost is 0.
    cost = "unknown" if view.machines and not view.spent_per_hour else f"{view.spent_per_hour:.2f}"
    name = f"{view.fleet.stage}/{view.fleet.slug}"
    reasons = () if view.decision is None else (f"{view.decision.created_at:%H:%M:%S}: {view.decision.reason}",)
    return TableRow((name, provider, f"{scaling.policy}{mode}", states, queued, cost), reasons)


def _done(decision: ScalingDecision) -> str:
    outcome = decision.outcome
    counts = [f"{outcome[name]} {name}" for name in ("launched", "refused", "ended") if outcome.get(name)]
    # KEDA creates and deletes the pods itself.
    requested = [f"requested {outcome['requested']}"] if "requested" in outcome else []
    failed = ["failed"] if {"launch_failed", "end_failed"} & outcome.keys() else []
    return ", ".join([*requested, *counts, *failed]) or "nothing"


def _reasons(decision: ScalingDecision) -> Sequence[str]:
    outcome = decision.outcome
    failures = [str(outcome[name]) for name in ("launch_failed", "end_failed") if name in outcome]
    return [decision.reason, *map(str, outcome.get("refusals", ())), *failures]
