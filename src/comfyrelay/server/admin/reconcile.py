"""Start the reconciler, and read its findings."""

from fastapi import status

from comfyrelay.domain.records.operations import ReconcileRunRecord
from comfyrelay.protocol.admin import operations as wire
from comfyrelay.protocol.base import Answer
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import may_answer

router = admin_router("/reconcile")


@router.post("", status_code=status.HTTP_202_ACCEPTED, responses=may_answer(409))
async def start_reconcile(context: ContextOf) -> Answer[wire.ReconcileRun]:
    """Compare queue, jobs and ledger, without repairs. It runs in the background: read its findings later."""
    run = await context.engine.operations.reconcile_runs.start()
    return Answer(data=_run(run), message="The check has started.")


@router.get("/findings")
async def reconcile_findings(context: ContextOf) -> Answer[wire.Findings]:
    """The findings of the last run, and the run in progress, if any."""
    runs = await context.engine.operations.reconcile_runs.runs()
    last = next((run for run in runs if run.ended_at is not None), None)
    running = runs[0] if runs and runs[0].ended_at is None else None
    data = wire.Findings(last=_run(last) if last else None, running=_run(running) if running else None)
    return Answer(data=data)


def _run(run: ReconcileRunRecord) -> wire.ReconcileRun:
    return wire.ReconcileRun.of(run, findings=run.findings or [], shards_down=run.shards_down or [])
