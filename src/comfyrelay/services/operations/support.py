"""Let operators answer a customer's questions about a job: its inputs, its result and its cost."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comfyrelay.domain.bulk import BulkResult, DispatchAction
from comfyrelay.domain.queue.dispatch import Dispatch
from comfyrelay.domain.queue.settlement import Event
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import ComfyRelayError, DatabaseUnavailable, NotFound
from comfyrelay.services import auditing
from comfyrelay.services.accounts.ledger import Ledger
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.submission.submit import JobSubmission
from comfyrelay.services.jobs.views.jobs import JobView, JobViews
from comfyrelay.services.operations.inspection import Inspection
from comfyrelay.store.central import catalogue, tenants
from comfyrelay.store.central.queue import dispatch_list

MAX_EVENTS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class SupportView:
    """A job as its customer sees it, with details that only operators see."""

    view: JobView
    # `None` after the account was deleted.
    email: str | None
    # `None` without an effect, or after the effect was deleted.
    effect_slug: str | None
    effect_name: str | None
    values: Mapping[str, Any]
    events: Sequence[Event]


class Support:
    def __init__(
        self, databases: Databases, inspection: Inspection, views: JobViews, submit: JobSubmission, ledger: Ledger
    ) -> None:
        self._databases = databases
        self._inspection = inspection
        self._views = views
        self._submit = submit
        self._ledger = ledger

    async def job(self, dispatch_id: int) -> SupportView:
        found = await self._dispatch(dispatch_id)
        tenant_id, job_id = found.tenant_id, found.tenant_job_id
        job, payload = await self._views.job_with_payload(tenant_id, job_id)
        view = await self._views.view_job(job)
        events = await self._views.history(tenant_id, job_id, after_seq=0, limit=MAX_EVENTS)
        async with self._databases.central.read() as tx:
            user = await tenants.user(tx, job.user_id)
            effect = await catalogue.effect(tx, id_=job.effect_id) if job.effect_id is not None else None
        return SupportView(
            view=view,
            email=user.email if user else None,
            effect_slug=effect.slug if effect else None,
            effect_name=effect.name if effect else None,
            values={key.strip("{}").lower(): value for key, value in payload.values.items()},
            events=events.items,
        )

    async def refund(self, dispatch_id: int) -> int:
        """Refund the cost of an ended job, once, and return the refunded tokens."""
        found = await self._dispatch(dispatch_id)
        refund = await self._ledger.refund_job(found.tenant_id, found.tenant_job_id)
        if refund.is_new:
            entry = {"dispatch_id": dispatch_id, "tenant_id": found.tenant_id, "amount": refund.amount}
            auditing.add_result("refunds", entry)
        return refund.amount

    async def run_free(self, dispatch_id: int) -> JobRecord:
        """Run an ended job again for its customer, without a price."""
        found = await self._dispatch(dispatch_id)
        job = await self._submit.run_free(found.tenant_id, found.tenant_job_id)
        entry = {"dispatch_id": dispatch_id, "tenant_id": found.tenant_id, "job_id": job.id}
        auditing.add_result("free_runs", entry)
        return job

    async def change(self, action: DispatchAction, dispatch_ids: Sequence[int]) -> BulkResult:
        """Apply an action to each job. The result names the jobs for which it is not possible."""
        actions: Mapping[DispatchAction, Callable[[int], Awaitable[object]]] = {
            DispatchAction.CANCEL: self._inspection.cancel,
            DispatchAction.RETRY: self._inspection.retry,
            DispatchAction.RUN_FREE: self.run_free,
            DispatchAction.REFUND: self.refund,
        }
        result = BulkResult(matched=len(dispatch_ids))
        for dispatch_id in dispatch_ids:
            try:
                await actions[action](dispatch_id)
            except DatabaseUnavailable:
                raise
            except ComfyRelayError as error:
                result.refuse({str(dispatch_id): error})
            else:
                result.changed += 1
        return result

    async def _dispatch(self, dispatch_id: int) -> Dispatch:
        async with self._databases.central.read() as tx:
            found = await dispatch_list.get(tx, dispatch_id)
        if found is None:
            raise NotFound(f"There is no dispatch {dispatch_id}.")
        return found.dispatch
