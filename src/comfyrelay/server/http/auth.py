"""Authentication: users by token or session cookie, administrators, and workers by token."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Generic, TypeVar
from urllib.parse import urlsplit

import structlog
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.security.base import SecurityBase

from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.workers import Worker
from comfyrelay.errors import Forbidden, Unauthorized
from comfyrelay.http_client import origin_parts
from comfyrelay.server.http.cache import REMEMBER_SECONDS
from comfyrelay.server.http.context import Context

T = TypeVar("T")
POLL_REMEMBER_SECONDS = 3600.0
# A stream ends at most this long after its user has signed out.
CHECK_SECONDS = 15.0
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_bearer = HTTPBearer(auto_error=False, description="An API token")
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


class _Caller(SecurityBase, Generic[T]):
    """The caller as a single dependency. FastAPI resolves each dependency for every request, which costs more than the
    lookup itself. In the API documentation it appears as the security scheme."""

    def __init__(self, find: Callable[[Request, Context], Awaitable[T]]) -> None:
        self.model, self.scheme_name = _bearer.model, _bearer.scheme_name
        self._find = find

    async def __call__(self, request: Request) -> T:
        return await self._find(request, request.app.state.context)


async def authenticate_user(request: Request, context: Context) -> User:
    secret, is_bearer = await _secret_in(request, context)
    if not secret:
        raise Unauthorized
    if not is_bearer and request.method not in SAFE_METHODS:
        _refuse_other_sites(request, context)
    user = await context.user_of(secret)
    if user is None:
        raise Unauthorized("This token is invalid or has expired.")
    structlog.contextvars.bind_contextvars(tenant_id=user.tenant_id, user_id=user.id)
    return user


class AccessCheck:
    """Whether the caller of a stream is still allowed to read it. Called for each message, checked at intervals."""

    def __init__(
        self,
        request: Request,
        context: Context,
        find: Callable[[Request, Context], Awaitable[User]] = authenticate_user,
    ) -> None:
        self._request = request
        self._context = context
        self._find = find
        self._now = asyncio.get_running_loop().time
        self._checked_at = self._now()

    async def __call__(self) -> bool:
        if self._now() - self._checked_at < CHECK_SECONDS:
            return True
        self._checked_at = self._now()
        try:
            await self._find(self._request, self._context)
        except (Unauthorized, Forbidden):
            return False
        secret, _is_bearer = await _secret_in(self._request, self._context)
        return await self._context.session_of(secret) is not None


async def _secret_in(request: Request, context: Context) -> tuple[str, bool]:
    """Return the secret of the caller, and whether it is a bearer token."""
    bearer = await _bearer(request)
    return (bearer.credentials, True) if bearer else (request.cookies.get(context.session_cookie, ""), False)


async def authenticate_admin(request: Request, context: Context) -> User:
    user = await authenticate_user(request, context)
    if not user.is_admin:
        raise Forbidden("Only administrators may do this.")
    return user


async def authenticate_worker(request: Request, context: Context) -> Worker:
    return await _worker(request, context, oldest_seconds=REMEMBER_SECONDS)


async def _polling_worker(request: Request, context: Context) -> Worker:
    """Cached for longer than for other calls, because leasing checks the token and the approval itself."""
    try:
        return await _worker(request, context, oldest_seconds=POLL_REMEMBER_SECONDS)
    except (Unauthorized, Forbidden):
        return await authenticate_worker(request, context)


async def _worker(request: Request, context: Context, *, oldest_seconds: float) -> Worker:
    bearer = await _bearer(request)
    if bearer is None:
        raise Unauthorized("Send the worker's token as a bearer token.")
    worker = await context.worker_of(bearer.credentials, oldest_seconds=oldest_seconds)
    if worker is None:
        raise Unauthorized("This worker token is invalid or has expired. Register again.")
    if not worker.is_approved:
        raise Forbidden("This worker is not approved.")
    structlog.contextvars.bind_contextvars(worker_id=worker.worker_id)
    return worker


def _refuse_other_sites(request: Request, context: Context) -> None:
    """Browsers send the cookie with requests from any site. Only pages of this server may change something with it."""
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


current_admin = _Caller(authenticate_admin)
CurrentUser = Annotated[User, Depends(_Caller(authenticate_user))]
Admin = Annotated[User, Depends(current_admin)]
CurrentWorker = Annotated[Worker, Depends(_Caller(authenticate_worker))]
PollingWorker = Annotated[Worker, Depends(_Caller(_polling_worker))]
