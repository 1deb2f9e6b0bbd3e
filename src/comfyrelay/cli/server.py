"""`comfyrelay server` and `comfyrelay reconcile`."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from comfyrelay import __version__
from comfyrelay.cli.running import run_loop, run_with_engine, without_garbage_collection
from comfyrelay.cli.unknown_settings import warn_of_unknown
from comfyrelay.extras import require

if TYPE_CHECKING:
    from comfyrelay.services.engine import Engine
    from comfyrelay.services.operations.reconcile import ReconcileReport

out = Console()
err = Console(stderr=True)

FOUND = 1


def server(
    log_level: Annotated[str, typer.Option(help="The minimum level: debug, info, warning or error.")] = "info",
) -> None:
    """Serve a queue for many users and workers over HTTP, until Ctrl-C.

    Settings such as COMFYRELAY_HOST, COMFYRELAY_PORT and
    COMFYRELAY_DATABASE_URL name its address, databases and secrets.

    Several servers can share one PostgreSQL. For a single user, `up` is enough.
    """
    require("server")
    with without_garbage_collection():
        from comfyrelay.server.http.secrets import load_secrets
        from comfyrelay.server.main import serve
        from comfyrelay.settings import load_settings
        from comfyrelay.system.permissions import restrict_to_user

    warn_of_unknown(err)
    settings = load_settings()
    restrict_to_user(settings.data_dir)
    secrets = load_secrets(settings)
    err.print(f"ComfyRelay {__version__} serves at {settings.base_url}", highlight=False)
    if secrets.new_file is not None:
        registration = "" if settings.fleet_secrets else "; workers register with those"
        err.print(f"  made new secrets in {secrets.new_file}{registration}", highlight=False)
    on_setup_code = partial(_print_setup_code, settings.base_url)
    run_loop(serve(settings, secrets, log_level=log_level, on_setup_code=on_setup_code))


def _print_setup_code(base_url: str, code: str) -> None:
    err.print(f"  there is no administrator yet: open {base_url}/setup#{code}", highlight=False, soft_wrap=True)
    err.print(f"  or enter the code {code} there; it works once, for a day", highlight=False)


def reconcile(
    repair: Annotated[bool, typer.Option("--repair", help="Repair inconsistencies.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compare queue, jobs and ledger; exit code 1 if they are inconsistent."""

    async def work(engine: Engine) -> ReconcileReport:
        await engine.databases.require_current()
        return await engine.operations.reconciler.run(repair=repair)

    report = run_with_engine(work)
    if as_json:
        out.print_json(json.dumps(_as_json(report)))
    else:
        _print_report(report, repaired=repair)
    if not report.is_clean:
        raise typer.Exit(FOUND)


def _as_json(report: ReconcileReport) -> dict[str, object]:
    return {
        "clean": report.is_clean,
        "jobs": report.jobs,
        "findings": [asdict(finding) for finding in report.findings],
        "repaired": len(report.repaired),
        "shards_down": report.shards_down,
    }


def _print_report(report: ReconcileReport, *, repaired: bool) -> None:
    for shard in report.shards_down:
        err.print(f"The shard {shard!r} cannot be reached; its jobs were not checked.", highlight=False)
    if report.findings:
        table = Table("kind", "shard", "tenant", "job", "what")
        for finding in report.findings:
            table.add_row(finding.kind, finding.shard, finding.tenant_id or "", finding.job_id or "", finding.text)
        out.print(table)
        count = len(report.repaired)
        advice = f"{count} repaired." if repaired else "Repair them with: comfyrelay reconcile --repair"
        out.print(f"{len(report.findings)} inconsistencies. {advice}", highlight=False)
    elif not report.shards_down:
        out.print(f"Queue, jobs and ledger agree ({report.jobs} jobs).", highlight=False)
