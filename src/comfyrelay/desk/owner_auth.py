"""Accept only requests of the desk's owner, and refuse other users of this machine."""

from collections.abc import Callable

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from comfyrelay.desk.guests import may_call
from comfyrelay.desk.one_time_links import PATH as LINK_PATH
from comfyrelay.desk.password import is_by_password
from comfyrelay.errors import Forbidden, Unauthorized
from comfyrelay.protocol.problems import DESK_CHALLENGE
from comfyrelay.server.http.auth import API_KEY
from comfyrelay.server.http.context import Context
from comfyrelay.server.http.guests import GUEST_ADVICE, mark_guest
from comfyrelay.server.http.problems import problem_response
from comfyrelay.web.app_files import is_page, not_found_page
from comfyrelay.web.session_pages import SIGN_IN_PATH, closed_page, sign_in_page

ADVICE = "Only its owner may use this desk: run `comfyrelay open` for the page, or send the owner's secret as a token."
# Health checks, and the routes that create a session.
OPEN_PATHS = frozenset({"/healthz", "/readyz", LINK_PATH})
# Routes with their own credential: a worker token or a signed URL.
OTHER_CREDENTIAL_PREFIXES = ("/api/worker/", "/files/")


class OwnerOnly:
    """Middleware that requires the owner's secret, or a session created with it or with the current password.

    A session created with the password is the session of a guest.
    """

    def __init__(self, app: ASGIApp, *, context: Context, has_password: Callable[[], bool]) -> None:
        """`has_password` returns whether other machines can reach the desk and sign in. The result may change."""
        self._app = app
        self._context = context
        self._has_password = has_password

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_request = scope["type"] in ("http", "websocket")
        if not is_request or self._is_open(scope):
            await self._app(scope, receive, send)
            return
        secret = self._secret_in(scope)
        session = await self._context.session_of(secret) if await self._is_owner(secret) else None
        if session is None:
            closed = sign_in_page if self._has_password() else closed_page
            answer = closed() if is_page(scope["path"]) else _unauthorized()
        elif is_by_password(session) and not may_call(scope):
            answer = await self._not_found_page(scope) or problem_response(Forbidden(GUEST_ADVICE))
        else:
            if is_by_password(session):
                mark_guest(scope)
            await self._app(scope, receive, send)
            return
        assert answer is not None
        await answer(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        path = scope["path"]
        # Only the form posts to this address. A browser that opens the address gets the form.
        is_sign_in = path == SIGN_IN_PATH and scope.get("method") == "POST" and self._has_password()
        return path in OPEN_PATHS or is_sign_in or path.startswith(OTHER_CREDENTIAL_PREFIXES)

    async def _not_found_page(self, scope: Scope) -> Response | None:
        """Return the page for a guest whose browser opens an address that guests may not open."""
        if scope["type"] != "http":
            return None
        return await not_found_page(Request(scope), lambda _request: self._context.storage_origins())

    def _secret_in(self, scope: Scope) -> str:
        connection = HTTPConnection(scope)
        kind, _, secret = connection.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer":
            secret = connection.headers.get(API_KEY) or connection.cookies.get(self._context.session_cookie, "")
        return secret

    async def _is_owner(self, secret: str) -> bool:
        user = await self._context.user_of(secret) if secret else None
        assert self._context.owner is not None
        # Other accounts may exist from an earlier version.
        return user is not None and user.id == self._context.owner.user.id


def _unauthorized() -> Response | None:
    answer = problem_response(Unauthorized(ADVICE))
    if answer is not None:
        answer.headers["WWW-Authenticate"] = DESK_CHALLENGE
    return answer
