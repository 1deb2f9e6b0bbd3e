"""Tenants and their credits, and the audit of all workers."""

from comfyrelay.server.admin.models import AuditBody, Credited, NewCredits, TenantBody
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.admin.types import AnyId, TenantId, TextCursor
from comfyrelay.server.admin.workers import audit_body
from comfyrelay.server.base.answers import Answer, Page
from comfyrelay.server.base.context import ContextOf
from comfyrelay.server.base.fields import Limit, NumberCursor
from comfyrelay.server.base.problems import may_answer
from comfyrelay.services.operations.inspection import TenantView

__all__ = ["router"]

router = admin_router()


@router.get("/tenants", responses=may_answer(422))
async def list_tenants(
    context: ContextOf, search: AnyId = None, limit: Limit = 50, cursor: TextCursor = None
) -> Answer[Page[TenantBody]]:
    """Tenants with their users and balances, newest first; `search` is a part of an email address."""
    page = await context.engine.operations.inspection.tenants(email=search, cursor=cursor, limit=limit)
    return Answer(data=Page(items=[_body(each) for each in page.items], next_cursor=page.next_cursor))


@router.post("/tenants/{tenant_id}/credits", responses=may_answer(404, 409, 422))
async def credit_tenant(tenant_id: TenantId, body: NewCredits, context: ContextOf) -> Answer[Credited]:
    """Add tokens to a wallet, once for each reference."""
    balance = await context.engine.accounts.ledger.credit(
        tenant_id,
        body.amount,
        reference=body.reference,
        description=body.description or "Credited by an administrator.",
    )
    data = Credited(tenant_id=tenant_id, reference=body.reference, amount=body.amount, balance=balance)
    return Answer(data=data, message="Credited.")


@router.get("/audit-logs", responses=may_answer(422))
async def list_audit_logs(
    context: ContextOf, worker: AnyId = None, event: AnyId = None, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[Page[AuditBody]]:
    """What workers did and what was done to them, newest first."""
    page = await context.engine.operations.inspection.audit_logs(
        worker_id=worker, event=event, cursor=cursor, limit=limit
    )
    return Answer(data=Page(items=[audit_body(each) for each in page.items], next_cursor=page.next_cursor))


def _body(view: TenantView) -> TenantBody:
    tenant = view.tenant
    return TenantBody(
        id=tenant.id,
        db_pool=tenant.db_pool,
        user_id=tenant.user_id,
        email=tenant.email,
        name=tenant.name,
        is_admin=tenant.is_admin,
        balance=view.balance,
        created_at=tenant.created_at,
    )
