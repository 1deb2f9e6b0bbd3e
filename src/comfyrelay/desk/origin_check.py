"""Refuse requests from foreign pages (CSRF) and under foreign host names (DNS rebinding)."""

import re
import socket
from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from comfyrelay.errors import Forbidden
from comfyrelay.http_client import is_loopback, origin_parts
from comfyrelay.server.http.problems import problem_response
from comfyrelay.settings import Settings

HTTP_PORTS = (80, 443)
WILDGPUS = ("0.0.0.0", "::")


class LocalOnly:
    """A page from elsewhere has another origin, and one that rebound its name has another host."""

    def __init__(self, app: ASGIApp, *, names: Collection[str], own_addresses: bool) -> None:
        """`own_addresses`: whether a request may also name the address it arrived at, which cannot be rebound."""
        self._app = app
        self._names = frozenset(names)
        self._own_addresses = own_addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            host, origin = headers.get(b"host", "").lower(), headers.get(b"origin")
            if not self._is_host(host, scope) or (origin is not None and not self._is_own(origin, host)):
                answer = problem_response(Forbidden(self._advice))
                assert answer is not None
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    @property
    def _advice(self) -> str:
        return (
            f"The desk answers only to its own names, such as {sorted(self._names)[0]}, and only its own pages. "
            "Further names are allowed with COMFYRELAY_DESK_ALLOWED_HOSTS."
        )

    def _is_host(self, host: str, scope: Scope) -> bool:
        return host in self._names or (self._own_addresses and host in _at_port(*scope["server"]))

    def _is_own(self, origin: str, host: str) -> bool:
        parts = origin_parts(origin)
        return parts.scheme in ("http", "https") and parts.netloc.lower() in {*self._names, host}


def own_names(settings: Settings, allowed: Collection[str] = ()) -> set[str]:
    """Host names of the desk with its port: this machine's names and the allowed ones."""
    hosts = ["127.0.0.1", "localhost", "::1"]
    if is_loopback(settings.host):
        hosts.append(settings.host)
    else:
        here = socket.gethostname().lower()
        hosts += [here, f"{here.partition('.')[0]}.local"]
    names = {name for host in hosts for name in _at_port(host, settings.port)}
    # a proxy has its own port, which browsers omit if it is the default
    return names | {*allowed} | {f"{each}:{settings.port}" for each in allowed if not re.search(r":\d+$", each)}


def address_here(host: str) -> str:
    """The address at which other machines reach this one."""
    if host not in WILDGPUS:
        return host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asked:
        try:
            # nothing is sent: the system only reports the source address
            asked.connect(("2001:db8::1" if ":" in host else "192.0.2.1", 9))
            return str(asked.getsockname()[0])
        except OSError:
            return socket.gethostname()


def _at_port(host: str, port: int) -> set[str]:
    name = f"[{host}]" if ":" in host else host
    return {f"{name}:{port}", *([name] if port in HTTP_PORTS else [])}
