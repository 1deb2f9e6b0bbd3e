"""HTTP clients share certificates, which load slowly, ignore cookies, and limit the size of responses."""

import gzip
import re
import shutil
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import certifi
import httpx
import pytest

import comfyrelay
from comfyrelay import http_client as module
from comfyrelay.client import Client
from comfyrelay.errors import ServerUnreachable
from comfyrelay.http_client import BoundedClient, Http, ResponseTooLarge, http_client

SOURCE = Path(comfyrelay.__file__).parent


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Set SSL_CERT_FILE to a new file; return the list of certificate files that are loaded."""
    found: list[str] = []
    load = ssl.SSLContext.load_verify_locations

    def recorded(context: ssl.SSLContext, cafile: Any = None, *others: Any) -> None:
        found.append(str(cafile))
        load(context, cafile, *others)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", recorded)
    monkeypatch.setenv("SSL_CERT_FILE", str(shutil.copy(certifi.where(), tmp_path / "own.pem")))
    return found


def test_certificates_are_loaded_once_for_all_clients(loads: list[str], tmp_path: Path) -> None:
    for _ in range(3):
        http_client()
    assert loads == [str(tmp_path / "own.pem")]


def test_clients_without_environment_do_not_share_its_certificates(loads: list[str], tmp_path: Path) -> None:
    http_client()
    http_client(trust_env=False)
    http_client(trust_env=False)
    assert loads.count(str(tmp_path / "own.pem")) == 1
    assert len(loads) <= 2


@pytest.mark.parametrize(
    ("url", "expected"), [("http://127.0.0.1:8420", 0), ("https://127.0.0.1:8420", 1), ("https://example.com", 1)]
)
def test_client_of_a_desk_on_this_machine_loads_no_certificates(loads: list[str], url: str, expected: int) -> None:
    Client(url)
    assert len(loads) == expected


class _Body(httpx.AsyncByteStream):
    """A body that yields chunks and records whether the connection was closed."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = chunks
        self.is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk

    async def aclose(self) -> None:
        self.is_closed = True


def client_with(answer: Callable[[httpx.Request], httpx.Response]) -> BoundedClient:
    return BoundedClient(transport=httpx.MockTransport(answer))


async def test_cookies_are_neither_parsed_nor_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        pytest.fail("The cookies were parsed.")

    monkeypatch.setattr("http.cookiejar.CookieJar.make_cookies", fail)
    cookies: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        cookies.append(request.headers.get("Cookie"))
        return httpx.Response(200, headers=[("Set-Cookie", "a=b"), ("Set-Cookie2", "a," * 1000)])

    async with client_with(answer) as client:
        await client.get("http://receiver.test")
        await client.get("http://receiver.test")
    assert cookies == [None, None]


async def test_response_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RESPONSE_BYTES", 10)
    body = _Body(b"12345", b"67890", b"1")
    async with client_with(lambda _: httpx.Response(200, stream=body)) as client:
        with pytest.raises(ResponseTooLarge):
            await client.get("http://receiver.test")
    assert body.is_closed


async def test_decompressed_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RESPONSE_BYTES", 1000)

    def answer(request: httpx.Request) -> httpx.Response:
        packed = gzip.compress(b"x" * int(request.url.params["size"]))
        return httpx.Response(201, headers={"Content-Encoding": "gzip", "X-Kept": "yes"}, stream=_Body(packed))

    async with client_with(answer) as client:
        response = await client.get("http://receiver.test?size=1000")
        assert (response.status_code, response.headers["X-Kept"], len(response.content)) == (201, "yes", 1000)
        with pytest.raises(ResponseTooLarge):
            await client.get("http://receiver.test?size=1001")


async def test_streamed_response_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RESPONSE_BYTES", 10)
    body = _Body(b"x" * 100)
    async with (
        client_with(lambda _: httpx.Response(200, stream=body)) as client,
        client.stream("GET", "http://receiver.test") as response,
    ):
        assert len(b"".join([piece async for piece in response.aiter_bytes()])) == 100


async def test_comfyui_that_sends_too_much_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RESPONSE_BYTES", 1024**2)
    body = _Body(b"x" * 1024**2, b"x")
    http = Http("http://127.0.0.1:8188")
    monkeypatch.setattr(http, "_client", client_with(lambda _: httpx.Response(200, stream=body)))
    with pytest.raises(ServerUnreachable, match=r"sent too much\. The response is larger than 1 MiB"):
        await http.object("/object_info")


def test_all_clients_are_bounded() -> None:
    unbounded = re.compile(r"httpx\.(Async)?Client\(|httpx\.(get|post|put|request|stream)\(")
    assert not [path for path in SOURCE.rglob("*.py") if unbounded.search(path.read_text(encoding="utf-8"))]
