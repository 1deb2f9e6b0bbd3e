"""An S3 server, and an HTTP server for local files."""

import os
import re
import subprocess
import sysconfig
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
from aiohttp import web
from aiohttp.test_utils import TestServer

from comfyrelay.errors import ComfyRelayError, Conflict, Forbidden, NotFound
from comfyrelay.storage.headers import content_disposition
from comfyrelay.storage.local import LocalObjects
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.storage.signing import UrlGrant
from tests.support.compose_files import composed
from tests.support.server_processes import free_port

BUCKET = "bucket"
ACCESS_KEY = "AKIDTEST"
SECRET_KEY = "a-secret-key-for-tests"
SECRETS = ("the-signing-secret", "an-older-secret-that-only-verifies")


@contextmanager
def serve_s3(folder: Path) -> Iterator[str]:
    """Run rclone as an S3 server over a folder; yield its address."""
    (folder / BUCKET).mkdir(parents=True)
    command = [
        *(f"{sysconfig.get_path('scripts')}/rclone", "serve", "s3", str(folder), "--config", ""),
        *("--auth-key", f"{ACCESS_KEY},{SECRET_KEY}", "--addr", "127.0.0.1:0"),
        # allow uploads from every origin, as the CORS rule of a real bucket does for the server
        *("--allow-origin", "*"),
    ]
    log_path = folder.with_suffix(".log")
    # log into a file, because a full pipe would block the server
    with log_path.open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            while (found := re.search(r"http://[\d.]+:\d+", log_path.read_text(encoding="utf-8"))) is None:
                assert process.poll() is None, f"rclone exited without an address:\n{log_path.read_text()}"
                time.sleep(0.01)
            yield found[0]
        finally:
            process.terminate()


@contextmanager
def serve_composed_s3(folder: Path) -> Iterator[str]:
    """Run the storage of the compose file with its command on free ports; yield its address."""
    folder.mkdir(parents=True)
    s3 = composed(defaultdict(str))["services"]["s3"]
    ports = {"s3": free_port()}
    # Another instance may run on this machine, and each port needs a second port for gRPC.
    own = [f"-{name}.port={ports.setdefault(name, free_port())}" for name in ("master", "filer", "volume", "s3")]
    own += [f"-{name}.port.grpc={free_port()}" for name in ("master", "filer", "volume", "s3")]
    own += ["-s3.port.iceberg=0", "-s3.port.lance=0", f"-dir={folder}", "-ip.bind=127.0.0.1", f"-bucket={BUCKET}"]
    options: list[str] = [*s3["entrypoint"][1:], *s3["command"]]
    program = f"{sysconfig.get_path('scripts')}/weed"
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    url = f"http://127.0.0.1:{ports['s3']}"
    with (
        (folder / "weed.log").open("wb") as log,
        # If an option is repeated, the last value applies.
        subprocess.Popen([program, *options, *own], stdout=log, stderr=log, env=environment) as process,
    ):
        try:
            _wait_for(url, process)
            yield url
        finally:
            process.terminate()


def _wait_for(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the storage has ended"
        try:
            if httpx.get(f"{url}/healthz").is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"nothing answers at {url}")


@dataclass(kw_only=True)
class Clock:
    """A clock that shows the current time plus `later_seconds`."""

    later_seconds: float = 0

    def __call__(self) -> datetime:
        return datetime.fromtimestamp(datetime.now(UTC).timestamp() + self.later_seconds, UTC)


@asynccontextmanager
async def serve_files(root: Path, *, clock: Clock) -> AsyncIterator[LocalObjects]:
    """Serve the URLs of a local store on a free port."""
    app = web.Application(client_max_size=1024**3)
    server = TestServer(app)
    stores: list[LocalObjects] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await _handle(stores[0], request)
        except ComfyRelayError as error:
            status = {Forbidden: 403, NotFound: 404, Conflict: 409}.get(type(error), 422)
            return web.Response(status=status, text=error.detail)

    app.router.add_route("*", "/files/{path:.+}", handle)
    async with server:
        stores.append(LocalObjects(root, base_url=str(server.make_url("/")), secrets=SECRETS, clock=clock))
        yield stores[0]


async def _handle(store: LocalObjects, request: web.Request) -> web.StreamResponse:
    path = request.match_info["path"]
    grant = store.verify(request.method, path, request.query)
    if grant.method == "PUT":
        return await _receive(store, path, grant, request)
    stat = await store.stat(path)
    if stat is None:
        raise NotFound
    response = web.StreamResponse(headers={"Content-Type": grant.content_type or stat.content_type or ""})
    response.content_length = stat.size
    if grant.filename is not None:
        response.headers["Content-Disposition"] = content_disposition(grant.filename)
    await response.prepare(request)
    if request.method == "GET":
        async for piece in store.stream(path):
            await response.write(piece)
    return response


async def _receive(store: LocalObjects, path: str, grant: UrlGrant, request: web.Request) -> web.Response:
    grant.check_upload(content_type=request.headers.get("Content-Type"), content_length=request.content_length)
    async with store.receive(path, size=grant.size, max_size=grant.max_size, once=grant.once) as receiver:
        async for piece in request.content.iter_any():
            await receiver.write(piece)
    return web.Response()


async def paths_in(store: ObjectStore, prefix: str = "") -> list[str]:
    return sorted([entry.path async for entry in store.list(prefix)])


async def read(store: ObjectStore, path: str, *, start: int = 0, length: int | None = None) -> bytes:
    return b"".join([piece async for piece in store.stream(path, start=start, length=length)])
