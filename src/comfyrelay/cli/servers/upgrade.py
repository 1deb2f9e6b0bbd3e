"""`comfyrelay upgrade`, which is also `comfyrelay db upgrade`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from comfyrelay import __version__
from comfyrelay.cli.output import out, print_json, print_line, print_note
from comfyrelay.cli.running import run_with_engine

if TYPE_CHECKING:
    from comfyrelay.domain.records.operations import WorkerVersion
    from comfyrelay.services.engine import Engine
    from comfyrelay.services.upgrade_plan import DatabasePlan, UpgradePlan

IMPOSSIBLE = 1


def upgrade(
    check: Annotated[
        bool,
        typer.Option("--check", help="Only print what the upgrade would do. Exit code 1: not possible."),
    ] = False,
    no_backup: Annotated[
        bool,
        typer.Option(
            "--no-backup",
            help="Do not copy SQLite databases first, and also upgrade PostgreSQL databases, which you have backed up.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --check: print JSON.")] = False,
) -> None:
    """Upgrade the central database and all shards to the newest schema.

    SQLite databases with an older schema are first copied into the data folder. PostgreSQL databases with data are
    upgraded only with `--no-backup`: back them up first.
    """
    if check:
        _check(no_backup=no_backup, as_json=as_json)
        return

    async def work(engine: Engine) -> dict[str, tuple[str | None, str]]:
        if no_backup:
            engine.databases.copies = None
        changed = await engine.databases.upgrade()
        if engine.databases.copied_to is not None:
            print_line(f"The databases before the upgrade are in {engine.databases.copied_to}")
        return changed

    for name, (before, after) in run_with_engine(work).items():
        change = "up to date" if before == after else f"{before or 'empty'} → {after}"
        print_line(f"{name}: {change}")


def _check(*, no_backup: bool, as_json: bool) -> None:
    from comfyrelay.services.upgrade_plan import plan_upgrade

    async def work(engine: Engine) -> UpgradePlan:
        if no_backup:
            engine.databases.copies = None
        return await plan_upgrade(engine.settings.data_dir, engine.databases)

    plan = run_with_engine(work)
    if as_json:
        print_json({"version": __version__, "possible": plan.is_possible, **_as_json(plan)})
    else:
        _print_plan(plan)
    if not plan.is_possible:
        raise typer.Exit(IMPOSSIBLE)


def _as_json(plan: UpgradePlan) -> dict[str, object]:
    return {
        "databases": {name: asdict(found) for name, found in plan.databases.items()},
        "backup": plan.backup,
        "processes": [found._asdict() for found in plan.processes],
        "workers": [found._asdict() for found in plan.workers],
        "refused_workers": [found._asdict() for found in plan.refused_workers],
    }


def _print_plan(plan: UpgradePlan) -> None:
    table = Table("database", "revision", "migrations to run")
    for name, found in plan.databases.items():
        table.add_row(name, found.revision or "empty", _migrations_text(found))
    out.print(table)
    print_line(f"Backup: {plan.backup or 'none, because no data is changed.'}")
    for process in plan.processes:
        print_line(f"In use by process {process.name}, version {process.version}.")
    for worker in plan.workers:
        print_line(_worker_text(worker))
    for found in plan.databases.values():
        if found.problem is not None:
            print_note(found.problem)
    for worker in plan.refused_workers:
        print_note(f"{_worker_text(worker)} This version gives them no jobs: update them first.")
    if plan.is_possible:
        is_needed = any(found.migrations for found in plan.databases.values())
        print_line("The upgrade is possible." if is_needed else "There is nothing to upgrade.")


def _migrations_text(found: DatabasePlan) -> str:
    if found.problem is not None:
        return "not possible"
    return ", ".join(found.migrations) or "none"


def _worker_text(found: WorkerVersion) -> str:
    count = "1 worker" if found.workers == 1 else f"{found.workers} workers"
    return f"{count} of version {found.version or 'unknown'}, protocol {found.protocol}."
