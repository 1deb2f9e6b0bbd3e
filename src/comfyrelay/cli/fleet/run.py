"""`comfyrelay fleet`: the autoscaling loop, its status, decisions and machines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from comfyrelay.cli.fleet.databases import with_databases
from comfyrelay.cli.fleet.metrics import money
from comfyrelay.cli.fleet.operations import FleetOperations, ServerUrl, operate
from comfyrelay.cli.fleet.tables import TableRow, print_table
from comfyrelay.cli.options import FleetStage, Json, LogLevel
from comfyrelay.cli.output import print_json, print_line, print_note
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import InvalidInput
from comfyrelay.extras import require
from comfyrelay.text import counted

if TYPE_CHECKING:
    from datetime import timedelta

    from comfyrelay.protocol.admin.autoscaling import Decision, FleetAutoscalingStatus, MachineInHistory
    from comfyrelay.services.engine import Engine

T = TypeVar("T")
Fleet = Annotated[str | None, typer.Argument(help="Slug of the fleet.")]
Action = Callable[[FleetOperations, Stage, str], Awaitable[None]]
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


def status(url: ServerUrl = None, as_json: Json = False) -> None:
    """Show the machines, queue and last decision of every autoscaled fleet."""

    async def work(fleets: FleetOperations) -> list[FleetAutoscalingStatus]:
        return [await fleets.status(stage, slug) for stage, slug in await fleets.scaled()]

    found = operate(url, work)
    if as_json:
        print_json([fleet.model_dump(mode="json") for fleet in found])
        return
    if not found:
        print_line("No fleet is autoscaled. Configure the machines or the limits of a fleet.")
        return
    print_table(
        ("fleet", "provider", "policy", "machines", "queued", "cost/h"), [_status_row(fleet) for fleet in found]
    )
    if found[0].leader is None:
        print_note("No autoscaling loop is running. Start a server, or `comfyrelay fleet run`.")


def decisions(
    fleet: Fleet = None,
    stage: FleetStage = Stage.PRODUCTION,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number per fleet.")] = 20,
    url: ServerUrl = None,
    as_json: Json = False,
) -> None:
    """List the autoscaling decisions for one or all fleets, newest first, with their reasons."""

    async def work(fleets: FleetOperations) -> list[tuple[str, Decision]]:
        found = await _read_fleets(fleets, fleet, stage, partial(fleets.decisions, limit=limit))
        return sorted(found, key=lambda pair: pair[1].id, reverse=True)

    found = operate(url, work)
    if as_json:
        print_json([{"fleet": slug, **decision.model_dump(mode="json")} for slug, decision in found])
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


def machines(
    fleet: Fleet = None,
    stage: FleetStage = Stage.PRODUCTION,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number per fleet.")] = 20,
    url: ServerUrl = None,
    as_json: Json = False,
) -> None:
    """List the machines of one or all fleets that have ended, newest first: times, reason, jobs and cost."""

    async def work(fleets: FleetOperations) -> list[tuple[str, MachineInHistory]]:
        found = await _read_fleets(fleets, fleet, stage, partial(fleets.ended_machines, limit=limit))
        return sorted(found, key=lambda pair: pair[1].ordered_at, reverse=True)

    found = operate(url, work)
    if as_json:
        print_json([{"fleet": slug, **machine.model_dump(mode="json")} for slug, machine in found])
        return
    if not found:
        print_line("No machine has ended yet.")
        return
    head = ("ordered (UTC)", "fleet", "type", "ready after", "lasted", "jobs", "cost")
    print_table(head, [_machine_row(slug, machine) for slug, machine in found])


def pause(
    fleet: Fleet = None, stage: FleetStage = Stage.PRODUCTION, all_fleets: All = False, url: ServerUrl = None
) -> None:
    """Pause autoscaling of a fleet: no machine is launched or terminated. Jobs and workers continue."""
    _for_each(url, fleet, stage, all_fleets=all_fleets, action=_pause, done="paused")


def resume(
    fleet: Fleet = None, stage: FleetStage = Stage.PRODUCTION, all_fleets: All = False, url: ServerUrl = None
) -> None:
    """Resume autoscaling of a paused fleet."""
    _for_each(url, fleet, stage, all_fleets=all_fleets, action=_resume, done="resumed")


def reset(
    fleet: Fleet = None, stage: FleetStage = Stage.PRODUCTION, all_fleets: All = False, url: ServerUrl = None
) -> None:
    """Forget failed and refused launches of a fleet, so that it can launch machines at once."""
    _for_each(url, fleet, stage, all_fleets=all_fleets, action=_reset, done="reset")


async def _pause(fleets: FleetOperations, stage: Stage, slug: str) -> None:
    await fleets.set_paused(stage, slug, is_paused=True)


async def _resume(fleets: FleetOperations, stage: Stage, slug: str) -> None:
    await fleets.set_paused(stage, slug, is_paused=False)


async def _reset(fleets: FleetOperations, stage: Stage, slug: str) -> None:
    await fleets.reset_launches(stage, slug)


def _for_each(url: str | None, fleet: str | None, stage: Stage, *, all_fleets: bool, action: Action, done: str) -> None:
    if (fleet is None) == (not all_fleets):
        raise InvalidInput("Give either a fleet or --all.")

    async def work(fleets: FleetOperations) -> Sequence[tuple[Stage, str]]:
        chosen = await _chosen(fleets, fleet, stage)
        for fleet_stage, slug in chosen:
            await action(fleets, fleet_stage, slug)
        return chosen

    for fleet_stage, slug in operate(url, work):
        print_line(f"{slug} ({fleet_stage}): {done}")


async def _chosen(fleets: FleetOperations, fleet: str | None, stage: Stage) -> Sequence[tuple[Stage, str]]:
    return [(stage, fleet)] if fleet is not None else await fleets.scaled()


async def _read_fleets(
    fleets: FleetOperations, fleet: str | None, stage: Stage, read: Callable[[Stage, str], Awaitable[Sequence[T]]]
) -> list[tuple[str, T]]:
    """Return pairs of slug and item for all items that `read` returns for the chosen fleets."""
    return [(slug, item) for stage, slug in await _chosen(fleets, fleet, stage) for item in await read(stage, slug)]


def _status_row(fleet: FleetAutoscalingStatus) -> TableRow:
    states = ", ".join(f"{count} {state}" for state, count in fleet.by_state.items() if count) or "none"
    mode = " (paused)" if fleet.is_paused else " (dry run)" if fleet.is_dry_run else ""
    queued = f"{counted(fleet.queued_jobs, 'job')}, {fleet.queued_seconds:.0f} s" if fleet.queued_jobs else "nothing"
    # Without a price, the cost is 0.
    cost = "unknown" if fleet.machines and not fleet.spent_per_hour else f"{fleet.spent_per_hour:.2f}"
    notes = [] if fleet.decision is None else [f"{fleet.decision.created_at:%H:%M:%S}: {fleet.decision.reason}"]
    if fleet.launch_pause_seconds is not None:
        notes.append(
            f"Launches fail: the last {fleet.failed_boots} rounds produced no worker. Fix the cause, then run "
            f"`comfyrelay fleet reset {fleet.slug} --stage {fleet.stage}`."
        )
    name = f"{fleet.stage}/{fleet.slug}"
    return TableRow((name, str(fleet.provider), f"{fleet.policy}{mode}", states, queued, cost), notes)


def _machine_row(slug: str, machine: MachineInHistory) -> TableRow:
    ready = "never" if machine.registered_at is None else _seconds(machine.registered_at - machine.ordered_at)
    lasted = machine.ended_at - machine.ordered_at
    cost = "unknown" if machine.cost is None else money(machine.cost)
    kind = machine.instance_type or "-"
    cells = (f"{machine.ordered_at:%Y-%m-%d %H:%M:%S}", slug, kind, ready, _seconds(lasted), str(machine.jobs), cost)
    return TableRow(cells, [f"{machine.id}: {machine.reason or 'ended'}"])


def _seconds(time: timedelta) -> str:
    return f"{time.total_seconds():.0f} s"


def _done(decision: Decision) -> str:
    outcome = decision.outcome
    counts = [f"{outcome[name]} {name}" for name in ("ordered", "launched", "refused", "ended") if outcome.get(name)]
    # KEDA creates and deletes the pods itself.
    requested = [f"requested {outcome['requested']}"] if "requested" in outcome else []
    failed = ["failed"] if {"launch_failed", "end_failed"} & outcome.keys() else []
    return ", ".join([*requested, *counts, *failed]) or "nothing"


def _reasons(decision: Decision) -> Sequence[str]:
    outcome = decision.outcome
    failures = [str(outcome[name]) for name in ("launch_failed", "end_failed") if name in outcome]
    return [decision.reason, *map(str, outcome.get("refusals", ())), *failures]
