"""Record the changes of a request in the audit log, and compare and return versions of the changed object.

`If-Match` names the version that the caller has seen. Without it, a change overwrites any version.
"""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import Request, Response

from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.operations import NewAuditLogEntry
from comfyrelay.server.http.auth import authenticate_user
from comfyrelay.server.http.bodies import BodyRoute
from comfyrelay.server.http.context import Context
from comfyrelay.server.http.limits import address_of
from comfyrelay.services.auditing import ChangeScope, keys_of, subject_of

Handler = Callable[[Request], Awaitable[Response]]
# Larger bodies contain graphs, which have their own versions.
MAX_RECORDED_BYTES = 8192
E = TypeVar("E", bound=Callable[..., Any])
_AUDITED: set[Callable[..., Any]] = set()


def audited(endpoint: E) -> E:
    """Mark a route that changes the caller's account. Its router must use `AccountRoute`."""
    _AUDITED.add(endpoint)
    return endpoint


class AccountRoute(BodyRoute):
    """A route that records changes of the caller's account if it is marked."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.endpoint not in _AUDITED:
            return handle

        async def handle_and_record(request: Request) -> Response:
            user = await authenticate_user(request, request.app.state.context)
            keys = {"user_id": user.id}
            return await handle_change(request, handle, user=user, action=self.name, kind="users", keys=keys)

        return handle_and_record


async def handle_read(request: Request, handle: Handler, kind: str) -> Response:
    """Answer a request for one object, and set its version in the `ETag` header."""
    context: Context = request.app.state.context
    keys = keys_of(kind, request.path_params)
    # PostgreSQL cannot store NUL, so no object has such a key. The handler refuses it.
    if keys is None or "\x00" in request.url.path:
        return await handle(request)
    # Read the version first: if the object changes meanwhile, the version is too old, and a change with it is refused.
    version = await context.engine.audit.version(kind, keys)
    return _with_version(await handle(request), version)


async def handle_change(
    request: Request, handle: Handler, *, user: User, action: str, kind: str, keys: Mapping[str, Any]
) -> Response:
    """Answer a request that changes something. `keys` are empty if it creates an object, or if its kind has no
    snapshots."""
    context: Context = request.app.state.context
    named = keys_of(kind, keys)
    scope = ChangeScope(
        entry=NewAuditLogEntry(
            actor_id=user.id,
            actor=user.email,
            address=address_of(request),
            action=action,
            subject=subject_of(kind, keys),
        ),
        kind=kind if keys_of(kind) is not None else None,
        keys=named or {},
        expected=_expected(request) if named is not None else None,
        request=lambda: _body(request),
    )
    audit = context.engine.audit
    with audit.scope(scope):
        response = await handle(request)
        if response.status_code >= 400:
            return response
        created = None if named is not None else keys_of(kind, _created(response))
        version = await audit.finish(scope, created=created)
    return _with_version(response, version)


@asynccontextmanager
async def account_change(
    request: Request, *, action: str, email: str, user_id: str | None = None
) -> AsyncIterator[ChangeScope]:
    """Record a change of the account `email` by a caller without a session, such as the user of a link. A change that
    creates the account sets `created`."""
    context: Context = request.app.state.context
    keys = {} if user_id is None else {"user_id": user_id}
    entry = NewAuditLogEntry(
        actor_id=user_id,
        actor=email,
        address=address_of(request),
        action=action,
        subject=subject_of("users", keys),
    )
    with context.engine.audit.scope(ChangeScope(entry=entry, kind="users", keys=keys)) as scope:
        yield scope
        await context.engine.audit.finish(scope, created=scope.created)


def is_object_path(kind: str, rest: str) -> bool:
    """Whether a path names one object by its keys. `rest` is the part after the kind."""
    names = re.findall(r"\{(\w+)(?::\w+)?\}", rest)
    return bool(names) and rest.count("/") == len(names) - 1 and keys_of(kind, dict.fromkeys(names, "")) is not None


def _with_version(response: Response, version: str | None) -> Response:
    if version is not None:
        response.headers["ETag"] = version
    return response


def _expected(request: Request) -> str | None:
    version = request.headers.get("If-Match", "*").strip().removeprefix("W/")
    return None if version == "*" else version


def _body(request: Request) -> dict[str, Any] | None:
    """Return the body, if it is small JSON."""
    body = getattr(request, "_body", b"")
    if not body or len(body) > MAX_RECORDED_BYTES:
        return None
    try:
        value = json.loads(body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _created(response: Response) -> Mapping[str, Any]:
    try:
        data = json.loads(bytes(response.body))["data"]
    except (ValueError, KeyError, TypeError):
        return {}
    return data if isinstance(data, dict) else {}
