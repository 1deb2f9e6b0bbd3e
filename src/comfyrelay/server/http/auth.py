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
from comfyrelay.errors import DatabaseUnavailable, Forbidden, Unauthorized
from comfyrelay.http_client import origin_parts
from comfyrelay.server.http.cache import CACHE_SECONDS
from comfyrelay.server.http.context import Context
from comfyrelay.server.http.holders import HolderKind, hold_connection

T = TypeVar("T")
POLL_CACHE_SECONDS = 3600.0
# A stream ends at most this long after its user has signed out.
CHECK_SECONDS = 15.0
# A database that takes longer counts as down if the caller can be authenticated from memory.
DATABASE_SECONDS = 3.0
# Clients of ComfyUI's cloud send their token in this header.
API_KEY = "X-API-Key"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_bearer = HTTPBearer(auto_error=False, description="An API token")
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


class _Caller(SecurityBase, Generic[T]):
    """Authenticates the caller as a single dependency: FastAPI resolves each dependency for every request, which costs
    more than the lookup itself. The API documentation shows it as the security scheme."""

    def __init__(self, authenticate: Callable[[Request, Context], Awaitable[T]]) -> None:
        self.model, self.scheme_name = _bearer.model, _bearer.scheme_name
        self._authenticate = authenticate

    async def __call__(self, request: Request) -> T:
        return await self._authenticate(request, request.app.state.context)


async def authenticate_user(request: Request, context: Context) -> User:
    secret, is_bearer = await _read_secret(request, context)
    if not secret:
        raise Unauthorized
    if not is_bearer and request.method not in SAFE_METHODS:
        _require_same_site(request, context)
    user = await context.user_of(secret)
    if user is None:
        raise Unauthorized("This token is invalid or has expired.")
    request.state.is_admin = user.is_admin
    hold_connection(request.scope, HolderKind.USER, user.id)
    structlog.contextvars.bind_contextvars(tenant_id=user.tenant_id, user_id=user.id)
    return user


class AccessCheck:
    """Whether the caller of a stream is still allowed to read it. Called for each message, but checks only at
    intervals."""

    def __init__(
        self,
        request: Request,
        context: Context,
        authenticate: Callable[[Request, Context], Awaitable[User]] = authenticate_user,
    ) -> None:
        self._request = request
        self._context = context
        self._authenticate = authenticate
        self._now = asyncio.get_running_loop().time
        self._checked_at = self._now()

    async def __call__(self) -> bool:
        if self._now() - self._checked_at < CHECK_SECONDS:
            return True
        self._checked_at = self._now()
        try:
            await self._authenticate(self._request, self._context)
        except (Unauthorized, Forbidden):
            return False
        secret, _is_bearer = await _read_secret(self._request, self._context)
        return await self._context.session_of(secret) is not None


async def _read_secret(request: Request, context: Context) -> tuple[str, bool]:
    """Return the secret of the caller, and whether it is a token from a header."""
    bearer = await _bearer(request)
    token = bearer.credentials if bearer else request.headers.get(API_KEY, "")
    return (token, True) if token else (request.cookies.get(context.session_cookie, ""), False)


async def authenticate_admin(request: Request, context: Context) -> User:
    user = await authenticate_user(request, context)
    if not user.is_admin:
        raise Forbidden("Only administrators may do this.")
    context.remember_admin((await _read_secret(request, context))[0], user)
    return user


async def _authenticate_remembered_admin(request: Request, context: Context) -> User:
    """Authenticate an administrator, from memory while the central database does not answer."""
    return await _with_remembered_admin(authenticate_admin, request, context)


async def _authenticate_user_or_remembered_admin(request: Request, context: Context) -> User:
    """Authenticate a user; an administrator from memory while the central database does not answer."""
    return await _with_remembered_admin(authenticate_user, request, context)


async def _with_remembered_admin(
    authenticate: Callable[[Request, Context], Awaitable[User]], request: Request, context: Context
) -> User:
    remembered = context.remembered_admin((await _read_secret(request, context))[0])
    if remembered is not None and context.engine.operations.outages.is_central_down:
        return remembered
    try:
        async with asyncio.timeout(DATABASE_SECONDS):
            return await authenticate(request, context)
    except (DatabaseUnavailable, TimeoutError):
        if remembered is None:
            raise DatabaseUnavailable(name="central") from None
        return remembered


async def authenticate_worker(request: Request, context: Context) -> Worker:
    return await _worker(request, context, max_age_seconds=CACHE_SECONDS)


async def _polling_worker(request: Request, context: Context) -> Worker:
    """Authenticate a poll, with a longer cache than other calls: leasing checks the token and the approval itself."""
    try:
        return await _worker(request, context, max_age_seconds=POLL_CACHE_SECONDS)
    except (Unauthorized, Forbidden):
        return await authenticate_worker(request, context)


async def _worker(request: Request, context: Context, *, max_age_seconds: float) -> Worker:
    bearer = await _bearer(request)
    if bearer is None:
        raise Unauthorized("Send the worker's token as a bearer token.")
    worker = await context.worker_of(bearer.credentials, max_age_seconds=max_age_seconds)
    if worker is None:
        raise Unauthorized("This worker token is invalid or has expired. Register again.")
    if not worker.is_approved:
        raise Forbidden("This worker is not approved.")
    hold_connection(request.scope, HolderKind.WORKER, worker.worker_id, slots=worker.max_concurrency)
    structlog.contextvars.bind_contextvars(worker_id=worker.worker_id)
    context.engine.workers.workers.note_seen(worker.worker_id)
    return worker


def _require_same_site(request: Request, context: Context) -> None:
    """Refuse requests from pages of other sites: browsers send the cookie with those requests, too."""
    site = request.headers.get("Sec-Fetch-Site")
    if site in ("same-origin", "none"):
        return
    origin = request.headers.get("Origin")
    if site is None and origin is not None and _is_own_origin(origin, request, context):
        return
    raise Forbidden("This request came from another site. Use an API token instead of the session cookie.")


def _is_own_origin(origin: str, request: Request, context: Context) -> bool:
    public = urlsplit(context.settings.base_url)
    return origin == f"{public.scheme}://{public.netloc}" or origin_parts(origin).netloc == request.headers.get("Host")


current_admin = _Caller(authenticate_admin)
remembered_admin = _Caller(_authenticate_remembered_admin)
CurrentUser = Annotated[User, Depends(_Caller(authenticate_user))]
CurrentOrRemembered = Annotated[User, Depends(_Caller(_authenticate_user_or_remembered_admin))]
Admin = Annotated[User, Depends(current_admin)]
CurrentWorker = Annotated[Worker, Depends(_Caller(authenticate_worker))]
PollingWorker = Annotated[Worker, Depends(_Caller(_polling_worker))]
