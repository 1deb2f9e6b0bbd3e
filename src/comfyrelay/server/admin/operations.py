"""Operations of a server: its settings, a check of object storage, and the reconciler."""

from comfyrelay import __version__
from comfyrelay.configuration import effective_settings
from comfyrelay.domain.records.operations import ReconcileRunRecord
from comfyrelay.protocol.admin import operations as wire
from comfyrelay.protocol.base import Answer
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.services.operations.storage_check import CONTENT

router = admin_router()


@router.get("/settings")
async def list_settings(context: ContextOf) -> Answer[wire.EffectiveSettings]:
    """List all settings of this server process with their sources. Secrets are not shown."""
    return Answer(data=wire.EffectiveSettings(version=__version__, items=effective_settings(context.settings)))


@router.post("/storage/check")
async def check_storage(context: ContextOf) -> Answer[wire.StorageCheck]:
    """Write, read and remove a small file, and allow uploads from pages of this server, if the storage supports such a
    rule. A browser can then check its own access: PUT `upload_text` to `upload_url`, and GET it from `download_url`."""
    check = await context.engine.operations.storage_checks.run()
    data = wire.StorageCheck(
        url=context.settings.objects_url,
        checks=list(check.checks),
        upload_url=check.upload.url if check.upload else None,
        upload_headers=dict(check.upload.headers) if check.upload else None,
        upload_text=CONTENT.decode(),
        download_url=check.download_url,
    )
    return Answer(data=data)


@router.post("/reconcile", status_code=202, responses=error_responses(409))
async def start_reconcile(context: ContextOf) -> Answer[wire.ReconcileRun]:
    """Compare queue, jobs and ledger in the background, without repairs. Read the findings later."""
    run = await context.engine.operations.reconcile_runs.start()
    return Answer(data=_run(run), message="The check has started.")


@router.get("/reconcile/findings")
async def reconcile_findings(context: ContextOf) -> Answer[wire.LatestReconcileRuns]:
    """Get the findings of the last run, and the run in progress, if any."""
    runs = await context.engine.operations.reconcile_runs.runs()
    last = next((run for run in runs if run.ended_at is not None), None)
    running = runs[0] if runs and runs[0].ended_at is None else None
    data = wire.LatestReconcileRuns(last=_run(last) if last else None, running=_run(running) if running else None)
    return Answer(data=data)


def _run(run: ReconcileRunRecord) -> wire.ReconcileRun:
    return wire.ReconcileRun.of(run, findings=run.findings or [], shards_down=run.shards_down or [])
