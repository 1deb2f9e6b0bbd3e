"""Refuse requests from pages of other origins (CSRF), and requests under other host names (DNS rebinding)."""

import re
import socket
from collections.abc import Callable, Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from comfyrelay.errors import Forbidden
from comfyrelay.http_client import is_loopback, origin_parts
from comfyrelay.server.http.problems import problem_response
from comfyrelay.settings import Settings

HTTP_PORTS = (80, 443)
WILDCARDS = ("0.0.0.0", "::")


class LocalOnly:
    """Middleware that accepts only requests to the desk's own names, from its own pages.

    A page from another site has another origin, and a page that rebound its name has another host. With
    `allows_addresses`, a request may also name the address that it arrived at, which cannot be rebound.
    """

    def __init__(self, app: ASGIApp, *, find_names: Callable[[], Collection[str]], allows_addresses: bool) -> None:
        """`find_names` returns the names, which may change while the desk runs."""
        self._app = app
        self._find_names = find_names
        self._allows_addresses = allows_addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            names = self._find_names()
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            host, origin = headers.get(b"host", "").lower(), headers.get(b"origin")
            is_own_host = host in names or (self._allows_addresses and host in _with_port(*scope["server"]))
            if not is_own_host or (origin is not None and not _is_own_origin(origin, {*names, host})):
                answer = problem_response(
                    Forbidden(
                        f"The desk accepts only requests to its own names, such as {sorted(names)[0]}, and from "
                        "its own pages. COMFYRELAY_DESK_ALLOWED_HOSTS allows more names."
                    )
                )
                assert answer is not None
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_own_origin(origin: str, names: Collection[str]) -> bool:
    parts = origin_parts(origin)
    return parts.scheme in ("http", "https") and parts.netloc.lower() in names


def own_names(settings: Settings, allowed: Collection[str] = (), *, port: int | None = None) -> set[str]:
    """Return the host names of the desk with its port, or another one: the names of this machine, and the allowed
    ones."""
    port = settings.port if port is None else port
    hosts = ["127.0.0.1", "localhost", "::1"]
    if is_loopback(settings.host):
        hosts.append(settings.host)
    else:
        hostname = socket.gethostname().lower()
        hosts += [hostname, f"{hostname.partition('.')[0]}.local"]
    names = {name for host in hosts for name in _with_port(host, port)}
    # A proxy has its own port, which browsers omit if it is the default.
    return names | {*allowed} | {f"{name}:{port}" for name in allowed if not re.search(r":\d+$", name)}


def reachable_address(host: str) -> str:
    """Return the address at which other machines reach this one."""
    if host not in WILDCARDS:
        return host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            # This sends nothing: the system only chooses the source address.
            probe.connect(("2001:db8::1" if ":" in host else "192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


def url_elsewhere(settings: Settings) -> str | None:
    """Return the URL for other machines, if they may connect."""
    if is_loopback(settings.host):
        return None
    host = reachable_address(settings.host)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def _with_port(host: str, port: int) -> set[str]:
    name = f"[{host}]" if ":" in host else host
    return {f"{name}:{port}", *([name] if port in HTTP_PORTS else [])}
