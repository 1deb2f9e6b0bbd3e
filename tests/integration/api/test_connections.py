"""Connections that are too slow, too many or too large, and proxies in between."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from comfyrelay.http_client import listen
from comfyrelay.server.app import create_app
from comfyrelay.server.main import serving
from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from tests.support.api import SECRETS
from tests.support.full import full_only
from tests.support.world import SqliteBackend

BEGUN = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


class Served:
    """A server on a socket."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    async def say(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        return reader, writer

    async def begin_body(self, path: str = "/api/login") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Start a call that keeps the application waiting for its body."""
        reader, writer = await self.say(
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{".encode()
        )
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        return reader, writer


@asynccontextmanager
async def served(backend: SqliteBackend, folder: Path, **settings: Any) -> AsyncIterator[Served]:
    async with backend.databases(["main"]) as (central, shards, _clock):
        own = Settings(data_dir=folder, database_url=central, shards=shards, **settings)
        app = create_app(Engine(own, signing_secrets=SECRETS.signing), SECRETS)
        with listen("127.0.0.1", 0) as listener:
            async with serving(app, listener):
                yield Served(listener.getsockname()[1])


@pytest.mark.parametrize(
    "sent", [b"", BEGUN, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + BEGUN, *full_only(b"\r\n", b"G")]
)
async def test_incomplete_headers_time_out(sqlite_backend: SqliteBackend, tmp_path: Path, sent: bytes) -> None:
    with capture_logs() as lines:
        async with served(sqlite_backend, tmp_path, header_seconds=0.2) as server:
            reader, writer = await server.say(sent)
            answer = await reader.read()
            writer.close()
    assert answer == b"" if not sent.strip() else answer.rpartition(b"HTTP/1.1 408")[1] != b""
    [line] = [item for item in lines if item["event"] == "requests.half_open_closed"]
    assert (line["too_slow"], line["half_open"]) == (1, 0)


async def test_oldest_incomplete_request_is_closed_over_the_limit(
    sqlite_backend: SqliteBackend, tmp_path: Path
) -> None:
    async with served(sqlite_backend, tmp_path, max_half_open_requests=3) as server:
        oldest, *others = [await server.say(BEGUN) for _ in range(4)]
        assert (await oldest[0].read()).startswith(b"HTTP/1.1 408")
        # the others stay open, and are answered once they are complete
        for reader, writer in others:
            writer.write(b"\r\n")
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        for _, writer in (oldest, *others):
            writer.close()


async def test_oversized_headers_are_refused(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    async with served(sqlite_backend, tmp_path) as server:
        reader, writer = await server.say(BEGUN + b"X: " + b"x" * 100_000)
        assert b" 408 " in await reader.readline()
        writer.close()


async def test_answered_request_does_not_wait_for_its_body(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    head = (
        b"POST /api/workflows HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9999999\r\n\r\n"
    )
    async with served(sqlite_backend, tmp_path, header_seconds=0.2) as server:
        reader, writer = await server.say(head + b"{")
        assert b" 401 " in await reader.readline()
        writer.write(b" ")
        # a server that waited for more data would never finish this
        assert b"unauthorized" in await reader.read()
        writer.close()


async def test_early_answered_connection_is_closed_without_its_body(
    sqlite_backend: SqliteBackend, tmp_path: Path
) -> None:
    async with served(sqlite_backend, tmp_path, header_seconds=0.2) as server:
        reader, writer = await server.say(b"PUT /files/a?x=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\nx")
        async with asyncio.timeout(20):
            assert b" 403 " in await reader.read()
        writer.close()


@pytest.mark.parametrize(
    ("limit", "why", "proxies"),
    [
        ("max_unfinished_bodies", "too_many_bodies", []),
        ("max_unfinished_bodies_per_address", "too_many_bodies_of_one", ["10.0.0.0/8"]),
    ],
)
async def test_oldest_endless_body_is_closed_over_the_limit(
    sqlite_backend: SqliteBackend, tmp_path: Path, limit: str, why: str, proxies: list[str]
) -> None:
    with capture_logs() as lines:
        async with served(sqlite_backend, tmp_path, trusted_proxies=proxies, **{limit: 3}) as server:
            oldest, *others = [await server.begin_body() for _ in range(4)]
            assert (await oldest[0].read()).startswith(b"HTTP/1.1 408")
            # the others stay open, and are answered once they are complete
            for reader, writer in others:
                writer.write(b"}")
                assert b" 422 " in await reader.readline()
            for _, writer in (oldest, *others):
                writer.close()
    [line] = [item for item in lines if item["event"] == "requests.half_open_closed"]
    assert (line[why], line["bodies"]) == (1, 3)


async def test_trusted_proxy_is_exempt_from_the_address_limit(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    limits = {"max_unfinished_bodies_per_address": 1, "trusted_proxies": ["127.0.0.0/8"]}
    async with served(sqlite_backend, tmp_path, **limits) as server:
        for reader, writer in [await server.begin_body() for _ in range(3)]:
            writer.write(b"}")
            assert b" 422 " in await reader.readline()
            writer.close()


async def test_anonymous_bodies_are_small_and_fast(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    async with (
        served(sqlite_backend, tmp_path, anonymous_body_seconds=0.2, payment_webhook_secret="p" * 32) as server,
        httpx.AsyncClient(base_url=server.url) as http,
    ):
        for path in ("/api/login", "/api/register"):
            answer = await http.post(path, json={"email": "x" * 17_000, "password": "x"})
            assert answer.status_code == 413
            assert "COMFYRELAY_MAX_ANONYMOUS_BODY_BYTES" in answer.text
        for path in ("/api/login", "/api/register", "/api/webhooks/payments"):
            reader, writer = await server.begin_body(path)
            assert b" 408 " in await reader.readline()
            writer.close()


async def test_idle_connection_is_closed_over_the_limit(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    async with served(sqlite_backend, tmp_path, max_connections=3) as server:
        body, *idle = [await server.begin_body(), await server.say(BEGUN + b"\r\n"), await server.say(BEGUN + b"\r\n")]
        for reader, _ in idle:
            await reader.readuntil(b'"OK"}')
        for _ in range(3):
            reader, writer = await server.say(BEGUN + b"Connection: close\r\n\r\n")
            assert b" 200 " in await reader.readline()
            await reader.read()
            writer.close()
        # the oldest answered connection was closed, and none that waits for an answer
        assert await idle[0][0].read() == b""
        body[1].write(b"}")
        assert b" 422 " in await body[0].readline()
        for _, writer in (body, *idle):
            writer.close()


def test_connection_limit_stays_below_the_file_limit() -> None:
    """The soft limit is raised to the hard limit."""
    code = (
        "import resource; from comfyrelay.server.http.connections import limit_to_open_files\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 1000))\n"
        "print(limit_to_open_files(100), resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
        "print(limit_to_open_files(5000), resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed.split() == ["100", "356", "744", "1000"]


async def test_running_request_is_not_half_open(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    """The header timeout does not limit the body."""
    async with served(sqlite_backend, tmp_path, header_seconds=0.2) as server:
        slow, writer = await server.say(
            b"POST /api/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{"
        )
        idle, other = await server.say(b"")
        # the later connection has already timed out
        assert await idle.read() == b""
        writer.write(b"}")
        assert b" 422 " in await slow.readline()
        writer.close()
        other.close()


@pytest.mark.parametrize(("proxies", "status"), [([], 429), (["127.0.0.0/8"], 401), (["10.0.0.0/8"], 429)])
async def test_forwarded_address_counts_from_trusted_proxies_only(
    sqlite_backend: SqliteBackend, tmp_path: Path, proxies: list[str], status: int
) -> None:
    body = {"email": "ada@example.com", "password": "wrong"}
    async with (
        served(sqlite_backend, tmp_path, trusted_proxies=proxies, requests_per_minute=2) as server,
        httpx.AsyncClient(base_url=server.url) as http,
    ):
        answers = [
            await http.post("/api/login", json=body, headers={"X-Forwarded-For": f"203.0.113.{number}"})
            for number in range(3)
        ]
        assert answers[-1].status_code == status
