"""Accounts, and links that set a new password."""

from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import InvalidInput
from comfyrelay.protocol.admin import tenants as wire
from comfyrelay.protocol.base import Answer
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.auth import Admin
from comfyrelay.server.http.context import Context, ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import IdInPath
from comfyrelay.services.accounts.links import NewLink

router = admin_router("/users")
SEND_LINK = "Send the link to the user: it works once, for a day, and is not shown again."


@router.post("", status_code=201, responses=error_responses(409, 422))
async def create_user(body: wire.NewUser, context: ContextOf, admin: Admin) -> Answer[wire.ResetLink]:
    """Create an account, and a link to set its password."""
    user, link = await context.engine.accounts.links.invite(**body.model_dump(), by=admin)
    return Answer(data=_link(context, user, link), message=SEND_LINK)


@router.patch("/{user_id}", responses=error_responses(404, 409, 422))
async def change_user(
    user_id: IdInPath, body: wire.UserPatch, context: ContextOf, admin: Admin
) -> Answer[wire.TenantUser]:
    """Grant or remove administrator rights, and disable or enable an account. Sessions and tokens of a disabled account
    end at once on this server, and within 5 seconds on others. 409 for the only administrator."""
    changes = body.changes()
    if not changes:
        raise InvalidInput(errors={"is_disabled": "Send at least one field to change."})
    user = await context.engine.accounts.tenancy.change_user(user_id, **changes, by=admin)
    context.forget_user(user)
    tenant = await context.engine.operations.inspection.tenant(user.tenant_id)
    [changed] = [tenant_user for tenant_user in tenant.users if tenant_user.id == user_id]
    return Answer(data=wire.TenantUser.of(changed), message="Changed.")


@router.post("/{user_id}/reset-link", status_code=201, responses=error_responses(404, 422))
async def make_reset_link(user_id: IdInPath, context: ContextOf, admin: Admin) -> Answer[wire.ResetLink]:
    """Create a link to set a new password. Older links end."""
    user, link = await context.engine.accounts.links.create_reset_link(user_id, by=admin)
    return Answer(data=_link(context, user, link), message=SEND_LINK)


def _link(context: Context, user: User, link: NewLink) -> wire.ResetLink:
    # Browsers do not send the part after `#`, so no log contains the secret.
    url = f"{context.settings.base_url}/reset#{link.secret}"
    return wire.ResetLink.of(link, user_id=user.id, email=user.email, url=url)
