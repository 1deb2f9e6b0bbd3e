"""Send a message to a URL that a user chose, but never to an address inside the server's network.

The sender resolves the host, checks the addresses and connects to a checked address, so DNS rebinding has no effect.
"""

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import httpx
import structlog

from comfyrelay import __version__
from comfyrelay.domain.webhooks import NOT_PUBLIC_TEXT, is_public, url_problem
from comfyrelay.http_client import BoundedClient

log = structlog.get_logger(__name__)

TIMEOUT_SECONDS = 10.0
MAX_RESPONSE_BYTES = 1024
MAX_RESOLVERS = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class SendResult:
    """The status code of the response, or an error."""

    status_code: int | None = None
    error: str | None = None

    @property
    def is_ok(self) -> bool:
        return self.status_code is not None and 200 <= self.status_code < 300


class CannotSend(Exception):
    """The message cannot be sent to this URL."""


class WebhookSender:
    def __init__(self, *, allow_private: bool, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._allow_private = allow_private
        self._timeout_seconds = timeout_seconds
        self._client: httpx.AsyncClient | None = None
        # Slow DNS must not block the default threads, which are needed for files and passwords. There are more threads
        # than messages in flight per tenant.
        self._resolver = ThreadPoolExecutor(MAX_RESOLVERS, thread_name_prefix="webhook-names")

    async def send(self, url: str, body: str, headers: Mapping[str, str]) -> SendResult:
        """Send a message once. Errors of the receiver are returned rather than raised."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._send(httpx.URL(url), body, headers)
        except TimeoutError:
            return SendResult(error=f"No response within {self._timeout_seconds:g} seconds.")
        except (CannotSend, httpx.InvalidURL) as error:
            return SendResult(error=str(error))
        except httpx.HTTPError as error:
            return SendResult(error=f"No response ({type(error).__name__}).")
        except Exception:
            # An unexpected error must not block other messages.
            log.exception("webhook.send_failed")
            return SendResult(error="The message could not be sent.")

    async def close(self) -> None:
        self._resolver.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _send(self, url: httpx.URL, body: str, headers: Mapping[str, str]) -> SendResult:
        if (problem := url_problem(str(url))) is not None:
            raise CannotSend(problem)
        *others, last = await self._addresses(url)
        for address in others:
            with contextlib.suppress(httpx.ConnectError):
                return await self._post(url, address, body, headers)
        return await self._post(url, last, body, headers)

    async def _addresses(self, url: httpx.URL) -> list[str]:
        """Resolve the host to the addresses that the message may be sent to."""
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._resolver, _resolve, url.host, port)
        except (OSError, UnicodeError):
            raise CannotSend("The host cannot be found.") from None
        allowed = [address for address in found if self._allow_private or is_public(address)]
        if not allowed:
            raise CannotSend(NOT_PUBLIC_TEXT)
        return allowed

    async def _post(self, url: httpx.URL, address: str, body: str, headers: Mapping[str, str]) -> SendResult:
        request = self._http().build_request(
            "POST",
            url.copy_with(host=address),
            content=body.encode(),
            headers={
                "Host": url.netloc.decode("ascii"),
                "Content-Type": "application/json",
                "User-Agent": f"ComfyRelay/{__version__}",
                **headers,
            },
            # The certificate must match the host, not the address.
            extensions={"sni_hostname": url.raw_host.decode("ascii")},
        )
        response = await self._http().send(request, stream=True)
        try:
            await _read_start(response)
        finally:
            await response.aclose()
        sent = SendResult(status_code=response.status_code)
        return sent if sent.is_ok else replace(sent, error=f"The response was {response.status_code}.")

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            # Use no proxy from the environment, because it would connect to unchecked addresses. Use no keep-alive,
            # because two hosts at one address must not share a connection.
            self._client = BoundedClient(
                trust_env=False,
                follow_redirects=False,
                timeout=self._timeout_seconds,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            )
        return self._client


def _resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host in the system's order of preference."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def _read_start(response: httpx.Response) -> None:
    """Read the beginning of the response. The content does not matter and may be endless."""
    read = 0
    with contextlib.suppress(httpx.HTTPError):
        async for piece in response.aiter_raw(MAX_RESPONSE_BYTES):
            read += len(piece)
            if read >= MAX_RESPONSE_BYTES:
                return
