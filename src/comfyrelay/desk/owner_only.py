"""Nobody but the owner of the desk, also of those who reach it from this very machine."""

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from comfyrelay.desk.links import PATH as LINK_PATH
from comfyrelay.errors import Unauthorized
from comfyrelay.server.base.context import Context
from comfyrelay.server.base.problems import problem_response
from comfyrelay.web.desk import SIGN_IN_PATH, closed_page, sign_in_page

ADVICE = "This desk is its owner's alone: run `comfyrelay open` for the page, or send the owner's secret as a token."
# Whether it is alive, and how a page gets its session.
OPEN = frozenset({"/healthz", "/readyz", LINK_PATH})
# Here every call has a permission of its own: the token of a worker, or the signature of a URL.
OWN_PERMISSION = ("/api/worker/", "/files/")


class OwnerOnly:
    """Every call needs the owner's secret, or a session that was begun with it."""

    def __init__(self, app: ASGIApp, *, context: Context, has_password: bool) -> None:
        self._app = app
        self._context = context
        self._open = OPEN | {SIGN_IN_PATH} if has_password else OPEN
        self._closed_page = sign_in_page if has_password else closed_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or self._is_open(scope["path"]) or await self._is_owner(scope):
            await self._app(scope, receive, send)
            return
        answer = self._closed_page() if scope["path"] == "/" else problem_response(Unauthorized(ADVICE))
        assert answer is not None
        await answer(scope, receive, send)

    async def _is_owner(self, scope: Scope) -> bool:
        connection = HTTPConnection(scope)
        kind, _, secret = connection.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer":
            secret = connection.cookies.get(self._context.session_cookie, "")
        user = await self._context.user_of(secret) if secret else None
        assert self._context.owner is not None
        # others may have had accounts here, from when anybody could make one
        return user is not None and user.id == self._context.owner.user.id

    def _is_open(self, path: str) -> bool:
        return path in self._open or path.startswith(OWN_PERMISSION)
