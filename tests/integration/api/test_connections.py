"""Connections that are too slow, too many or too large, and proxies in between."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from structlog.testing import capture_logs

from comfyrelay.http_client import listen
from comfyrelay.server.app import create_app
from comfyrelay.server.http import connections
from comfyrelay.server.main import serving
from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from comfyrelay.storage.local import Receiver
from tests.support.api import FLEET_SECRET, PASSWORD, SECRETS
from tests.support.full import full_only
from tests.support.world import GRAPH, PROMPT, SqliteBackend

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
BEGUN = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


class Served:
    """A server on a socket."""

    def __init__(self, engine: Engine, port: int) -> None:
        self.engine = engine
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    async def send_raw(self, data: bytes) -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        return reader, writer

    async def token(self, email: str = "ada@example.com") -> str:
        user = await self.engine.accounts.sign_in.register(email=email, password=PASSWORD)
        return (await self.engine.accounts.sign_in.issue(user, name="test")).secret

    async def get(self, path: str, *headers: str) -> Connection:
        return await self.send_raw("\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode())

    async def begin_body(self, path: str = "/api/login", *headers: str) -> Connection:
        """Start a request whose body the application waits for."""
        more = "".join(f"{header}\r\n" for header in headers)
        reader, writer = await self.send_raw(
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{more}"
            "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{".encode()
        )
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        return reader, writer


@asynccontextmanager
async def served(backend: SqliteBackend, folder: Path, **settings: Any) -> AsyncIterator[Served]:
    async with backend.databases(["main"]) as (central, shards, _clock):
        own = Settings(data_dir=folder, database_url=central, shards=shards, **settings)
        engine = Engine(own, signing_secrets=SECRETS.signing)
        app = create_app(engine, SECRETS)
        with listen("127.0.0.1", 0) as listener:
            async with serving(app, listener):
                yield Served(engine, listener.getsockname()[1])


@pytest.mark.parametrize(
    "sent", [b"", BEGUN, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + BEGUN, *full_only(b"\r\n", b"G")]
)
async def test_incomplete_headers_time_out(sqlite_backend: SqliteBackend, tmp_path: Path, sent: bytes) -> None:
    with capture_logs() as lines:
        async with served(sqlite_backend, tmp_path, header_seconds=0.2) as server:
            reader, writer = await server.send_raw(sent)
            answer = await reader.read()
            writer.close()
    assert answer == b"" if not sent.strip() else answer.rpartition(b"HTTP/1.1 408")[1] != b""
    [line] = [item for item in lines if item["event"] == "requests.half_open_closed"]
    assert (line["too_slow"], line["half_open"]) == (1, 0)


async def test_oldest_incomplete_request_is_closed_over_the_limit(
    sqlite_backend: SqliteBackend, tmp_path: Path
) -> None:
    async with served(sqlite_backend, tmp_path, max_half_open_requests=3) as server:
        oldest, *others = [await server.send_raw(BEGUN) for _ in range(4)]
        assert (await oldest[0].read()).startswith(b"HTTP/1.1 408")
        # the others stay open, and are answered once they are complete
        for reader, writer in others:
            writer.write(b"\r\n")
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        for _, writer in (oldest, *others):
            writer.close()


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n", b"\r\n\r\n" + BEGUN])
async def test_oversized_headers_are_refused(sqlite_backend: SqliteBackend, tmp_path: Path, end: bytes) -> None:
    with capture_logs() as lines:
        async with served(sqlite_backend, tmp_path) as server:
            reader, writer = await server.send_raw(BEGUN + b"X: " + b"x" * 100_000 + end)
            assert b" 200 " not in await reader.read()
            writer.close()
    # The reason is the length, not the time limit.
    assert [line["too_long"] for line in lines if line["event"] == "requests.half_open_closed"] == [1]


async def test_quoted_cookies_are_not_parsed(
    sqlite_backend: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []

    def unquote(value: str) -> str:
        parsed.append(value)
        return value

    monkeypatch.setattr("http.cookies._unquote", unquote)
    async with served(sqlite_backend, tmp_path) as server:
        cookies = f'Cookie: a="{"x" * 100}"; comfyrelay_session={await server.token()}; b= \xa0"\\a\\a"'
        pages = [await server.get(path, cookies, "Connection: close") for path in ("/api/me", "/queue", "/healthz")]
        assert b"ada@example.com" in await pages[0][0].read()
        for reader, _ in pages[1:]:
            assert (await reader.read()).startswith(b"HTTP/1.1 ")
        close_all(*pages)
    assert parsed
    assert not [value for value in parsed if '"' in value]


async def test_answered_request_does_not_wait_for_its_body(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    head = (
        b"POST /api/workflows HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9999999\r\n\r\n"
    )
    async with served(sqlite_backend, tmp_path, header_seconds=0.2) as server:
        reader, writer = await server.send_raw(head + b"{")
        assert b" 401 " in await reader.readline()
        writer.write(b" ")
        # this read would never end if the server waited for the rest of the body
        assert b"unauthorized" in await reader.read()
        writer.close()


async def test_early_answered_connection_is_closed_without_its_body(
    sqlite_backend: SqliteBackend, tmp_path: Path
) -> None:
    async with served(sqlite_backend, tmp_path, header_seconds=0.2) as server:
        reader, writer = await server.send_raw(b"PUT /files/a?x=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\nx")
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


async def test_anonymous_bodies_are_limited_in_size_and_time(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
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
        body, *idle = [
            await server.begin_body(),
            await server.send_raw(BEGUN + b"\r\n"),
            await server.send_raw(BEGUN + b"\r\n"),
        ]
        for reader, _ in idle:
            await reader.readuntil(b'"OK"}')
        for _ in range(3):
            reader, writer = await server.send_raw(BEGUN + b"Connection: close\r\n\r\n")
            assert b" 200 " in await reader.readline()
            await reader.read()
            writer.close()
        # the oldest answered connection was closed, but none that waits for an answer
        assert await idle[0][0].read() == b""
        body[1].write(b"}")
        assert b" 422 " in await body[0].readline()
        for _, writer in (body, *idle):
            writer.close()


async def answer_of(connection: Connection) -> tuple[int, bytes]:
    """Read one response, and leave the connection open."""
    head = await connection[0].readuntil(b"\r\n\r\n")
    length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
    return int(head.split()[1]), await connection[0].readexactly(int(length.partition(b":")[2]))


def close_all(*connections: Connection) -> None:
    for _, writer in connections:
        writer.close()


@pytest.mark.parametrize("proxies", [[], ["127.0.0.0/8"]], ids=["direct", "proxied"])
async def test_event_streams_of_a_user_are_limited(
    sqlite_backend: SqliteBackend, tmp_path: Path, proxies: list[str]
) -> None:
    async with served(sqlite_backend, tmp_path, max_connections_per_caller=3, trusted_proxies=proxies) as server:
        ada, bob = [f"Authorization: Bearer {await server.token(name)}" for name in ("ada@x.com", "bob@x.com")]
        # opened at once, so that no stream has subscribed when the limit is checked
        streams = [await server.get("/api/events", ada) for _ in range(4)]
        answers = [(await answer_of(stream), stream) for stream in streams]
        assert sorted(status for (status, _), _ in answers) == [200, 200, 200, 429]
        [refusal] = [body for (status, body), _ in answers if status == 429]
        assert b"You have 3 open connections" in refusal
        assert b"COMFYRELAY_MAX_CONNECTIONS_PER_CALLER" in refusal
        other = await server.get("/api/me", bob)
        assert (await answer_of(other))[0] == 200
        # a stream that ends makes room
        ended = next(stream for (status, _), stream in answers if status == 200)
        ended[1].close()
        await ended[1].wait_closed()
        while (again := await answer_of(await server.get("/api/me", ada, "Connection: close")))[0] == 429:
            # the server notices the end of the stream a little later
            pass
        assert again[0] == 200
        close_all(other, *streams)


async def test_idle_connection_of_a_user_makes_room_for_another(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    async with served(sqlite_backend, tmp_path, max_connections_per_caller=2) as server:
        ada = f"Authorization: Bearer {await server.token()}"
        connections = []
        for _ in range(4):
            connections.append(await server.get("/api/me", ada))
            assert (await answer_of(connections[-1]))[0] == 200
        for reader, _ in connections[:2]:
            assert await reader.read() == b""
        close_all(*connections)


async def test_idle_connection_of_an_address_is_closed_over_its_limit(
    sqlite_backend: SqliteBackend, tmp_path: Path
) -> None:
    with capture_logs() as lines:
        async with served(sqlite_backend, tmp_path, max_connections_per_address=2) as server:
            idle = [await server.get("/healthz") for _ in range(2)]
            for connection in idle:
                assert (await answer_of(connection))[0] == 200
            body = await server.begin_body()
            assert await idle[0][0].read() == b""
            # both remaining connections wait for a response, so a third is refused
            other = await server.begin_body()
            assert await idle[1][0].read() == b""
            refused = await server.get("/healthz")
            assert await refused[0].read() == b""
            close_all(body, other, refused, *idle)
    line = next(item for item in lines if item["event"] == "requests.half_open_closed")
    assert line["too_many_connections_of_one"] == 1


async def test_workers_of_one_address_poll_beyond_its_limit(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    async with served(sqlite_backend, tmp_path, max_connections_per_address=2) as server:
        await server.engine.catalogue.workflows.create(
            slug="clip",
            graph=GRAPH,
            properties=[PROMPT],
            output_node_id="3",
            output_extension="png",
            output_mime_type="image/png",
        )
        await server.engine.workers.fleets.create(slug="home", workflow_slugs=["clip"])
        polls = []
        for number in range(5):
            worker = {"worker_id": f"gpu-{number}", "fleet_slug": "home"}
            async with httpx.AsyncClient(base_url=server.url, headers={"X-Fleet-Secret": FLEET_SECRET}) as http:
                token = (await http.post("/api/worker/register", json=worker)).json()["data"]["token"]
            body = json.dumps({"worker_id": f"gpu-{number}", "wait_seconds": 0.2})
            polls.append(
                f"POST /api/worker/poll HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                f"Authorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
            )
        connections = []
        for poll in polls:
            connections.append(await server.send_raw(poll))
            assert (await answer_of(connections[-1]))[0] == 200
        # all connections are still open, and park again
        for (_, writer), poll in zip(connections, polls, strict=True):
            writer.write(poll)
        assert [(await answer_of(connection))[0] for connection in connections] == [200] * 5
        close_all(*connections)


async def test_callers_behind_a_proxy_have_their_own_limits(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    limits = {"max_connections_per_address": 2, "trusted_proxies": ["127.0.0.0/8"]}
    async with served(sqlite_backend, tmp_path, **limits) as server:
        ada, bob = (f"X-Forwarded-For: 203.0.113.{number}" for number in (1, 2))
        bodies = [await server.begin_body("/api/login", ada) for _ in range(2)]
        status, refusal = await answer_of(refused := await server.get("/healthz", ada))
        assert (status, b"Your address has 2 open connections" in refusal) == (429, True)
        other = await server.get("/healthz", bob)
        assert (await answer_of(other))[0] == 200
        # an answered request does not count, although the proxy keeps its connection
        bodies[0][1].write(b"}")
        assert (await answer_of(bodies[0]))[0] == 422
        refused[1].write(f"GET /healthz HTTP/1.1\r\nHost: x\r\n{ada}\r\n\r\n".encode())
        assert (await answer_of(refused))[0] == 200
        close_all(other, refused, *bodies)


async def test_idle_connection_without_authentication_is_closed(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    async with served(sqlite_backend, tmp_path, anonymous_idle_seconds=0.2) as server:
        ada = f"Authorization: Bearer {await server.token()}"
        known, anonymous = await server.get("/api/me", ada), await server.get("/healthz")
        assert (await answer_of(known))[0] == (await answer_of(anonymous))[0] == 200
        async with asyncio.timeout(20):
            assert await anonymous[0].read() == b""
        known[1].write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await answer_of(known))[0] == 200
        close_all(known, anonymous)


async def test_every_idle_connection_is_closed_eventually(sqlite_backend: SqliteBackend, tmp_path: Path) -> None:
    async with served(sqlite_backend, tmp_path, idle_seconds=0.2, trusted_proxies=["127.0.0.0/8"]) as server:
        connection = await server.get("/healthz")
        assert (await answer_of(connection))[0] == 200
        async with asyncio.timeout(20):
            assert await connection[0].read() == b""
        close_all(connection)


async def test_caller_that_reads_nothing_is_dropped(
    sqlite_backend: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: asyncio.Queue[dict[str, int]] = asyncio.Queue()
    monkeypatch.setattr(connections, "MAX_STALL_SECONDS", 0.2)
    monkeypatch.setattr(connections, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(connections, "log", SimpleNamespace(warning=lambda _event, **counts: closed.put_nowait(counts)))
    async with served(sqlite_backend, tmp_path) as server:
        objects = server.engine.objects
        size = 64 * 1024**2
        await objects.put("tenants/a/film.mp4", b"x" * size)
        url = urlsplit(await objects.sign_download("tenants/a/film.mp4", ttl_seconds=60))
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        writer.write(f"GET {url.path}?{url.query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        async with asyncio.timeout(20):
            assert (await closed.get())["stalled"] == 1
        received = 0
        with suppress(ConnectionError):
            while chunk := await reader.read(1024**2):
                received += len(chunk)
        assert received < size
        writer.close()


async def begin_upload(server: Served, path: str, *, for_worker: bool = False) -> Connection:
    """Start an upload that the application waits for."""
    signed = await server.engine.objects.sign_upload(
        path, content_type="image/png", size=1_000_000, ttl_seconds=60, for_worker=for_worker
    )
    url = urlsplit(signed.url)
    connection = await server.send_raw(
        f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nExpect: 100-continue\r\n"
        "Content-Length: 1000000\r\n\r\n".encode()
    )
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        assert await connection[0].readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    return connection


@pytest.mark.parametrize(("for_worker", "accepted"), [(False, 2), (True, 6)])
async def test_uploads_of_an_address_are_limited_except_those_of_workers(
    sqlite_backend: SqliteBackend, tmp_path: Path, for_worker: bool, accepted: int
) -> None:
    async with served(sqlite_backend, tmp_path, max_connections_per_address=2) as server:
        uploads = [
            await begin_upload(server, f"tenants/tenant-{number % 3}/{number}.png", for_worker=for_worker)
            for number in range(6)
        ]
        assert [reader.at_eof() for reader, _ in uploads] == [number >= accepted for number in range(6)]
        close_all(*uploads)


async def test_upload_that_stops_is_closed(
    sqlite_backend: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_STALL_SECONDS", 0.2)
    with capture_logs() as lines:
        async with served(sqlite_backend, tmp_path) as server:
            reader, writer = await begin_upload(server, "tenants/a/1.png")
            writer.write(b"x" * 10)
            async with asyncio.timeout(20):
                assert (await reader.read()).startswith(b"HTTP/1.1 408")
            writer.close()
    [line] = [item for item in lines if item["event"] == "requests.half_open_closed"]
    assert line["stalled"] == 1


async def test_form_that_stops_is_closed(
    sqlite_backend: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_STALL_SECONDS", 0.2)
    with capture_logs() as lines:
        async with served(sqlite_backend, tmp_path) as server:
            reader, writer = await server.send_raw(
                b"POST /api/v2/assets HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=x\r\n"
                b"Content-Length: 1000\r\nExpect: 100-continue\r\n"
                + f"Authorization: Bearer {await server.token()}\r\n\r\n".encode()
            )
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"--x\r\n")
            async with asyncio.timeout(20):
                assert (await reader.read()).startswith(b"HTTP/1.1 408")
            writer.close()
    [line] = [item for item in lines if item["event"] == "requests.half_open_closed"]
    assert line["stalled"] == 1


async def test_upload_to_slow_storage_is_not_closed(
    sqlite_backend: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_STALL_SECONDS", 0.5)
    is_writable, has_waited = asyncio.Event(), asyncio.Event()
    write, end = Receiver.write, connections.ConnectionLimits._end_stalled_upload

    async def slow_write(receiver: Receiver, piece: bytes) -> None:
        await is_writable.wait()
        await write(receiver, piece)

    def note_wait(limits: connections.ConnectionLimits, connection: connections.LimitedConnection) -> None:
        end(limits, connection)
        has_waited.set()

    monkeypatch.setattr(Receiver, "write", slow_write)
    monkeypatch.setattr(connections.ConnectionLimits, "_end_stalled_upload", note_wait)
    async with served(sqlite_backend, tmp_path) as server:
        connection = await begin_upload(server, "tenants/a/1.png")
        connection[1].write(b"x" * 1_000_000)
        async with asyncio.timeout(20):
            await has_waited.wait()
            is_writable.set()
            assert (await answer_of(connection))[0] == 200
        close_all(connection)


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
        slow, writer = await server.send_raw(
            b"POST /api/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{"
        )
        idle, other = await server.send_raw(b"")
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
        served(sqlite_backend, tmp_path, trusted_proxies=proxies, rate_limit_per_minute=2) as server,
        httpx.AsyncClient(base_url=server.url) as http,
    ):
        answers = [
            await http.post("/api/login", json=body, headers={"X-Forwarded-For": f"203.0.113.{number}"})
            for number in range(3)
        ]
        assert answers[-1].status_code == status
