"""Sign-in without a password: the first administrator, and password links."""

from fastapi import Request, Response

from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.protocol import user as wire
from comfyrelay.protocol.base import Answer
from comfyrelay.server.http.bodies import anonymous_body
from comfyrelay.server.http.context import Context, ContextOf
from comfyrelay.server.http.limits import address_of
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Router
from comfyrelay.server.user.accounts import signed_in

router = Router(prefix="/api", tags=["account"])


@router.get("/entry", responses=error_responses(503))
async def entry(context: ContextOf) -> Answer[wire.SignInOptions]:
    """Describe the server and the ways to sign in, for visitors."""
    settings = context.settings
    is_desk = context.owner is not None
    data = wire.SignInOptions(
        is_desk=is_desk,
        stage=Stage(settings.stage),
        can_sign_up=settings.allow_registration and not is_desk,
        needs_setup=not is_desk and await context.engine.accounts.sign_in.needs_setup(),
        url_seconds=settings.presigned_ttl_seconds,
    )
    return Answer(data=data)


@router.post("/setup", status_code=201, responses=error_responses(403, 409, 422, 429, 503))
@anonymous_body
async def set_up(body: wire.Setup, request: Request, response: Response, context: ContextOf) -> Answer[wire.SignedIn]:
    """Create the first administrator with the code that the server printed, and sign in."""
    context.sign_ins.check_address(address_of(request))
    user = await context.engine.accounts.links.create_first_admin(
        body.code, email=body.email, password=body.password, name=body.name
    )
    return Answer(data=await signed_in(context, user, response), message="Welcome.")


@router.post("/reset/check", responses=error_responses(403, 404, 422, 429, 503))
@anonymous_body
async def check_reset(body: wire.ResetToken, request: Request, context: ContextOf) -> Answer[wire.ResetAccount]:
    """Get the account of a password link, while the link is valid."""
    context.sign_ins.check_address(address_of(request))
    user = await context.engine.accounts.links.find_user(body.token)
    return Answer(data=wire.ResetAccount(email=user.email, has_webhook=await _has_webhook(context, user)))


@router.post("/reset", responses=error_responses(403, 404, 422, 429, 503))
@anonymous_body
async def reset(
    body: wire.NewPassword, request: Request, response: Response, context: ContextOf
) -> Answer[wire.SignedIn]:
    """Set a new password with a link, once, and sign in. All other sessions and all API tokens end."""
    context.sign_ins.check_address(address_of(request))
    user = await context.engine.accounts.links.reset_password(body.token, body.password)
    context.forget_user(user)
    message = "Your new password is set. All other sessions and all API tokens have ended."
    return Answer(data=await signed_in(context, user, response), message=message)


async def _has_webhook(context: Context, user: User) -> bool:
    try:
        webhook = await context.engine.webhooks.endpoints.get(user.tenant_id)
    except DatabaseUnavailable:
        # A password can be reset without the shard. A needless reminder does less harm than a missing one.
        return True
    return webhook is not None and webhook.url is not None
