"""`comfyrelay server` and `comfyrelay reconcile`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from comfyrelay import __version__
from comfyrelay.cli.options import Json, LogLevel
from comfyrelay.cli.output import out, print_json, print_line, print_note
from comfyrelay.cli.recorded import recorded
from comfyrelay.cli.running import run_event_loop, run_with_engine, without_garbage_collection
from comfyrelay.cli.unknown_settings import warn_of_unknown
from comfyrelay.extras import require
from comfyrelay.text import counted

if TYPE_CHECKING:
    from comfyrelay.server.http.secrets import Secrets
    from comfyrelay.services.engine import Engine
    from comfyrelay.services.operations.reconcile import ReconcileReport

INCONSISTENT = 1


def server(log_level: LogLevel = "info") -> None:
    """Serve a queue for many users and workers over HTTP, until Ctrl-C.

    Settings such as COMFYRELAY_HOST, COMFYRELAY_PORT and COMFYRELAY_DATABASE_URL configure its address, databases and
    secrets. Several servers can share one PostgreSQL.

    For a single user, `comfyrelay up` is enough.
    """
    require("server")
    with without_garbage_collection():
        from comfyrelay.server.main import serve
        from comfyrelay.services.backup.restore import recover_data_folder
        from comfyrelay.settings import load_settings
        from comfyrelay.system.permissions import restrict_to_user
        from comfyrelay.traces import exporting

    warn_of_unknown()
    settings = load_settings()
    restrict_to_user(settings.data_dir)
    recover_data_folder(settings.data_dir)

    def print_start(secrets: Secrets) -> None:
        print_note(f"ComfyRelay {__version__} serves at {settings.base_url}")
        if secrets.new_file is not None:
            registration = "" if settings.fleet_secrets else "; workers register with them"
            print_note(f"  generated new secrets in {secrets.new_file}{registration}")

    on_setup_code = partial(_print_setup_code, settings.base_url)
    with exporting(settings.traces_url, service="comfyrelay-server"):
        run_event_loop(serve(settings, log_level=log_level, on_ready=print_start, on_setup_code=on_setup_code))


def _print_setup_code(base_url: str, code: str) -> None:
    print_note(f"  there is no administrator yet: open {base_url}/setup#{code}")
    print_note(f"  or enter the code {code} there; it works once, for a day")


def reconcile(
    repair: Annotated[bool, typer.Option("--repair", help="Repair inconsistencies.")] = False, as_json: Json = False
) -> None:
    """Check that queue, jobs and ledger are consistent.

    The exit code is 1 if they are not.
    """

    async def work(engine: Engine) -> ReconcileReport:
        await engine.databases.require_current()
        if not repair:
            return await engine.operations.reconciler.run()
        async with recorded(engine, "reconcile --repair", "reconcile"):
            return await engine.operations.reconciler.run(repair=True)

    report = run_with_engine(work)
    if as_json:
        data = {
            "clean": report.is_clean,
            "jobs": report.jobs,
            "findings": report.findings,
            "repaired": len(report.repaired),
            "shards_down": report.shards_down,
        }
        print_json(data)
    else:
        _print_report(report, repaired=repair)
    if not report.is_clean:
        raise typer.Exit(INCONSISTENT)


def _print_report(report: ReconcileReport, *, repaired: bool) -> None:
    for shard in report.shards_down:
        print_note(f"The shard {shard!r} cannot be reached. Its jobs were not checked.")
    if report.findings:
        table = Table("kind", "shard", "tenant", "job", "what")
        for finding in report.findings:
            table.add_row(finding.kind, finding.shard, finding.tenant_id or "", finding.job_id or "", finding.text)
        out.print(table)
        count = len(report.repaired)
        advice = f"{count} repaired." if repaired else "Repair them with: comfyrelay reconcile --repair"
        print_line(f"{len(report.findings)} inconsistencies. {advice}")
    elif not report.shards_down:
        print_line(f"Queue, jobs and ledger agree ({counted(report.jobs, 'job')}).")
