"""Tenants and their credits, and the audit of all workers."""

from comfyrelay.errors import InvalidInput
from comfyrelay.protocol import admin as wire
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.base.context import ContextOf
from comfyrelay.server.base.pages import page_of
from comfyrelay.server.base.parameters import AnyId, Limit, NumberCursor, TenantId, TextCursor
from comfyrelay.server.base.problems import may_answer
from comfyrelay.services.operations.inspection import TenantView

router = admin_router()


@router.get("/tenants", responses=may_answer(422))
async def list_tenants(
    context: ContextOf, search: AnyId = None, limit: Limit = 50, cursor: TextCursor = None
) -> Answer[Page[wire.Tenant]]:
    """Tenants with their users and balances, newest first; `search` is a part of an email address."""
    page = await context.engine.operations.inspection.tenants(email=search, cursor=cursor, limit=limit)
    return page_of(page, _body)


@router.patch("/tenants/{tenant_id}", responses=may_answer(404, 422))
async def change_tenant(tenant_id: TenantId, body: wire.TenantPatch, context: ContextOf) -> Answer[wire.ChangedTenant]:
    """Say how long a tenant's jobs may wait before they may go to Comfy Cloud."""
    changes = body.changes()
    if "max_wait_seconds" not in changes:
        raise InvalidInput(errors={"max_wait_seconds": "Say what is to be changed; null takes it away."})
    await context.engine.accounts.tenancy.set_max_wait(tenant_id, body.max_wait_seconds)
    data = wire.ChangedTenant(id=tenant_id, max_wait_seconds=body.max_wait_seconds)
    return Answer(data=data, message="Changed.")


@router.post("/tenants/{tenant_id}/credits", responses=may_answer(404, 409, 422))
async def credit_tenant(tenant_id: TenantId, body: wire.NewCredits, context: ContextOf) -> Answer[wire.Credited]:
    """Add tokens to a wallet, once for each reference."""
    balance = await context.engine.accounts.ledger.credit(
        tenant_id,
        body.amount,
        reference=body.reference,
        description=body.description or "Credited by an administrator.",
    )
    data = wire.Credited(tenant_id=tenant_id, reference=body.reference, amount=body.amount, balance=balance)
    return Answer(data=data, message="Credited.")


@router.get("/audit-logs", responses=may_answer(422))
async def list_audit_logs(
    context: ContextOf, worker: AnyId = None, event: AnyId = None, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[Page[wire.AuditEntry]]:
    """What workers did and what was done to them, newest first."""
    page = await context.engine.operations.inspection.audit_logs(
        worker_id=worker, event=event, cursor=cursor, limit=limit
    )
    return page_of(page, wire.AuditEntry.of)


def _body(view: TenantView) -> wire.Tenant:
    return wire.Tenant.of(view, view.tenant)
