"""Call the user API. A call returns the data of the response, or raises an error with advice."""

from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ssl import PROTOCOL_TLS_CLIENT, SSLContext
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import TypeAdapter, ValidationError

from comfyrelay.errors import ComfyRelayError, ConfigurationError, ControlPlaneUnreachable, InvalidInput, Unauthorized
from comfyrelay.http_client import BoundedClient, is_loopback, object_in, read_bounded
from comfyrelay.protocol.base import AnswerBody, Page, Request, checked
from comfyrelay.protocol.problems import DESK_CHALLENGE, error_from_response
from comfyrelay.system.owner_secret import Pass, pass_for

T = TypeVar("T")
B = TypeVar("B")
A = TypeVar("A", bound=AnswerBody)
DEFAULT_URL = "http://127.0.0.1:8420"
# A batch of 10,000 items takes seconds to accept, and longer under load.
_TIMEOUT = httpx.Timeout(connect=5.0, read=120.0, write=60.0, pool=None)
_MAX_FIELDS = 5
_ADMIN_PATH = "/api/admin/"


@dataclass(frozen=True, slots=True)
class ActionResult(Generic[T]):
    """The changed object, such as a job or a batch, and the server's message."""

    data: T
    message: str


class _OwnersPass(httpx.Auth):
    """Adds the secret of the user's own desk, read for each call, because a desk may start or stop at any time."""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        sent = self._sign(request)
        response = yield request
        # The desk may just have started.
        if response.status_code == httpx.codes.UNAUTHORIZED and self._sign(request) != sent:
            yield request

    def _sign(self, request: httpx.Request) -> Pass | None:
        found = pass_for(str(request.url))
        if found is not None:
            request.headers["Authorization"] = f"Bearer {found.secret}"
            # The secret is sent only to this address, and to no other address that the name resolves to. The Host
            # header is kept.
            request.url = request.url.copy_with(host=found.host)
        return found


class Calls:
    """A connection to one server, with the caller's credentials."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self.url = _checked_url(url)
        self._is_local = is_loopback(urlsplit(self.url).hostname or "")
        self._has_token = bool(token)
        self.http = BoundedClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            auth=None if token else _OwnersPass(),
            timeout=_TIMEOUT,
            # A server on this machine is called without a proxy.
            trust_env=not self._is_local,
            # Loading certificates takes longer than a request. A context without certificates trusts no server.
            verify=SSLContext(PROTOCOL_TLS_CLIENT) if self._is_local and self.url.startswith("http:") else True,
        )

    async def close(self) -> None:
        await self.http.aclose()

    async def get(self, path: str, answer: type[B], **query: Any) -> B:
        params = {name: value for name, value in query.items() if value is not None}
        return (await self._call("GET", path, answer, params=params)).data

    async def post(self, path: str, answer: type[B], body: Mapping[str, Any] | None = None) -> ActionResult[B]:
        return await self._call("POST", path, answer, json=body)

    async def patch(self, path: str, answer: type[B], body: Mapping[str, Any]) -> ActionResult[B]:
        """Change the given fields. Null restores a default."""
        return await self._call("PATCH", path, answer, json=body)

    async def send(
        self, path: str, answer: type[B], request: type[Request], *, method: str = "POST", **fields: Any
    ) -> ActionResult[B]:
        """Validate a request in the same way as the server, and send it."""
        try:
            body = checked(request, **{name: value for name, value in fields.items() if value is not None})
        except InvalidInput as error:
            raise _with_field_names(error) from None
        return await self._call(method, path, answer, json=body.model_dump(mode="json", exclude_unset=True))

    async def delete(self, path: str, answer: type[B], **query: Any) -> ActionResult[B]:
        return await self._call("DELETE", path, answer, params=query)

    async def pages(self, path: str, item: type[A], **query: Any) -> AsyncIterator[A]:
        """Yield the items of a list, fetched page by page."""
        cursor: str | None = None
        while True:
            page = await self.page(path, item, **query, cursor=cursor)
            for found in page.items:
                yield found
            cursor = page.next_cursor
            if cursor is None:
                return

    async def page(self, path: str, item: type[A], **query: Any) -> Page[A]:
        return await self.get(path, Page[item], **query)  # type: ignore[valid-type]

    @asynccontextmanager
    async def stream(
        self, path: str, *, headers: Mapping[str, str], silence_seconds: float
    ) -> AsyncIterator[httpx.Response]:
        """Open a streaming response. It fails after `silence_seconds` without data."""
        timeout = httpx.Timeout(silence_seconds, connect=_TIMEOUT.connect)
        try:
            async with self.http.stream("GET", path, headers=headers, timeout=timeout) as response:
                if not response.is_success:
                    raise self._refusal(await read_bounded(response))
                yield response
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    async def _call(self, method: str, path: str, answer: type[B], **options: Any) -> ActionResult[B]:
        try:
            response = await self.http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if not response.is_success:
            raise self._refusal(response)
        body = object_in(response)
        try:
            return ActionResult(TypeAdapter(answer).validate_python(body.get("data")), str(body.get("message") or ""))
        except ValidationError as error:
            raise self._not_comfyrelay(response) from error

    def _refusal(self, response: httpx.Response) -> ComfyRelayError:
        match error_from_response(response):
            case None:
                return self._not_comfyrelay(response)
            case Unauthorized():
                return Unauthorized(self._sign_in_advice(response))
            case InvalidInput() as refusal:
                return _with_field_names(refusal)
            case refusal:
                return refusal

    def _not_comfyrelay(self, response: httpx.Response) -> ControlPlaneUnreachable:
        return ControlPlaneUnreachable(
            f"The server at {self.url} is not ComfyRelay (status {response.status_code}). Check the address."
        )

    def _sign_in_advice(self, response: httpx.Response) -> str:
        if self._has_token:
            return f"{self.url} refused the token in COMFYRELAY_TOKEN: it is wrong or no longer valid."
        is_desk = response.headers.get("WWW-Authenticate") == DESK_CHALLENGE
        if is_desk and self._is_local:
            return (
                f"{self.url} requires authentication. A desk accepts commands of the user who started it. As another "
                "user, set COMFYRELAY_TOKEN to an API token, or to the content of the desk's file owner-secret."
            )
        if not is_desk and _ADMIN_PATH in response.url.path:
            return (
                f"{self.url} needs an administrator's token: set COMFYRELAY_TOKEN (`comfyrelay admin create` prints "
                "one)."
            )
        return f"{self.url} requires authentication. Set COMFYRELAY_TOKEN to one of your API tokens."

    def _unreachable(self, error: httpx.HTTPError) -> ControlPlaneUnreachable:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            # A desk needs no token.
            command = "comfyrelay server" if self._has_token else "comfyrelay up"
            advice = f"Start it with: {command}" if self._is_local else "Check the address in --url or COMFYRELAY_URL."
            return ControlPlaneUnreachable(f"There is no response at {self.url}. {advice}")
        if isinstance(error, httpx.TimeoutException):
            return ControlPlaneUnreachable(f"{self.url} takes too long to answer.")
        return ControlPlaneUnreachable(f"The connection to {self.url} was lost.")


def _checked_url(url: str) -> str:
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        is_good = is_good and parts.username is None and not parts.query and not parts.fragment
    except ValueError:
        is_good = False
    if not is_good:
        # The address may contain a password, so the message does not repeat it.
        raise ConfigurationError(f"This is not the address of a ComfyRelay server. Use the form {DEFAULT_URL}.")
    return text.rstrip("/")


def _with_field_names(error: InvalidInput) -> InvalidInput:
    # Often the detail equals the message of the only field.
    fields = [f"{key}: {text}" for key, text in error.errors.items() if text not in error.detail]
    more = len(fields) - _MAX_FIELDS
    parts = [error.detail, *fields[:_MAX_FIELDS], *([f"And {more} more."] if more > 0 else [])]
    return InvalidInput(" ".join(parts), errors=error.errors)
