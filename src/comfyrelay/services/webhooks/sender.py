"""Sending one message to a URL that a user chose: never to an address inside our own network.

The name is resolved here, the addresses are looked at, and the connection is made to an address that was looked at: a
name that answers differently the second time gains nothing.
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
from comfyrelay.domain.webhooks import INTO_PRIVATE, is_public, url_problem

log = structlog.get_logger(__name__)

TIMEOUT_SECONDS = 10.0
MOST_ANSWER_BYTES = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class SendResult:
    """What came back: a status code, or why there is none."""

    status_code: int | None = None
    error: str | None = None

    @property
    def is_ok(self) -> bool:
        return self.status_code is not None and 200 <= self.status_code < 300


class Unsendable(Exception):
    """It cannot be sent there."""


class WebhookSender:
    def __init__(self, *, allow_private: bool, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._allow_private = allow_private
        self._timeout_seconds = timeout_seconds
        self._client: httpx.AsyncClient | None = None
        # Threads of its own: names that take for ever to resolve must not keep files and passwords waiting.
        self._resolver = ThreadPoolExecutor(8, thread_name_prefix="webhook-names")

    async def send(self, url: str, body: str, headers: Mapping[str, str]) -> SendResult:
        """Send a message once. Never raises for what the other side does or does not do."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._send(httpx.URL(url), body, headers)
        except TimeoutError:
            return SendResult(error=f"There was no answer within {self._timeout_seconds:g} seconds.")
        except (Unsendable, httpx.InvalidURL) as error:
            return SendResult(error=str(error))
        except httpx.HTTPError as error:
            return SendResult(error=f"There was no answer ({type(error).__name__}).")
        except Exception:
            # one message that nobody thought of must not hold up the others
            log.exception("webhook.not_sent")
            return SendResult(error="It could not be sent.")

    async def close(self) -> None:
        self._resolver.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _send(self, url: httpx.URL, body: str, headers: Mapping[str, str]) -> SendResult:
        if (problem := url_problem(str(url))) is not None:
            raise Unsendable(problem)
        *others, last = await self._addresses(url)
        for address in others:
            with contextlib.suppress(httpx.ConnectError):
                return await self._post(url, address, body, headers)
        return await self._post(url, last, body, headers)

    async def _addresses(self, url: httpx.URL) -> list[str]:
        """Where the host is, as far as we may go there."""
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._resolver, _resolve, url.host, port)
        except (OSError, UnicodeError):
            raise Unsendable("The host cannot be found.") from None
        allowed = [each for each in found if self._allow_private or is_public(each)]
        if not allowed:
            raise Unsendable(INTO_PRIVATE)
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
            # the certificate must be the host's, not the address's
            extensions={"sni_hostname": url.raw_host.decode("ascii")},
        )
        response = await self._http().send(request, stream=True)
        try:
            await _read_a_little(response)
        finally:
            await response.aclose()
        sent = SendResult(status_code=response.status_code)
        return sent if sent.is_ok else replace(sent, error=f"The answer was {response.status_code}.")

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            # No proxy of the environment: it would connect where we did not look. No connection is kept: two hosts
            # at one address must not share one.
            self._client = httpx.AsyncClient(
                trust_env=False,
                follow_redirects=False,
                timeout=self._timeout_seconds,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            )
        return self._client


def _resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, in the order in which the system would try them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def _read_a_little(response: httpx.Response) -> None:
    """What is answered does not matter, and whoever answers without end is not listened to."""
    read = 0
    with contextlib.suppress(httpx.HTTPError):
        async for piece in response.aiter_raw(MOST_ANSWER_BYTES):
            read += len(piece)
            if read >= MOST_ANSWER_BYTES:
                return
