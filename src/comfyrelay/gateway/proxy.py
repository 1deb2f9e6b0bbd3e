"""Pass requests and WebSockets on to a server, with the token of their owner."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

from aiohttp import (
    ClientError,
    ClientSession,
    ClientTimeout,
    ClientWebSocketResponse,
    DummyCookieJar,
    WSMsgType,
    WSServerHandshakeError,
    web,
)
from aiohttp.typedefs import Handler
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from comfyrelay.errors import ConfigurationError, ControlPlaneUnreachable, Unauthorized
from comfyrelay.http_client import is_loopback, origin_parts

LOOPBACK = "127.0.0.1"
# A response may be silent for as long as the server wants.
_TIMEOUT = ClientTimeout(total=None, sock_connect=10)
_CHECK_SECONDS = 30
_CHUNK_BYTES = 256 * 1024
_PING_SECONDS = 30
# These headers concern a single connection and are not passed on.
_CONNECTION_HEADERS = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# The gateway itself has checked these headers. Another login must not replace the token.
_OWN_HEADERS = frozenset({"authorization", "cookie", "host", "origin", "referer", "x-api-key"})
_Messages = web.WebSocketResponse | ClientWebSocketResponse
_logger = logging.getLogger("comfyrelay.gateway")


class Gateway:
    """Listens on loopback only. Use it with `async with`."""

    def __init__(self, url: str, *, token: str, port: int) -> None:
        """`url` is the address of ComfyUI's API of a server. Port 0 chooses a free one."""
        self._target = _checked(url)
        self._token = token
        self._port = port
        self._session: ClientSession | None = None
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    async def __aenter__(self) -> Self:
        is_local = is_loopback(urlsplit(self._target).hostname or "")
        self._session = ClientSession(
            headers={"Authorization": f"Bearer {self._token}"},
            # Bodies are passed on unchanged.
            auto_decompress=False,
            cookie_jar=DummyCookieJar(),
            timeout=_TIMEOUT,
            # A server on this machine is called without a proxy.
            trust_env=not is_local,
        )
        try:
            await self._check(self._session)
            await self._listen()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._close()

    async def _close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def _check(self, session: ClientSession) -> None:
        """Check that the server speaks ComfyUI's API and accepts the token."""
        try:
            async with asyncio.timeout(_CHECK_SECONDS), session.get(f"{self._target}/api/features") as response:
                status, kind = response.status, response.content_type
        except (ClientError, TimeoutError) as error:
            raise ControlPlaneUnreachable(f"No server answers at {self._target}.") from error
        if status == web.HTTPUnauthorized.status_code:
            raise Unauthorized(f"{self._target} refused the token in COMFYRELAY_TOKEN: it is wrong or no longer valid.")
        if status != web.HTTPOk.status_code or kind != "application/json":
            raise ConfigurationError(
                f"{self._target} is not the ComfyUI API of a ComfyRelay server. Its port is the "
                "server's COMFYRELAY_COMFYUI_API_PORT."
            )

    async def _listen(self) -> None:
        app = web.Application(middlewares=[self._own_pages_only])
        app.router.add_route("*", "/{path:.*}", self._answer)
        # Open event streams do not delay the shutdown.
        self._runner = web.AppRunner(app, access_log=None, logger=_logger, shutdown_timeout=0.1, auto_decompress=False)
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]

    @web.middleware
    async def _own_pages_only(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests from pages of other sites, and to other host names: a site may have rebound its name to this
        address."""
        host, origin = request.headers.get("Host", "").lower(), request.headers.get("Origin")
        names = {f"{name}:{self._port}" for name in (LOOPBACK, "localhost")}
        is_foreign = host not in names or (origin is not None and origin_parts(origin).netloc.lower() != host)
        if is_foreign or request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return _problem(403, "forbidden", f"This gateway answers only programs and pages of {self.url}.")
        if not request.raw_path.startswith("/"):
            # A URL that is appended to the server's address could name another host, which would get the token.
            return _problem(400, "invalid_request", "Send a path instead of a URL.")
        return await handler(request)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            if request.headers.get("Upgrade", "").lower() == "websocket":
                return await self._connect(request)
            return await self._pass_on(request)
        except WSServerHandshakeError as error:
            return _problem(error.status, "refused", f"{self._target} refused the WebSocket.")
        except (ClientError, TimeoutError):
            return _problem(502, "server_unreachable", f"{self._target} does not answer.")

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        body = request.content.iter_chunked(_CHUNK_BYTES) if request.can_read_body else None
        async with self._client.request(
            request.method,
            URL(f"{self._target}{request.raw_path}", encoded=True),
            headers=_end_to_end(request.headers, without=_OWN_HEADERS),
            data=body,
            allow_redirects=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        ) as found:
            headers = _end_to_end(found.headers, without=frozenset({"set-cookie"}))
            response = web.StreamResponse(status=found.status, reason=found.reason, headers=headers)
            await response.prepare(request)
            with suppress(ConnectionResetError):
                async for chunk in found.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
            return response

    async def _connect(self, request: web.Request) -> web.StreamResponse:
        url = URL(f"{self._target}{request.raw_path}", encoded=True)
        async with self._client.ws_connect(url, max_msg_size=0, heartbeat=_PING_SECONDS) as server:
            client = web.WebSocketResponse(max_msg_size=0, compress=False, heartbeat=_PING_SECONDS)
            await client.prepare(request)
            directions = {asyncio.create_task(_copy(client, server)), asyncio.create_task(_copy(server, client))}
            try:
                await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for direction in directions:
                    direction.cancel()
                await asyncio.gather(*directions, return_exceptions=True)
                await client.close(code=server.close_code or 1000)
            return client

    @property
    def _client(self) -> ClientSession:
        assert self._session is not None
        return self._session


async def _copy(source: _Messages, to: _Messages) -> None:
    """Copy messages until one side closes."""
    with suppress(ConnectionResetError):
        async for message in source:
            if message.type == WSMsgType.TEXT:
                await to.send_str(message.data)
            elif message.type == WSMsgType.BINARY:
                await to.send_bytes(message.data)


def _end_to_end(headers: CIMultiDictProxy[str], *, without: frozenset[str]) -> Mapping[str, str]:
    named = {name.strip().lower() for value in headers.getall("Connection", []) for name in value.split(",")}
    left_out = _CONNECTION_HEADERS | without | named
    return CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if name.lower() not in left_out and not name.lower().startswith(("sec-fetch-", "x-forwarded-"))
    )


def _problem(status: int, kind: str, message: str) -> web.Response:
    """Return an error in ComfyUI's format."""
    error = {"type": kind, "message": message, "details": "", "extra_info": {}}
    return web.json_response({"error": error, "node_errors": {}}, status=status)


def _checked(url: str) -> str:
    parts = origin_parts(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or parts.query:
        # The address may contain a password, so the message does not repeat it.
        raise ConfigurationError("This is not the address of a server. Use the form https://comfyui.relay.example.")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
