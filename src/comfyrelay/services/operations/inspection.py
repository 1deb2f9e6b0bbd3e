"""For operators: inspect dispatches, tenants and the audit log, and cancel, retry or prioritise a dispatch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from comfyrelay.domain.queue.dispatch import Dispatch
from comfyrelay.domain.queue.lifecycle import CANCELED_BY_ADMINISTRATOR
from comfyrelay.domain.queue.wait_reasons import Waiting
from comfyrelay.domain.records.accounts import SESSION, ListedTenant, ListedUser
from comfyrelay.domain.records.jobs import DispatchFilter, JobRecord, ListedDispatch
from comfyrelay.domain.records.workers import AuditRecord, LeaseAttempt
from comfyrelay.domain.uploads import UploadUsage
from comfyrelay.errors import DatabaseUnavailable, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.submission.submit import JobSubmission
from comfyrelay.services.paging import ResultPage
from comfyrelay.services.queue.control import JobControl
from comfyrelay.services.queue.wait_reasons import WaitReasons
from comfyrelay.store.central import audit, catalogue, tenants
from comfyrelay.store.central.autoscaling import usage
from comfyrelay.store.central.queue import dispatch_list, dispatches, leases
from comfyrelay.store.central.workers import workers
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import jobs, ledger
from comfyrelay.store.tenant.library import media

MAX_ATTEMPTS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchView:
    """A dispatch with its workflow and last worker."""

    dispatch: Dispatch
    workflow_slug: str
    progress: Any
    last_worker_id: str | None
    # The machine cost of its leases that have been counted so far.
    machine_cost: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RetriedJob:
    """The new job, and its dispatch if it is already queued."""

    job: JobRecord
    dispatch: DispatchView | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantView:
    """A tenant and its balance, which is `None` while the shard is unreachable."""

    tenant: ListedTenant
    balance: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantWithUsers(TenantView):
    users: Sequence[ListedUser]
    active_jobs: int | None
    stored: UploadUsage | None

    @property
    def stored_bytes(self) -> int | None:
        return None if self.stored is None else self.stored.bytes

    @property
    def stored_files(self) -> int | None:
        return None if self.stored is None else self.stored.files


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchHistory:
    """The leases and audit entries of a dispatch, newest first."""

    attempts: Sequence[LeaseAttempt]
    entries: ResultPage[AuditRecord]


class Inspection:
    def __init__(self, databases: Databases, control: JobControl, submit: JobSubmission, waiting: WaitReasons) -> None:
        self._databases = databases
        self._control = control
        self._submit = submit
        self._waiting = waiting

    async def dispatches(
        self,
        wanted: DispatchFilter,
        *,
        workflow_slug: str | None = None,
        effect_slug: str | None = None,
        email: str | None = None,
        cursor: int | None = None,
        limit: int,
    ) -> ResultPage[DispatchView]:
        async with self._databases.central.read() as tx:
            if workflow_slug is not None:
                workflow = await catalogue.workflow(tx, slug=workflow_slug)
                if workflow is None:
                    return ResultPage(items=[])
                wanted = replace(wanted, workflow_id=workflow.id)
            if effect_slug is not None:
                effect = await catalogue.effect(tx, slug=effect_slug)
                if effect is None:
                    return ResultPage(items=[])
                wanted = replace(wanted, effect_id=effect.id)
            if email is not None:
                user = await tenants.by_email(tx, email)
                if user is None or wanted.tenant_id not in {None, user.tenant_id}:
                    return ResultPage(items=[])
                wanted = replace(wanted, tenant_id=user.tenant_id)
            found, before = await dispatch_list.page(tx, wanted, before_id=cursor, limit=limit)
            views = await _dispatch_views(tx, found)
        return ResultPage(items=views, next_cursor=None if before is None else str(before))

    async def dispatch(self, dispatch_id: int) -> DispatchView:
        async with self._databases.central.read() as tx:
            found = await dispatch_list.get(tx, dispatch_id)
            if found is None:
                raise NotFound(f"There is no dispatch {dispatch_id}.")
            return (await _dispatch_views(tx, [found]))[0]

    async def cancel(self, dispatch_id: int) -> DispatchView:
        found = (await self.dispatch(dispatch_id)).dispatch
        await self._control.cancel(found.tenant_id, found.tenant_job_id, reason=CANCELED_BY_ADMINISTRATOR)
        return await self.dispatch(dispatch_id)

    async def set_priority(self, dispatch_id: int, priority: int) -> DispatchView:
        """Set the priority. The range allowed for users does not apply."""
        found = (await self.dispatch(dispatch_id)).dispatch
        await self._control.set_priority(found.tenant_id, found.tenant_job_id, priority)
        return await self.dispatch(dispatch_id)

    async def retry(self, dispatch_id: int) -> RetriedJob:
        """Retry a job as if its user did: the new job costs tokens and counts towards the user's limit."""
        old = (await self.dispatch(dispatch_id)).dispatch
        job = await self._submit.retry(old.tenant_id, old.tenant_job_id)
        async with self._databases.central.read() as tx:
            dispatch = (await dispatches.by_job(tx, job.tenant_id, [job.id])).get(job.id)
            views = await _dispatch_views(tx, [ListedDispatch(dispatch=dispatch, progress=None)] if dispatch else [])
        return RetriedJob(job=job, dispatch=views[0] if views else None)

    async def waiting(self, dispatch_id: int) -> Waiting:
        found = (await self.dispatch(dispatch_id)).dispatch
        return await self._waiting.of_job(found.tenant_id, found.tenant_job_id)

    async def audit_of(self, dispatch_id: int, *, cursor: int | None = None, limit: int) -> DispatchHistory:
        async with self._databases.central.read() as tx:
            if await dispatch_list.get(tx, dispatch_id) is None:
                raise NotFound(f"There is no dispatch {dispatch_id}.")
            attempts = await leases.attempts_of(tx, dispatch_id, limit=MAX_ATTEMPTS)
            found, before = await audit.of_dispatch(tx, dispatch_id, before_id=cursor, limit=limit)
            found = await _insert_emails(tx, found)
        entries = ResultPage(items=found, next_cursor=None if before is None else str(before))
        return DispatchHistory(attempts=attempts, entries=entries)

    async def tenants(
        self, *, email: str | None = None, cursor: str | None = None, limit: int
    ) -> ResultPage[TenantView]:
        async with self._databases.central.read() as tx:
            found, before = await tenants.page(tx, email=email, before_id=cursor, limit=limit)
        balances = await self._balances(found)
        views = [TenantView(tenant=tenant, balance=balances.get(tenant.id)) for tenant in found]
        return ResultPage(items=views, next_cursor=before)

    async def tenant(self, tenant_id: str) -> TenantWithUsers:
        async with self._databases.central.read() as tx:
            found = await tenants.listed(tx, tenant_id)
            if found is None:
                raise NotFound(f"There is no tenant {tenant_id!r}.")
            users = await tenants.users_of(tx, tenant_id, session=SESSION)
        balance = active = stored = None
        try:
            with self._databases.watched(found.shard):
                async with self._databases.shard(found.shard).read() as tx:
                    balance = await ledger.balance(tx, tenant_id)
                    active = sum([await jobs.count_active(tx, tenant_id, user.id) for user in users])
                    stored = await media.upload_usage(tx, tenant_id)
        except DatabaseUnavailable:
            # Show the other details.
            pass
        return TenantWithUsers(tenant=found, balance=balance, users=users, active_jobs=active, stored=stored)

    async def audit_logs(
        self, *, worker_id: str | None = None, event: str | None = None, cursor: int | None = None, limit: int
    ) -> ResultPage[AuditRecord]:
        async with self._databases.central.read() as tx:
            found, before = await audit.page(tx, worker_id=worker_id, event=event, before_id=cursor, limit=limit)
            found = await _insert_emails(tx, found)
        return ResultPage(items=found, next_cursor=None if before is None else str(before))

    async def audit_logs_of(
        self, worker_id: str, *, event: str | None = None, cursor: int | None = None, limit: int
    ) -> ResultPage[AuditRecord]:
        """Return the audit entries of a worker, which may have been removed."""
        found = await self.audit_logs(worker_id=worker_id, event=event, cursor=cursor, limit=limit)
        if not found.items:
            async with self._databases.central.read() as tx:
                known = await workers.get(tx, worker_id) or (await audit.page(tx, worker_id=worker_id, limit=1))[0]
            if not known:
                raise NotFound(f"There is no worker {worker_id!r}.")
        return found

    async def _balances(self, found: Sequence[ListedTenant]) -> dict[str, int]:
        balances: dict[str, int] = {}
        for shard in sorted({tenant.shard for tenant in found}):
            ids = [tenant.id for tenant in found if tenant.shard == shard]
            try:
                with self._databases.watched(shard):
                    async with self._databases.shard(shard).read() as tx:
                        balances |= dict.fromkeys(ids, 0) | await ledger.balances(tx, ids)
            except DatabaseUnavailable:
                # Show the balances of the other shards.
                continue
        return balances


async def _insert_emails(tx: Tx, found: Sequence[AuditRecord]) -> list[AuditRecord]:
    """Replace the user ids of manual actions by email addresses."""
    ids = {by for entry in found if isinstance(by := (entry.data or {}).get("by"), str)}
    emails = await tenants.emails_by_user(tx, ids) if ids else {}
    return [
        replace(entry, data={**entry.data, "by": emails[entry.data["by"]]})
        if entry.data and entry.data.get("by") in emails
        else entry
        for entry in found
    ]


async def _dispatch_views(tx: Tx, found: Sequence[ListedDispatch]) -> list[DispatchView]:
    slugs = await catalogue.workflow_slugs(tx, {listed.dispatch.workflow_id for listed in found})
    ids = [listed.dispatch.id for listed in found]
    last_workers = await dispatch_list.last_workers(tx, ids)
    costs = await usage.cost_of(tx, ids)
    return [
        DispatchView(
            dispatch=listed.dispatch,
            workflow_slug=slugs[listed.dispatch.workflow_id],
            progress=listed.progress,
            last_worker_id=last_workers.get(listed.dispatch.id),
            machine_cost=costs.get(listed.dispatch.id),
        )
        for listed in found
    ]
