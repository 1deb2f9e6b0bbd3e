"""Routes for users to change their password and email address, and to delete their account."""

from fastapi import Request, Response

from comfyrelay.protocol import account as wire
from comfyrelay.protocol.base import Answer
from comfyrelay.server.http.audited import AccountRoute, audited
from comfyrelay.server.http.auth import Bearer, CurrentUser
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.limits import address_of
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import user_router
from comfyrelay.server.user.accounts import end_cookie, remember_browser, secret_of

router = user_router("/api/account", "account", route_class=AccountRoute)


@router.get("")
async def get_account(context: ContextOf, user: CurrentUser) -> Answer[wire.Account]:
    """Get your account."""
    accounts = context.engine.accounts
    is_verified = await accounts.own_account.is_verified(user)
    return Answer(data=wire.Account.of(user, is_verified=is_verified, sends_mail=accounts.mailer.is_enabled))


@router.post("/password", responses=error_responses(403, 422, 429))
@audited
async def change_password(
    body: wire.PasswordChange,
    request: Request,
    response: Response,
    context: ContextOf,
    *,
    user: CurrentUser,
    bearer: Bearer,
) -> Answer[None]:
    """Change your password. All your other sessions end; API tokens remain valid."""
    context.sign_ins.check(address_of(request), user.email)
    await context.engine.accounts.own_account.change_password(
        user,
        current=body.current_password,
        new=body.new_password,
        kept_session=secret_of(request, context, bearer),
    )
    context.forget_user(user)
    await remember_browser(context, user, response)
    return Answer(data=None, message="Your password was changed. All other sessions have ended.")


@router.post("/email", responses=error_responses(403, 409, 422, 429))
@audited
async def change_email(
    body: wire.EmailChange, request: Request, context: ContextOf, user: CurrentUser
) -> Answer[wire.ChangedEmail]:
    """Change your email address, or confirm the current one. If this server sends mail, a link to the new address
    completes the change."""
    context.sign_ins.check(address_of(request), user.email)
    is_changed = await context.engine.accounts.own_account.change_email(user, email=body.email, password=body.password)
    context.forget_user(user)
    message = "Your address was changed." if is_changed else f"Open the link in the mail to {body.email}."
    return Answer(data=wire.ChangedEmail(is_changed=is_changed), message=message)


@router.post("/delete", responses=error_responses(403, 409, 422, 429))
@audited
async def delete_account(
    body: wire.AccountDeletion, request: Request, response: Response, context: ContextOf, user: CurrentUser
) -> Answer[None]:
    """Delete your account with all files, jobs, workflows and tokens. This cannot be undone."""
    context.sign_ins.check(address_of(request), user.email)
    await context.engine.accounts.own_account.delete(user, password=body.password)
    context.forget_user(user)
    end_cookie(context, response)
    return Answer(data=None, message="Your account is deleted.")
