"""HTTP client for Comfy Cloud: retries when the service is busy and explains key and payment errors."""

import asyncio
from typing import Any

import httpx

from comfyrelay.error_text import user_sentence
from comfyrelay.errors import (
    ComfyError,
    Fault,
    GraphRefused,
    PaymentRequired,
    RateLimited,
    ServerRefused,
    ServerUnreachable,
)
from comfyrelay.http_client import Http, object_in
from comfyrelay.retry import Backoff

_BUSY = frozenset({429, 500, 502, 503, 504})
_LONGEST_PAUSE_SECONDS = 60.0
_PAYMENT = {
    "PAYMENT_REQUIRED": "its credits are used up",
    "CLOUD_SUBSCRIPTION_REQUIRED": "it needs an active subscription",
    "FREE_TIER_EXHAUSTED": "its free runs are used up",
    "PARTNER_NODE_PAYMENT_REQUIRED": "a partner node in this graph must be paid for",
    "MODEL_PAYMENT_REQUIRED": "a model in this graph must be paid for",
}


class CloudHttp(Http):
    """Retry requests while the service is busy, at most `retries` times."""

    def __init__(self, url: str, *, api_key: str, retries: int, first_pause_seconds: float) -> None:
        super().__init__(url, headers={"X-API-Key": api_key})
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
        """Send a request that is not safe to retry."""
        return await super().send(method, path, **options)

    def refusal(self, response: httpx.Response) -> ComfyError:
        return cloud_error(response)

    async def pause(self, attempt: int, response: httpx.Response | None = None) -> None:
        """Wait before the next attempt, at least as long as the service requests."""
        wanted = retry_after(response) if response is not None else None
        await asyncio.sleep(self._backoff.delay(attempt + 1, at_least=min(wanted or 0.0, _LONGEST_PAUSE_SECONDS)))


def is_busy(response: httpx.Response) -> bool:
    """Whether the request may succeed later. The service also uses 429 for unpaid accounts, which is not retried."""
    return response.status_code in _BUSY and error_type(response) not in _PAYMENT


def cloud_error(response: httpx.Response) -> ComfyError:
    """Convert an error response of Comfy Cloud into an exception."""
    status, kind, raw = response.status_code, error_type(response), response.text[:2000]
    reason = user_sentence(error_message(response) or raw)
    if status == 402 or kind in _PAYMENT:
        why = _PAYMENT.get(kind or "", reason)
        return PaymentRequired(f"Comfy Cloud rejected the run for this account: {why}.", raw=raw)
    if status == 401:
        return ServerRefused("Comfy Cloud does not accept this API key.", raw=raw)
    if status == 429:
        wait = retry_after(response)
        return RateLimited(f"Comfy Cloud is too busy for this account: {reason}", raw=raw, retry_after_seconds=wait)
    if status in (400, 413, 422):
        return GraphRefused(f"Comfy Cloud refused the request: {reason}", raw=raw)
    fault = Fault.JOB if status in (403, 404) else Fault.WORKER
    return ServerRefused(f"Comfy Cloud answered with {status}: {reason}", fault=fault, raw=raw)


def retry_after(response: httpx.Response) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else None


def error_type(response: httpx.Response) -> str | None:
    match object_in(response):
        case {"error": {"type": str() as kind}} | {"code": str() as kind}:
            return kind
    return None


def error_message(response: httpx.Response) -> str | None:
    match object_in(response):
        case {"error": {"message": str() as text}} | {"message": str() as text} | {"error": str() as text}:
            return text
    return None
