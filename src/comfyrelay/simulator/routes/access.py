"""Middleware that decides who may call the simulator."""

import socket
from base64 import b64encode
from hmac import compare_digest
from ipaddress import ip_address

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from comfyrelay.http_client import is_loopback, origin_parts

# The user name in front of the secret, which has no meaning.
USER = "simulator"


def check_host(listen_host: str) -> Middleware:
    """Refuse requests with other host names, because another site may have rebound its name to this address."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        host = origin_parts(f"//{request.headers.get('Host', '')}").hostname or ""
        if not (is_loopback(host) if is_loopback(listen_host) else _cannot_be_rebound(host)):
            text = "This simulator does not accept requests for that host name. Use its address, such as 127.0.0.1."
            return web.Response(status=403, text=text)
        return await handler(request)

    return middleware


def check_secret(secret: str) -> Middleware:
    """Require the secret as a password, or as the first part of the path for programs that accept only an address."""
    wanted, prefix = b"Basic " + b64encode(f"{USER}:{secret}".encode()), f"/{secret}/".encode()

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        login = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        start = request.path[: len(prefix)].encode(errors="surrogateescape")
        if compare_digest(login, wanted) or compare_digest(start, prefix):
            return await handler(request)
        return web.Response(status=401, text="This simulator needs a password, which its owner knows.")

    return middleware


def _cannot_be_rebound(host: str) -> bool:
    """Whether a host is an address, or a name that public name servers do not resolve."""
    try:
        ip_address(host)
    except ValueError:
        return bool(host) and ("." not in host or host == socket.gethostname().lower())
    return True
