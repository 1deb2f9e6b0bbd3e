"""HTTP client for the Comfy API, with retries while the service is busy and explanations of its errors."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from comfyrelay.error_text import user_sentence
from comfyrelay.errors import (
    ComfyError,
    Fault,
    GraphRefused,
    NotInstalled,
    PaymentRequired,
    RateLimited,
    ServerRefused,
    ServerUnreachable,
)
from comfyrelay.http_client import Http, object_in
from comfyrelay.retry import Backoff

_BUSY = frozenset({429, 500, 502, 503, 504})
_LONGEST_PAUSE_SECONDS = 60.0


class ApiHttp(Http):
    """Retry requests while the service is busy, at most `retries` times."""

    def __init__(self, url: str, *, api_key: str, retries: int, first_pause_seconds: float) -> None:
        super().__init__(url, headers={"Authorization": f"Bearer {api_key}"})
        self.retries = retries
        self._backoff = Backoff(first_seconds=first_pause_seconds, max_seconds=_LONGEST_PAUSE_SECONDS)

    async def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        for attempt in range(self.retries):
            try:
                response = await self.send_once(method, path, **options)
            except ServerUnreachable:
                await self.pause(attempt)
                continue
            if not is_busy(response):
                return response
            await self.pause(attempt, response)
        return await self.send_once(method, path, **options)

    async def send_once(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request without retries."""
        return await super().send(method, path, **options)

    def refusal(self, response: httpx.Response) -> ComfyError:
        return api_error(response)

    async def pause(self, attempt: int, response: httpx.Response | None = None) -> None:
        """Wait before the next attempt, at least as long as the service requests."""
        wanted = retry_after(response) if response is not None else None
        await asyncio.sleep(self._backoff.delay(attempt + 1, at_least=min(wanted or 0.0, _LONGEST_PAUSE_SECONDS)))

    def path_of(self, link: object, default: str) -> str:
        """Return the path of a link in a response, relative to the service's address.

        Links to other origins are not followed, because those would receive the key.
        """
        base, parts = urlsplit(self.url), urlsplit(link if isinstance(link, str) else "")
        is_ours = not parts.netloc or (parts.scheme, parts.netloc) == (base.scheme, base.netloc)
        # If the service's address has a path prefix, the link's path must start with it.
        if not is_ours or not parts.path.startswith(f"{base.path}/"):
            return default
        return parts._replace(scheme="", netloc="", path=parts.path.removeprefix(base.path), fragment="").geturl()


def is_busy(response: httpx.Response) -> bool:
    """Whether the request may succeed on a later attempt."""
    return response.status_code in _BUSY


def api_error(response: httpx.Response) -> ComfyError:
    """Convert an error response into an exception."""
    status, code, raw = response.status_code, error_code(response), response.text[:2000]
    reason = user_sentence(error_message(response) or raw)
    if status in (400, 409, 413, 422) and code != "deployment_stopped":
        return _graph_error(response, reason, raw)
    match status:
        case 401:
            return ServerRefused("The cloud service does not accept this API key.", raw=raw)
        case 402:
            return PaymentRequired(f"The cloud service rejected the run for this account: {reason}", raw=raw)
        case 429:
            detail, wait = f"The cloud service is too busy for this account: {reason}", retry_after(response)
            return RateLimited(detail, raw=raw, retry_after_seconds=wait)
    fault = Fault.JOB if status == 404 else Fault.WORKER
    return ServerRefused(f"The cloud service answered with {status}: {reason}", fault=fault, raw=raw)


def _graph_error(response: httpx.Response, reason: str, raw: str) -> ComfyError:
    missing = error_details(response).get("missing")
    if not isinstance(missing, list):
        return GraphRefused(f"The cloud service refused the request: {reason}", raw=raw)
    # Another ComfyRelay server lists the requirements that its workers are missing.
    types = [str(item.get("name")) for item in missing if isinstance(item, dict) and item.get("kind") == "node"]
    return NotInstalled(f"The cloud service cannot run this graph: {reason}", node_types=types, raw=raw)


def retry_after(response: httpx.Response) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else None


def error_code(response: httpx.Response) -> str | None:
    match object_in(response):
        case {"error": {"code": str() as code}}:
            return code
    return None


def error_message(response: httpx.Response) -> str | None:
    match object_in(response):
        case {"error": {"message": str() as text}}:
            return text
    return None


def error_details(response: httpx.Response) -> Mapping[str, Any]:
    match object_in(response):
        case {"error": {"details": dict() as details}}:
            return details
    return {}
