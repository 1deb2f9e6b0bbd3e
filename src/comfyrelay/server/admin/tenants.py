"""Tenants and their credits, and the audit log of all workers."""

import structlog

from comfyrelay.errors import InvalidInput
from comfyrelay.protocol.admin import tenants as wire
from comfyrelay.protocol.admin.workers import AuditEntry
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.auth import Admin
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import (
    FirstDay,
    LastDay,
    Limit,
    NumberCursor,
    TenantId,
    TextCursor,
    TextFilter,
    page_of,
    period_of,
)
from comfyrelay.services.operations.inspection import TenantView
from comfyrelay.services.paging import make_page

log = structlog.get_logger(__name__)
router = admin_router()


@router.get("/tenants", responses=error_responses(422))
async def list_tenants(
    context: ContextOf, search: TextFilter = None, limit: Limit = 50, cursor: TextCursor = None
) -> Answer[Page[wire.Tenant]]:
    """List tenants with their users and balances, newest first. `search` is part of an email address."""
    page = await context.engine.operations.inspection.tenants(email=search, cursor=cursor, limit=limit)
    return page_of(page, _body)


@router.get("/tenants/{tenant_id}", responses=error_responses(404, 422))
async def get_tenant(tenant_id: TenantId, context: ContextOf) -> Answer[wire.TenantDetails]:
    """Get a tenant with its users, balance and limits."""
    details = await context.engine.operations.inspection.tenant(tenant_id)
    limits = wire.TenantLimits.of(
        details.tenant,
        usual_active_jobs=context.settings.max_active_jobs_per_user,
        usual_stored_bytes=context.settings.max_stored_bytes,
        usual_stored_files=context.settings.max_stored_files,
        everyone_may_add_workflows=context.settings.own_workflows == "everyone",
    )
    users = [wire.TenantUser.of(user) for user in details.users]
    return Answer(data=wire.TenantDetails.of(details, details.tenant, users=users, limits=limits))


@router.get("/tenants/{tenant_id}/transactions", responses=error_responses(404, 422))
async def list_transactions(
    tenant_id: TenantId, context: ContextOf, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[Page[wire.TenantTransaction]]:
    """List the transactions of a tenant's wallet, newest first."""
    _balance, transactions = await context.engine.accounts.ledger.statement(
        tenant_id, limit=limit + 1, before_id=cursor
    )
    return page_of(make_page(transactions, limit=limit), wire.TenantTransaction.of)


@router.patch("/tenants/{tenant_id}", responses=error_responses(404, 422))
async def change_tenant(tenant_id: TenantId, body: wire.TenantPatch, context: ContextOf) -> Answer[wire.ChangedTenant]:
    """Set how long a tenant's jobs may wait before they may run on Comfy Cloud, how many may be active, how much it may
    upload, and whether it may add workflows of its own."""
    changes = body.changes()
    if not changes:
        raise InvalidInput(errors={"max_wait_seconds": "Send at least one field to change. Null removes a limit."})
    await context.engine.accounts.tenancy.set_limits(tenant_id, changes)
    details = await context.engine.operations.inspection.tenant(tenant_id)
    return Answer(data=wire.ChangedTenant.of(details.tenant), message="Changed.")


@router.post("/tenants/{tenant_id}/credits", responses=error_responses(404, 409, 422))
async def credit_tenant(
    tenant_id: TenantId, body: wire.NewCredits, context: ContextOf, admin: Admin
) -> Answer[wire.Credited]:
    """Add tokens to a wallet, once per reference."""
    balance = await context.engine.accounts.ledger.credit(
        tenant_id,
        body.amount,
        reference=body.reference,
        description=body.description or "Credited by an administrator.",
    )
    log.info("tenant.credited", tenant_id=tenant_id, amount=body.amount, reference=body.reference, by=admin.email)
    data = wire.Credited(tenant_id=tenant_id, reference=body.reference, amount=body.amount, balance=balance)
    return Answer(data=data, message="Credited.")


@router.post("/tenants/{tenant_id}/debits", responses=error_responses(404, 409, 422))
async def debit_tenant(
    tenant_id: TenantId, body: wire.NewDebit, context: ContextOf, admin: Admin
) -> Answer[wire.Credited]:
    """Take tokens back from a wallet, once per reference. The balance cannot become negative."""
    balance = await context.engine.accounts.ledger.take_back(
        tenant_id,
        body.amount,
        reference=body.reference,
        description=body.description or "Taken back by an administrator.",
    )
    log.info("tenant.debited", tenant_id=tenant_id, amount=body.amount, reference=body.reference, by=admin.email)
    data = wire.Credited(tenant_id=tenant_id, reference=body.reference, amount=-body.amount, balance=balance)
    return Answer(data=data, message="Taken back.")


@router.get("/payments", responses=error_responses(422))
async def list_payments(
    context: ContextOf, first: FirstDay = None, last: LastDay = None, limit: Limit = 50, cursor: TextCursor = None
) -> Answer[Page[wire.ReceivedPayment]]:
    """List the payments that the payment provider has reported, newest first, with the tokens that were refunded."""
    begins, ends = period_of(first, last)
    page = await context.engine.accounts.payments.page(begins=begins, ends=ends, cursor=cursor, limit=limit)
    return page_of(page, lambda payment: wire.ReceivedPayment.of(payment, event_id=payment.provider_event_id))


@router.get("/audit-logs", responses=error_responses(422))
async def list_audit_logs(
    context: ContextOf,
    worker: TextFilter = None,
    event: TextFilter = None,
    limit: Limit = 50,
    cursor: NumberCursor = None,
) -> Answer[Page[AuditEntry]]:
    """List the audit log of all workers, newest first."""
    page = await context.engine.operations.inspection.audit_logs(
        worker_id=worker, event=event, cursor=cursor, limit=limit
    )
    return page_of(page, AuditEntry.of)


def _body(view: TenantView) -> wire.Tenant:
    return wire.Tenant.of(view, view.tenant)
