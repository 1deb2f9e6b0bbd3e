"""Letting the reconciler look, without repairing anything, while an administrator goes on; what it found is kept."""

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

KEPT_RUNS = 20
MOST_FINDINGS = 1000
MOST_STUCK = 200
# One that has not ended after so long never will: its process is gone.
LONGEST_SECONDS = 3600.0
STOPPED = "The server was stopped meanwhile."


class Reconciling:
    def __init__(self, databases: Databases, reconciler: Reconciler) -> None:
        self._databases = databases
        self._reconciler = reconciler
        self._task: asyncio.Task[None] | None = None
        self._run_id = 0

    async def start(self) -> ReconcileRunRecord:
        """Begin to look; `Conflict` while somebody does."""

        async def work(tx: Tx) -> ReconcileRunRecord:
            if await reconcile_runs.goes_on(tx, for_seconds=LONGEST_SECONDS):
                raise Conflict("A run goes on already. Wait until it has ended.")
            run = await reconcile_runs.begin(tx)
            await reconcile_runs.forget(tx, keep=KEPT_RUNS)
            return run

        run = await self._databases.central.run(TransactionStep.REPAIR, work)
        self._run_id = run.id
        self._task = asyncio.create_task(self._run(run.id))
        return run

    async def runs(self) -> Sequence[ReconcileRunRecord]:
        """The newest first."""
        async with self._databases.central.read() as tx:
            return await reconcile_runs.last(tx, limit=KEPT_RUNS)

    async def stuck(self) -> list[StuckStep]:
        """Steps that should have crossed between the databases long ago: to the shards, and to the queue."""
        async with self._databases.central.read() as tx:
            found = await outbox.stuck_entries(tx, older_than_seconds=STUCK_SECONDS, limit=MOST_STUCK)
        for shard in self._databases.shards:
            try:
                with self._databases.watched(shard):
                    async with self._databases.shard(shard).read() as tx:
                        found += await outbox.stuck_submissions(
                            tx, shard, older_than_seconds=STUCK_SECONDS, limit=MOST_STUCK
                        )
            except DatabaseUnavailable:
                continue
        return sorted(found, key=lambda each: each.created_at)[:MOST_STUCK]

    async def idle(self) -> None:
        """Wait until nothing is looked at."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def close(self) -> None:
        """One that goes on ends, and says why."""
        if self._task is None or self._task.done():
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        if self._task.cancelled():
            # it had not even begun
            await self._end(self._run_id, problem=STOPPED)

    async def _run(self, run_id: int) -> None:
        values: dict[str, object]
        try:
            report = await self._reconciler.run()
            values = {
                "jobs": report.jobs,
                "findings": [asdict(each) for each in report.findings[:MOST_FINDINGS]],
                "count": len(report.findings),
                "shards_down": report.shards_down,
            }
        except asyncio.CancelledError:
            values = {"problem": STOPPED}
        except ComfyRelayError as error:
            values = {"problem": error.detail}
        except Exception:
            log.exception("reconcile.failed", run=run_id)
            values = {"problem": "It failed; the log of the server says why."}
        await self._end(run_id, **values)

    async def _end(self, run_id: int, **values: object) -> None:
        await self._databases.central.run(TransactionStep.REPAIR, lambda tx: reconcile_runs.end(tx, run_id, **values))
