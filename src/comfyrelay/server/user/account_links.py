"""Sign-in without a password: the first administrator, and the links of accounts."""

from fastapi import Request, Response

from comfyrelay.domain.credentials import normalize_email
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.protocol import account as account_wire
from comfyrelay.protocol import user as wire
from comfyrelay.protocol.base import Answer
from comfyrelay.server.http.audited import account_change
from comfyrelay.server.http.bodies import anonymous_body
from comfyrelay.server.http.context import Context, ContextOf
from comfyrelay.server.http.limits import address_of
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Router
from comfyrelay.server.user.accounts import require_open_sign_up, signed_in

router = Router(prefix="/api", tags=["account"])
LOOK_AT_MAIL = "Check your mail: if the address is correct, a link is on its way."


@router.get("/entry", responses=error_responses(503))
async def entry(context: ContextOf) -> Answer[wire.SignInOptions]:
    """Describe the server and the ways to sign in, for visitors."""
    settings = context.settings
    is_desk = context.owner is not None
    data = wire.SignInOptions(
        is_desk=is_desk,
        stage=Stage(settings.stage),
        can_sign_up=settings.sign_up == "open" and not is_desk,
        sign_up="closed" if is_desk else settings.sign_up,
        sends_mail=context.engine.accounts.mailer.is_enabled,
        needs_setup=not is_desk and await context.engine.accounts.sign_in.needs_setup(),
        url_seconds=settings.presigned_ttl_seconds,
        studio=wire.Studio(
            name=settings.studio_name,
            logo_url=context.logo.url if context.logo is not None else None,
            color=settings.studio_color,
            imprint_url=settings.imprint_url,
            terms_url=settings.terms_url,
        ),
    )
    return Answer(data=data)


@router.post("/setup", status_code=201, responses=error_responses(403, 409, 422, 429, 503))
@anonymous_body
async def set_up(body: wire.Setup, request: Request, response: Response, context: ContextOf) -> Answer[wire.SignedIn]:
    """Create the first administrator with the code that the server printed, and sign in."""
    context.sign_ins.check_address(address_of(request))
    async with account_change(request, action="set_up", email=normalize_email(body.email)) as change:
        user = await context.engine.accounts.links.create_first_admin(
            body.code, email=body.email, password=body.password, name=body.name
        )
        change.created = {"user_id": user.id}
    return Answer(data=await signed_in(context, user, response), message="Welcome.")


@router.post("/reset/check", responses=error_responses(403, 404, 422, 429, 503))
@anonymous_body
async def check_reset(body: wire.ResetToken, request: Request, context: ContextOf) -> Answer[wire.ResetAccount]:
    """Get the account of a password link, while the link is valid."""
    context.sign_ins.check_address(address_of(request))
    account = await context.engine.accounts.links.find_account(body.token)
    has_webhook = account.user is not None and await _has_webhook(context, account.user)
    data = wire.ResetAccount(email=account.email, has_webhook=has_webhook, is_new=account.user is None)
    return Answer(data=data)


@router.post("/reset", responses=error_responses(403, 404, 422, 429, 503))
@anonymous_body
async def reset(
    body: wire.NewPassword, request: Request, response: Response, context: ContextOf
) -> Answer[wire.SignedIn]:
    """Set a new password with a link, which works once, and sign in. All other sessions and all API tokens end. The
    link of a sign-up creates the account."""
    context.sign_ins.check_address(address_of(request))
    account = await context.engine.accounts.links.find_account(body.token)
    if account.user is None:
        require_open_sign_up(context)
        user = await context.engine.accounts.links.set_password(body.token, body.password)
    else:
        async with account_change(request, action="reset", email=account.email, user_id=account.user.id):
            user = await context.engine.accounts.links.set_password(body.token, body.password)
    context.forget_user(user)
    message = "Your new password is set. All other sessions and all API tokens have ended."
    message = "Welcome." if account.user is None else message
    return Answer(data=await signed_in(context, user, response), message=message)


@router.post("/sign-up", status_code=202, responses=error_responses(403, 409, 422, 429, 503))
@anonymous_body
async def sign_up(body: account_wire.SignUpByMail, request: Request, context: ContextOf) -> Answer[None]:
    """Mail a link that creates an account. The response is the same if the address already has an account."""
    context.sign_ins.check(address_of(request), normalize_email(body.email))
    require_open_sign_up(context)
    await context.engine.accounts.mailed_links.request_account(body.email, name=body.name, to=body.to)
    return Answer(data=None, message=LOOK_AT_MAIL)


@router.post("/reset/request", status_code=202, responses=error_responses(409, 422, 429, 503))
@anonymous_body
async def request_reset(body: account_wire.ForgottenPassword, request: Request, context: ContextOf) -> Answer[None]:
    """Mail a link that sets a new password. The response is the same if no account has the address."""
    context.sign_ins.check(address_of(request), normalize_email(body.email))
    await context.engine.accounts.mailed_links.request_password(body.email)
    return Answer(data=None, message=LOOK_AT_MAIL)


@router.post("/email/confirm", responses=error_responses(404, 422, 429, 503))
@anonymous_body
async def confirm_email(
    body: account_wire.EmailConfirmation, request: Request, context: ContextOf
) -> Answer[account_wire.ConfirmedEmail]:
    """Confirm a new email address with the link that was mailed to it. The link works once."""
    context.sign_ins.check_address(address_of(request))
    own_account = context.engine.accounts.own_account
    before = await own_account.find_confirming(body.token)
    async with account_change(request, action="confirm_email", email=before.email, user_id=before.id):
        user = await own_account.confirm_email(body.token)
    context.forget_user(user)
    return Answer(data=account_wire.ConfirmedEmail(email=user.email), message="Your address is confirmed.")


async def _has_webhook(context: Context, user: User) -> bool:
    try:
        webhook = await context.engine.webhooks.endpoints.get(user.tenant_id)
    except DatabaseUnavailable:
        # A password can be reset while the shard is down. A needless reminder does less harm than a missing one.
        return True
    return webhook is not None and webhook.url is not None
