"""HTTP clients that protect against misbehaving servers, and the client of ComfyUI servers.

Transport errors of ComfyUI servers become ComfyRelay errors.
"""

import asyncio
import base64
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from functools import cache
from http.cookiejar import CookieJar
from ipaddress import ip_address
from pathlib import Path
from ssl import SSLContext
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import httpx

from comfyrelay.error_text import user_sentence
from comfyrelay.errors import ComfyError, ConfigurationError, Conflict, Fault, ServerRefused, ServerUnreachable
from comfyrelay.system.atomic import replacing

# The read timeout is long, because a server that is loading a model does not answer for a while.
_TIMEOUT = httpx.Timeout(connect=5.0, read=30.0, write=120.0, pool=None)
_CHUNK_BYTES = 256 * 1024
# More concurrent requests are not faster, and slow httpx down.
_MAX_CONCURRENT_REQUESTS = 16
# Limit for a response that is not streamed, after decompression. The node definitions of a large ComfyUI take 20 MB.
# httpcore limits headers to 100 KiB.
MAX_RESPONSE_BYTES = 256 * 1024**2
# These headers describe the body as sent, not the decoded body.
_TRANSFER_HEADERS = frozenset({"content-encoding", "content-length", "transfer-encoding"})


class ResponseTooLarge(httpx.RemoteProtocolError):
    """The response is larger than `MAX_RESPONSE_BYTES`."""


class NoCookies(CookieJar):
    """Ignores all cookies.

    The standard library's parser takes seconds for a malicious header, and a cookie jar shared by tenants would send
    the cookies from one tenant's receiver with messages of other tenants.
    """

    def extract_cookies(self, response: object, request: object) -> None:
        """Ignore the cookies of a response without parsing them."""


class BoundedClient(httpx.AsyncClient):
    """An httpx client without cookies that refuses responses of more than `MAX_RESPONSE_BYTES`, unless they are
    streamed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cookies=NoCookies(), **options)

    async def send(self, request: httpx.Request, *, stream: bool = False, **options: Any) -> httpx.Response:
        """Send a request. Raises `ResponseTooLarge` unless the caller streams the response."""
        response = await super().send(request, stream=True, **options)
        if stream:
            return response
        try:
            return await read_bounded(response)
        finally:
            await response.aclose()


class NotConnected(ServerUnreachable):
    """The connection failed, so nothing was sent."""


class PortClosed(NotConnected):
    """The server is not running or still starting."""


class Http:
    """A connection pool to one server. Follows no redirects, so a key is never sent elsewhere."""

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None) -> None:
        parts = _parse(url)
        # Messages show this URL.
        self.url = _without_login(parts)
        self.headers = {**_basic(parts), **(headers or {})}
        # A server on this machine is reached without a proxy.
        self.use_proxy = not is_loopback(parts.hostname or "")
        self._client = http_client(headers=self.headers, timeout=_TIMEOUT, trust_env=self.use_proxy)
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_REQUESTS)

    async def close(self) -> None:
        await self._client.aclose()

    async def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request and return the response, even if it has an error status. Raises `ServerUnreachable`."""
        self._check_open()
        try:
            # An upload may take a long time and must not delay a cancellation.
            async with nullcontext() if "files" in options else self._slots:
                return await self._client.request(method, f"{self.url}{path}", **options)
        except httpx.HTTPError as error:
            raise self.unreachable(error) from error

    async def json(self, method: str, path: str, **options: Any) -> Any:
        """Send a request and return the JSON of a successful response. Raises `ServerRefused` for any other."""
        response = await self.send(method, path, **options)
        if response.is_success:
            try:
                return response.json()
            except ValueError:
                raise ServerRefused(f"{self.url} is not a ComfyUI server: {path} returned no JSON.") from None
        raise self.refusal(response)

    async def object(self, path: str) -> dict[str, Any]:
        """Get a JSON object."""
        value = await self.json("GET", path)
        if not isinstance(value, dict):
            raise ServerRefused(f"{self.url} is not a ComfyUI server: {path} returned no JSON object.")
        return value

    async def post(self, path: str, body: Mapping[str, Any]) -> None:
        """Post a body. The response body is ignored."""
        response = await self.send("POST", path, json=body)
        if not response.is_success:
            raise self.refusal(response)

    @asynccontextmanager
    async def stream(self, method: str, url: str, **options: Any) -> AsyncIterator[httpx.Response]:
        """Open a response to read in chunks."""
        self._check_open()
        try:
            async with self._client.stream(method, url if "://" in url else f"{self.url}{url}", **options) as response:
                yield response
        except httpx.HTTPError as error:
            raise self.unreachable(error) from error

    def unreachable(self, error: httpx.HTTPError) -> ServerUnreachable:
        if isinstance(error, httpx.ConnectError) and _was_refused(error):
            return PortClosed(f"No server listens at {self.url}. Is ComfyUI running there?", raw=repr(error))
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return NotConnected(f"The server at {self.url} cannot be reached.", raw=repr(error))
        if isinstance(error, ResponseTooLarge):
            return ServerUnreachable(f"The server at {self.url} sent too much. {error}", raw=repr(error))
        return ServerUnreachable(f"The server at {self.url} does not answer.", raw=repr(error))

    def refusal(self, response: httpx.Response) -> ComfyError:
        """Return the error for a response with an error status."""
        status, text = response.status_code, response.text[:2000]
        if status == 413:
            detail = "The request is larger than ComfyUI allows. Start it with a larger --max-upload-size."
            return ServerRefused(detail, fault=Fault.JOB, raw=text)
        if status in (401, 403):
            detail = f"The server at {self.url} refused access ({status}). Check the address, the proxy and the key."
            return ServerRefused(detail, raw=text)
        path = response.request.url.path
        return ServerRefused(f"The server answered {path} with {status}: {user_sentence(text)}", raw=text)

    def _check_open(self) -> None:
        if self._client.is_closed:
            raise Conflict("This client is closed.")


async def save(pieces: AsyncIterator[bytes], to: Path) -> int:
    """Write a stream to a file that appears only when it is complete. Returns its size."""
    size = 0
    with replacing(to) as file:
        async for piece in pieces:
            # Writing to the page cache is faster than switching to a thread.
            size += file.write(piece)
    return size


def object_in(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of a response, or an empty one for any other body, such as the error page of a proxy."""
    try:
        value = response.json()
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


async def body_of(response: httpx.Response) -> AsyncIterator[bytes]:
    async for piece in response.aiter_bytes(_CHUNK_BYTES):
        yield piece


async def read_bounded(response: httpx.Response) -> httpx.Response:
    """Read the body of a response and return a response with it. Raises `ResponseTooLarge` at the limit."""
    pieces, size = [], 0
    async for piece in response.aiter_bytes():
        size += len(piece)
        if size > MAX_RESPONSE_BYTES:
            limit = MAX_RESPONSE_BYTES // 1024**2
            raise ResponseTooLarge(f"The response is larger than {limit} MiB.", request=response.request)
        pieces.append(piece)
    return httpx.Response(
        response.status_code,
        headers=[item for item in response.headers.multi_items() if item[0] not in _TRANSFER_HEADERS],
        content=b"".join(pieces),
        request=response.request,
        extensions=response.extensions,
        history=response.history,
    )


def http_client(*, trust_env: bool = True, **options: Any) -> httpx.AsyncClient:
    """Create an httpx client. Raises `ConfigurationError` if the proxy in the environment is invalid."""
    # The variables that httpx reads.
    file, folder = (os.environ.get(name) if trust_env else None for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
    try:
        return BoundedClient(verify=_tls_context(file, folder), trust_env=trust_env, **options)
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        raise ConfigurationError(f"The proxy in the environment cannot be used: {error}") from None


@cache
def _tls_context(file: str | None, folder: str | None) -> SSLContext:
    """Load the trusted certificates once for all clients, because loading takes longer than a request."""
    return httpx.create_ssl_context(trust_env=bool(file or folder))


def _parse(url: str) -> SplitResult:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        _ = parts.port
    except ValueError:
        parts = SplitResult("", "", "", "", "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        # The address may contain a password, so the message does not repeat it.
        raise ConfigurationError("This is not the address of a ComfyUI server. Use the form http://127.0.0.1:8188.")
    return parts


def without_login(url: str) -> str:
    """Return the address of a ComfyUI server without user name and password, for display."""
    return _without_login(_parse(url))


def without_password(url: str) -> str:
    """Return an address with the password of its login replaced by `…`."""
    start, separator, rest = url.partition("://")
    login, at, host = rest.rpartition("@")
    user, colon, _password = login.partition(":")
    return f"{start}{separator}{user}:…@{host}" if separator and at and colon else url


def _without_login(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


def _basic(parts: SplitResult) -> dict[str, str]:
    if parts.username is None:
        return {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return {"Authorization": f"Basic {base64.b64encode(login).decode()}"}


def origin_parts(origin: str) -> SplitResult:
    """Split an `Origin` header. All parts are empty if it is invalid."""
    try:
        return urlsplit(origin)
    except ValueError:
        return SplitResult("", "", "", "", "")


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _was_refused(error: BaseException | None) -> bool:
    """Whether a refused connection is the cause of an error."""
    if isinstance(error, BaseExceptionGroup):
        return any(_was_refused(exception) for exception in error.exceptions)
    return isinstance(error, ConnectionRefusedError) or (
        error is not None and (_was_refused(error.__cause__) or _was_refused(error.__context__))
    )


def free_port(wanted: int = 0) -> int:
    """Return a free loopback port: `wanted` if possible."""
    try:
        with socket.create_server(("127.0.0.1", wanted)) as listener:
            port: int = listener.getsockname()[1]
            return port
    except OSError:
        if not wanted:
            raise
        return free_port()


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=4096)
    except OSError as error:
        # Python appends the address, which the message already contains.
        reason = str(error.strerror or error).partition(" (while")[0]
        raise ConfigurationError(
            f"Cannot listen on {host}:{port} ({reason}). Choose another port with COMFYRELAY_PORT or `up --port`."
        ) from None
