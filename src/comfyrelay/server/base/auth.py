"""Who is calling: a user by token or session cookie, an administrator, or a worker by its token."""

from typing import Annotated
from urllib.parse import urlsplit

import structlog
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.fleet import Worker
from comfyrelay.errors import Forbidden, Unauthorized
from comfyrelay.net import origin_parts
from comfyrelay.server.base.cache import REMEMBER_SECONDS
from comfyrelay.server.base.context import Context, ContextOf

POLL_REMEMBER_SECONDS = 3600.0
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_bearer = HTTPBearer(auto_error=False, description="An API token")
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


async def current_user(request: Request, context: ContextOf, bearer: Bearer) -> User:
    secret = bearer.credentials if bearer else request.cookies.get(context.session_cookie)
    if not secret:
        raise Unauthorized
    if bearer is None and request.method not in SAFE_METHODS:
        _refuse_other_sites(request, context)
    user = await context.user_of(secret)
    if user is None:
        raise Unauthorized("This token is not valid, or no longer.")
    structlog.contextvars.bind_contextvars(tenant_id=user.tenant_id, user_id=user.id)
    return user


async def current_admin(user: Annotated[User, Depends(current_user)]) -> User:
    if not user.is_admin:
        raise Forbidden("Only an administrator may do this.")
    return user


async def current_worker(context: ContextOf, bearer: Bearer) -> Worker:
    return await _worker(context, bearer, oldest_seconds=REMEMBER_SECONDS)


async def polling_worker(context: ContextOf, bearer: Bearer) -> Worker:
    """Who polls may be remembered for long: leasing looks at the token and the approval itself."""
    try:
        return await _worker(context, bearer, oldest_seconds=POLL_REMEMBER_SECONDS)
    except (Unauthorized, Forbidden):
        return await current_worker(context, bearer)


async def _worker(context: Context, bearer: HTTPAuthorizationCredentials | None, *, oldest_seconds: float) -> Worker:
    if bearer is None:
        raise Unauthorized("Send the worker's token as a bearer token.")
    worker = await context.worker_of(bearer.credentials, oldest_seconds=oldest_seconds)
    if worker is None:
        raise Unauthorized("This worker token is not valid, or no longer: register again.")
    if not worker.is_approved:
        raise Forbidden("This worker is not approved.")
    structlog.contextvars.bind_contextvars(worker_id=worker.worker_id)
    return worker


# The same before anything of a large body is read.


async def known_user(request: Request, context: Context) -> User:
    return await current_user(request, context, await _bearer(request))


async def known_admin(request: Request, context: Context) -> User:
    return await current_admin(await known_user(request, context))


async def known_worker(request: Request, context: Context) -> Worker:
    return await current_worker(context, await _bearer(request))


def _refuse_other_sites(request: Request, context: Context) -> None:
    """A cookie is sent by the browser whoever asks for it; only our own pages may change something with it."""
    site = request.headers.get("Sec-Fetch-Site")
    if site in ("same-origin", "none"):
        return
    origin = request.headers.get("Origin")
    if site is None and origin is not None and _is_ours(origin, request, context):
        return
    raise Forbidden("This request came from another site. Use an API token instead of the session cookie.")


def _is_ours(origin: str, request: Request, context: Context) -> bool:
    public = urlsplit(context.settings.base_url)
    return origin == f"{public.scheme}://{public.netloc}" or origin_parts(origin).netloc == request.headers.get("Host")


CurrentUser = Annotated[User, Depends(current_user)]
Admin = Annotated[User, Depends(current_admin)]
CurrentWorker = Annotated[Worker, Depends(current_worker)]
PollingWorker = Annotated[Worker, Depends(polling_worker)]
