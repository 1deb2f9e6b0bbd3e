"""Accounts, and links that set a new password."""

from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import Forbidden, InvalidInput
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
MAILED = "The user receives another link by mail. This one works, too: once, for a day."


@router.post("", status_code=201, responses=error_responses(409, 422))
async def create_user(body: wire.NewUser, context: ContextOf, admin: Admin) -> Answer[wire.ResetLink]:
    """Create an account and a link to set its password. If this server sends mail, the user also gets a link by
    mail."""
    if context.settings.sign_up == "closed":
        raise Forbidden("Sign-up on this server is closed (COMFYRELAY_SIGN_UP), including invitations.")
    user, link = await context.engine.accounts.links.invite(**body.model_dump(), by=admin)
    return _answer(context, user, link)


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
    """Create a link to set a new password. Older links become invalid. If this server sends mail, the user also gets a
    link by mail."""
    user, link = await context.engine.accounts.links.create_reset_link(user_id, by=admin)
    return _answer(context, user, link)


@router.delete("/{user_id}", responses=error_responses(404, 409, 422))
async def delete_user(user_id: IdInPath, context: ContextOf, admin: Admin) -> Answer[wire.DeletedUser]:
    """Delete an account at once, and its files, jobs and workflows in the background. 409 for the only
    administrator."""
    user = await context.engine.accounts.own_account.delete_by_admin(user_id, by=admin)
    context.forget_user(user)
    return Answer(data=wire.DeletedUser(id=user.id, tenant_id=user.tenant_id), message="Deleted.")


def _answer(context: Context, user: User, link: NewLink) -> Answer[wire.ResetLink]:
    url = context.engine.accounts.links.password_url(link.secret)
    data = wire.ResetLink.of(link, user_id=user.id, email=user.email, url=url)
    return Answer(data=data, message=MAILED if link.is_mailed else SEND_LINK)
