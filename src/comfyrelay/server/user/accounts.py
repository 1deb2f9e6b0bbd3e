"""Accounts: sign-up, sign-in, sign-out, tokens, and the wallet."""

from typing import Literal

from fastapi import Request, Response

from comfyrelay.domain.credentials import normalize_email
from comfyrelay.domain.prices.metered import MILLI, MeteredPrice
from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import Conflict, DatabaseUnavailable, Forbidden
from comfyrelay.protocol import user as wire
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.server.http.audited import AccountRoute, audited
from comfyrelay.server.http.auth import Bearer, CurrentOrRemembered, CurrentUser
from comfyrelay.server.http.bodies import anonymous_body
from comfyrelay.server.http.context import Context, ContextOf
from comfyrelay.server.http.guests import is_guest
from comfyrelay.server.http.known_browsers import COOKIE_PREFIX, LIFETIME
from comfyrelay.server.http.limits import address_of
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Cursor, IdInPath, Limit, NumberCursor, Router, page_of
from comfyrelay.services.accounts.sign_in import SESSION
from comfyrelay.services.paging import make_page

SECONDS_PER_DAY = 86_400.0
NOT_CREATED = (
    "No account could be created for this email. Sign in if you have one, or ask your administrator for a link."
)
router = Router(prefix="/api", tags=["account"], route_class=AccountRoute)


@router.post("/register", status_code=201, responses=error_responses(403, 409, 422, 429, 503))
@anonymous_body
async def register(
    body: wire.Credentials, request: Request, response: Response, context: ContextOf
) -> Answer[wire.SignedIn]:
    """Create an account and sign in."""
    context.sign_ins.check_address(address_of(request))
    require_open_sign_up(context)
    if context.engine.accounts.mailer.is_enabled:
        raise Forbidden("This server confirms addresses by mail. Use POST /api/sign-up, and open the link in the mail.")
    try:
        user = await context.engine.accounts.sign_in.register(email=body.email, password=body.password, name=body.name)
    except Conflict:
        raise Conflict(NOT_CREATED) from None
    return Answer(data=await signed_in(context, user, response), message="Welcome.")


@router.post("/login", responses=error_responses(401, 403, 422, 429, 503))
@anonymous_body
async def login(
    body: wire.Credentials, request: Request, response: Response, context: ContextOf
) -> Answer[wire.SignedIn]:
    """Sign in. The token works as a bearer token, and as the session cookie of a browser."""
    address, account = address_of(request), normalize_email(body.email)
    if await _is_known_browser(request, context, account):
        context.sign_ins.check_known_browser(account)
    else:
        # Attempts for unknown accounts are limited, too, so that the response does not reveal whether an account
        # exists.
        context.sign_ins.check(address, account)
    user, hashed = await context.engine.accounts.sign_in.sign_in(email=account, password=body.password)
    context.sign_ins.reset(address, account)
    data = await signed_in(context, user, response, password_hash=hashed)
    return Answer(data=data, message="Signed in.")


@router.post("/logout", responses=error_responses(401, 403, 503))
async def logout(
    request: Request, response: Response, context: ContextOf, user: CurrentUser, bearer: Bearer
) -> Answer[None]:
    """Sign out: end the token or session of this request."""
    await context.engine.accounts.sign_in.sign_out(user, secret_of(request, context, bearer))
    context.forget_user(user)
    end_cookie(context, response)
    return Answer(data=None, message="Signed out.")


@router.get("/me", responses=error_responses(401, 503))
async def me(request: Request, context: ContextOf, user: CurrentOrRemembered) -> Answer[wire.Me]:
    """Get the signed-in user, and whether you may add your own workflows. While the central database is down, this
    answers administrators who were signed in to this server process in the last 15 minutes, so that they see why."""
    access = context.engine.accounts.own_workflows
    try:
        is_down = user.is_admin and context.engine.operations.outages.is_central_down
        is_allowed = not is_down and await access.is_allowed(user.tenant_id)
    except DatabaseUnavailable:
        if not user.is_admin:
            raise
        is_allowed = False
    has_editor = is_allowed and context.has_editor and not is_guest(request)
    terms = _terms(access.price) if is_allowed else None
    return Answer(data=wire.Me.of(user, own_workflows=terms, has_editor=has_editor))


@router.get("/wallet", responses=error_responses(401, 422, 503))
async def wallet(
    context: ContextOf, user: CurrentUser, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[wire.Wallet]:
    """Get the balance and the transactions, newest first."""
    ledger = context.engine.accounts.ledger
    balance, found = await ledger.statement(user.tenant_id, limit=limit + 1, before_id=cursor)
    page = make_page(found, limit=limit)
    more = {"top_up_url": context.settings.top_up_url, "owed_tokens": await ledger.owed(user.tenant_id)}
    return Answer(data=wire.Wallet.of(page, balance=balance, transactions=page.items, **more))


@router.get("/tokens", responses=error_responses(401, 422, 503))
async def tokens(
    request: Request,
    context: ContextOf,
    user: CurrentUser,
    bearer: Bearer,
    *,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Answer[Page[wire.Token]]:
    """List your tokens and sessions, newest first."""
    found = await context.engine.accounts.sign_in.list_tokens(user, before_id=cursor, limit=limit + 1)
    current = await context.engine.accounts.sign_in.token_id(secret_of(request, context, bearer))
    return page_of(
        make_page(found, limit=limit),
        lambda token: wire.Token.of(token, is_session=token.name == SESSION, is_current=token.id == current),
    )


@router.post("/tokens", status_code=201, responses=error_responses(401, 403, 409, 422, 503))
@audited
async def create_token(body: wire.NewToken, context: ContextOf, user: CurrentUser) -> Answer[wire.IssuedToken]:
    """Create a token for a program. It is shown only once."""
    lifetime = body.expires_in_days * SECONDS_PER_DAY if body.expires_in_days is not None else None
    issued = await context.engine.accounts.sign_in.create_token(
        user, name=body.name, lifetime_seconds=lifetime, scope=body.scope
    )
    data = wire.IssuedToken.of(issued.token, token=issued.secret, is_session=False, is_current=False)
    return Answer(data=data, message="Keep this token: it is not shown again.")


@router.delete("/tokens/{token_id}", responses=error_responses(401, 403, 404, 422, 503))
@audited
async def revoke_token(token_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[wire.Deleted]:
    """Revoke a token or session. It may work for up to five more seconds."""
    await context.engine.accounts.sign_in.revoke(user, token_id)
    context.forget_user(user)
    return Answer(data=wire.Deleted(id=token_id), message="Revoked.")


async def signed_in(
    context: Context, user: User, response: Response, *, password_hash: str | None = None
) -> wire.SignedIn:
    """Start a session, with a cookie and a token, and remember the browser."""
    secret = await begin_session(context, user, response, samesite="lax", password_hash=password_hash)
    await remember_browser(context, user, response)
    return wire.SignedIn(token=secret, user=wire.User.of(user))


async def remember_browser(context: Context, user: User, response: Response) -> None:
    """Set the cookie of a browser that has signed in with the current password."""
    account = await context.engine.accounts.sign_in.find_credentials(user.email)
    if account is not None:
        name, value = context.known_browsers.cookie(account)
        max_age, is_secure = int(LIFETIME.total_seconds()), _is_secure(context)
        response.set_cookie(
            name, value, max_age=max_age, path="/api/login", httponly=True, samesite="strict", secure=is_secure
        )


def end_cookie(context: Context, response: Response) -> None:
    """Delete the cookie of the session."""
    response.delete_cookie(context.session_cookie, httponly=True, samesite="lax", secure=_is_secure(context))


def require_open_sign_up(context: Context) -> None:
    if context.settings.sign_up == "invitation":
        raise Forbidden("Accounts on this server are by invitation. Ask its administrator for one.")
    if context.settings.sign_up == "closed":
        raise Forbidden("Sign-up on this server is closed.")


async def _is_known_browser(request: Request, context: Context, account: str) -> bool:
    # Most requests have no such cookie, and need no query.
    if not any(name.startswith(COOKIE_PREFIX) for name in request.cookies):
        return False
    found = await context.engine.accounts.sign_in.find_credentials(account)
    return found is not None and context.known_browsers.is_known(found, request.cookies)


async def begin_session(
    context: Context,
    user: User,
    response: Response,
    *,
    samesite: Literal["lax", "strict"],
    name: str = SESSION,
    is_secure: bool = False,
    password_hash: str | None = None,
) -> str:
    """Create a session, set its cookie, and return its secret. The server stores only the hash."""
    seconds = context.settings.session_days * SECONDS_PER_DAY
    issued = await context.engine.accounts.sign_in.issue(
        user, name=name, lifetime_seconds=seconds, password_hash=password_hash
    )
    response.set_cookie(
        context.session_cookie,
        issued.secret,
        max_age=int(seconds),
        httponly=True,
        samesite=samesite,
        secure=is_secure or _is_secure(context),
    )
    return issued.secret


def secret_of(request: Request, context: Context, bearer: Bearer) -> str:
    """Return the token or cookie of an authenticated request."""
    return bearer.credentials if bearer else request.cookies[context.session_cookie]


def _is_secure(context: Context) -> bool:
    return context.settings.base_url.startswith("https://")


def _terms(price: MeteredPrice | None) -> wire.OwnWorkflowTerms:
    if price is None:
        return wire.OwnWorkflowTerms()
    return wire.OwnWorkflowTerms.of(price, tokens_per_second=price.millitokens_per_second / MILLI)
