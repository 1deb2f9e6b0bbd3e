"""Test runs: free jobs of an administrator that run a workflow of the catalogue."""

from collections.abc import Mapping
from typing import Any

from comfyrelay.domain.ids import new_id
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import Conflict, InvalidInput
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.submission.requests import ItemRequest, JobRequest
from comfyrelay.services.jobs.submission.submit import JobSubmission
from comfyrelay.store.central.workers import worker_list, workers


class TestRuns:
    def __init__(self, databases: Databases, submit: JobSubmission) -> None:
        self._databases = databases
        self._submit = submit

    async def run(
        self,
        admin: User,
        slug: str,
        *,
        worker_id: str | None = None,
        values: Mapping[str, Any] | None = None,
        input_file_id: str | None = None,
    ) -> JobRecord:
        """Submit a test run. With `worker_id`, it waits for that worker even if others are free."""
        stage = await self._require_stage(worker_id, slug) if worker_id is not None else None
        return await self._submit.submit(
            JobRequest(
                tenant_id=admin.tenant_id,
                user_id=admin.id,
                idempotency_key=f"test:{new_id()}",
                workflow_slug=slug,
                item=ItemRequest(input_payload=values or {}, input_file_id=input_file_id, label=f"Test of {slug}"),
                stage=stage,
                shows_workers=True,
                # The administrator chose the worker, so the job waits even if the worker does not meet the
                # requirements.
                wait_for_missing=worker_id is not None,
                is_test=True,
                only_worker=worker_id,
            )
        )

    async def _require_stage(self, worker_id: str, slug: str) -> Stage:
        async with self._databases.central.read() as tx:
            worker = await workers.get(tx, worker_id)
            if worker is None:
                raise InvalidInput(errors={"worker_id": "There is no such worker."})
            if slug not in await worker_list.assigned_workflows(tx, worker_id):
                raise Conflict(f"The worker {worker_id!r} does not have this workflow: map it to its fleet first.")
        if not worker.is_approved:
            raise Conflict(f"The worker {worker_id!r} is revoked and gets no jobs.")
        return Stage(worker.stage)
