"""Calls of the user API: a good answer is its data, a refusal one of our errors, and silence says what to do."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import httpx

from comfyrelay.errors import ComfyRelayError, ConfigurationError, ControlPlaneUnreachable, InvalidInput, Unauthorized
from comfyrelay.net import is_loopback, object_in
from comfyrelay.refusals import refusal_in

__all__ = ["DEFAULT_URL", "Calls", "Done"]

T = TypeVar("T")
DEFAULT_URL = "http://127.0.0.1:8420"
# A batch of 10,000 items takes seconds to accept, and longer where much else is going on.
_TIMEOUT = httpx.Timeout(connect=5.0, read=120.0, write=60.0, pool=None)
_MOST_FIELDS = 5


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """What became of a verb: the job or batch as it is now, and the server's sentence about it."""

    data: T
    message: str


class Calls:
    def __init__(self, url: str, *, token: str | None = None) -> None:
        self.url = _checked(url)
        self._has_token = bool(token)
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=_TIMEOUT,
            # a proxy is for other machines
            trust_env=not is_loopback(urlsplit(self.url).hostname or ""),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, path: str, **query: Any) -> Any:
        params = {name: value for name, value in query.items() if value is not None}
        return (await self._call("GET", path, params=params)).data

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Done[Any]:
        return await self._call("POST", path, json=body)

    async def delete(self, path: str) -> Any:
        return (await self._call("DELETE", path)).data

    async def pages(self, path: str, **query: Any) -> AsyncIterator[Any]:
        """The items of a list, page after page, asked for as they are needed."""
        cursor: str | None = None
        while True:
            page = await self.get(path, **query, cursor=cursor)
            for each in page["items"]:
                yield each
            cursor = page["next_cursor"]
            if cursor is None:
                return

    @asynccontextmanager
    async def stream(
        self, path: str, *, headers: Mapping[str, str], silence_seconds: float
    ) -> AsyncIterator[httpx.Response]:
        """An answer that is read as it comes."""
        timeout = httpx.Timeout(silence_seconds, connect=_TIMEOUT.connect)
        try:
            async with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
                if not response.is_success:
                    await response.aread()
                    raise self._refusal(response)
                yield response
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    async def _call(self, method: str, path: str, **options: Any) -> Done[Any]:
        try:
            response = await self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        answer = object_in(response)
        if response.is_success and "data" in answer:
            return Done(answer["data"], str(answer.get("message") or ""))
        raise self._refusal(response)

    def _refusal(self, response: httpx.Response) -> ComfyRelayError:
        match refusal_in(response):
            case None:
                return ControlPlaneUnreachable(
                    f"Something answers at {self.url}, but not like ComfyRelay (status {response.status_code}). "
                    "Is the address right?"
                )
            case Unauthorized():
                return Unauthorized(self._sign_in())
            case InvalidInput() as refusal:
                return InvalidInput(_with_fields(refusal.detail, refusal.errors), errors=refusal.errors)
            case refusal:
                return refusal

    def _sign_in(self) -> str:
        if self._has_token:
            return f"{self.url} does not take the token in COMFYRELAY_TOKEN: it is wrong, or no longer valid."
        return f"{self.url} wants to know who you are. Set COMFYRELAY_TOKEN to an API token of yours."

    def _unreachable(self, error: httpx.HTTPError) -> ControlPlaneUnreachable:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            here = is_loopback(urlsplit(self.url).hostname or "")
            advice = "Start it with: comfyrelay up" if here else "Check the address in --url or COMFYRELAY_URL."
            return ControlPlaneUnreachable(f"Nobody answers at {self.url}. {advice}")
        if isinstance(error, httpx.TimeoutException):
            return ControlPlaneUnreachable(f"{self.url} takes too long to answer.")
        return ControlPlaneUnreachable(f"The connection to {self.url} was lost.")


def _checked(url: str) -> str:
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        is_good = is_good and parts.username is None and not parts.query and not parts.fragment
    except ValueError:
        is_good = False
    if not is_good:
        # not repeated, for it may hold a password
        raise ConfigurationError(f"This is not the address of ComfyRelay. Write it like {DEFAULT_URL}.")
    return text.rstrip("/")


def _with_fields(detail: str, errors: Mapping[str, str]) -> str:
    # often the sentence itself is that of the only field
    told = [f"{key}: {text}" for key, text in errors.items() if text not in detail]
    more = len(told) - _MOST_FIELDS
    return " ".join([detail, *told[:_MOST_FIELDS], *([f"And {more} more."] if more > 0 else [])])
