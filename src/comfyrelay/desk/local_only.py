"""Nobody but this machine's own user: requests of a foreign page, or that came by a foreign name, are refused."""

from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from comfyrelay.errors import ConfigurationError, Forbidden
from comfyrelay.net import is_loopback, origin_parts
from comfyrelay.server.base.problems import problem_response
from comfyrelay.settings import Settings


class LocalOnly:
    """The browser must not be made to speak for the user: a page from elsewhere has another origin, and one that made
    its name lead here (DNS rebinding) has another host."""

    def __init__(self, app: ASGIApp, *, names: Collection[str]) -> None:
        self._app = app
        self._names = frozenset(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            host, origin = headers.get(b"host", ""), headers.get(b"origin")
            if host.lower() not in self._names or (origin is not None and not self._is_own(origin)):
                answer = problem_response(
                    Forbidden(f"The desk answers only at {sorted(self._names)[0]}, and only its own pages.")
                )
                assert answer is not None
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_own(self, origin: str) -> bool:
        parts = origin_parts(origin)
        return parts.scheme in ("http", "https") and parts.netloc.lower() in self._names


def own_names(settings: Settings) -> set[str]:
    """How this machine's own user can reach the desk; `ConfigurationError` when others could, too."""
    if not is_loopback(settings.host):
        raise ConfigurationError(
            f"The desk is for one person, so it listens on this machine only, not on {settings.host}. Unset "
            "COMFYRELAY_HOST, or run `comfyrelay server` for others."
        )
    hosts = {"127.0.0.1", "localhost", "[::1]", f"[{settings.host}]" if ":" in settings.host else settings.host}
    names = {f"{host}:{settings.port}" for host in hosts}
    return names | hosts if settings.port == 80 else names
