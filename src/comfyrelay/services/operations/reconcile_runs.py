"""Run the reconciler in the background without repairs, and store its findings."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

import structlog

from comfyrelay.domain.records.operations import ReconcileRunRecord, StuckStep
from comfyrelay.errors import ComfyRelayError, Conflict, DatabaseUnavailable
from comfyrelay.services.databases import Databases
from comfyrelay.services.operations.reconcile import STUCK_SECONDS, Reconciler
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store import outbox
from comfyrelay.store.central import reconcile_runs
from comfyrelay.store.database import Tx

log = structlog.get_logger(__name__)

MAX_RUNS = 20
MAX_FINDINGS = 1000
MAX_STUCK = 200
# A run that has not ended after this time counts as interrupted.
MAX_RUN_SECONDS = 3600.0
STOPPED = "The server was stopped during the run."


class ReconcileRuns:
    def __init__(self, databases: Databases, reconciler: Reconciler) -> None:
        self._databases = databases
        self._reconciler = reconciler
        self._task: asyncio.Task[None] | None = None
        self._run_id = 0

    async def start(self) -> ReconcileRunRecord:
        """Start a run. Raises `Conflict` if a run is in progress."""

        async def work(tx: Tx) -> ReconcileRunRecord:
            if await reconcile_runs.is_running(tx, for_seconds=MAX_RUN_SECONDS):
                raise Conflict("A run is already in progress. Wait until it has finished.")
            run = await reconcile_runs.begin(tx)
            await reconcile_runs.delete_old(tx, keep=MAX_RUNS)
            return run

        run = await self._databases.central.run(TransactionStep.REPAIR, work)
        self._run_id = run.id
        self._task = asyncio.create_task(self._run(run.id))
        return run

    async def runs(self) -> Sequence[ReconcileRunRecord]:
        """Return the stored runs, newest first."""
        async with self._databases.central.read() as tx:
            return await reconcile_runs.last(tx, limit=MAX_RUNS)

    async def stuck(self) -> list[StuckStep]:
        """Return the overdue outbox entries, oldest first."""
        async with self._databases.central.read() as tx:
            found = await outbox.stuck_entries(tx, older_than_seconds=STUCK_SECONDS, limit=MAX_STUCK)
        for shard in self._databases.shards:
            try:
                with self._databases.watched(shard):
                    async with self._databases.shard(shard).read() as tx:
                        found += await outbox.stuck_submissions(
                            tx, shard, older_than_seconds=STUCK_SECONDS, limit=MAX_STUCK
                        )
            except DatabaseUnavailable:
                continue
        return sorted(found, key=lambda step: step.created_at)[:MAX_STUCK]

    async def idle(self) -> None:
        """Wait until no run is in progress."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def close(self) -> None:
        """Stop a run in progress, and record the reason."""
        if self._task is None or self._task.done():
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        if self._task.cancelled():
            # The run was canceled before it started.
            await self._end(self._run_id, problem=STOPPED)

    async def _run(self, run_id: int) -> None:
        values: dict[str, object]
        try:
            report = await self._reconciler.run()
            values = {
                "jobs": report.jobs,
                "findings": [asdict(finding) for finding in report.findings[:MAX_FINDINGS]],
                "count": len(report.findings),
                "shards_down": report.shards_down,
            }
        except asyncio.CancelledError:
            values = {"problem": STOPPED}
        except ComfyRelayError as error:
            values = {"problem": error.detail}
        except Exception:
            log.exception("reconcile.failed", run=run_id)
            values = {"problem": "The run failed. See the server's log."}
        await self._end(run_id, **values)

    async def _end(self, run_id: int, **values: object) -> None:
        await self._databases.central.run(TransactionStep.REPAIR, lambda tx: reconcile_runs.end(tx, run_id, **values))
