"""The samples in deploy/host work: proxies in front of a server, and systemd services."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from tests.support.api import PASSWORD
from tests.support.certificates import certificate_for
from tests.support.compose_files import DEPLOY
from tests.support.programs import output_of, program
from tests.support.server_processes import free_port, server_process
from tests.support.world import PATIENCE_SECONDS

HOST = DEPLOY / "host"
NAME = "relay.example.com"
UNITS = sorted(HOST.glob("*.service"))
# More bytes than proxies accept by default.
FILE = bytes(3_000_000)


@dataclass(frozen=True, kw_only=True)
class Site:
    """The ports of the proxy and of the server behind it, and a certificate."""

    folder: Path
    https: int
    http: int
    server: int
    certificate: Path
    key: Path

    @property
    def url(self) -> str:
        return f"https://{NAME}:{self.https}"


def caddy(site: Site) -> list[str]:
    """Return the words that start Caddy with the sample, which passed its own check."""
    sample = (HOST / "Caddyfile").read_text()
    own = f"{{\n\tadmin off\n\thttp_port {site.http}\n\thttps_port {site.https}\n}}\n"
    text = own + sample.replace("127.0.0.1:8420", f"127.0.0.1:{site.server}").replace(
        "\treverse_proxy", f"\ttls {site.certificate} {site.key}\n\treverse_proxy"
    )
    (site.folder / "Caddyfile").write_text(text)
    options = ("--adapter", "caddyfile", "--config", str(site.folder / "Caddyfile"))
    output_of(program("caddy"), "validate", *options)
    return [program("caddy"), "run", *options]


def nginx(site: Site) -> list[str]:
    """Return the words that start nginx with the sample, which passed its own check."""
    text = (HOST / "nginx.conf").read_text()
    for before, after in {
        "listen 443": f"listen 127.0.0.1:{site.https}",
        "listen 80": f"listen 127.0.0.1:{site.http}",
        "127.0.0.1:8420": f"127.0.0.1:{site.server}",
        "/etc/letsencrypt/live/relay.example.com/fullchain.pem": str(site.certificate),
        "/etc/letsencrypt/live/relay.example.com/privkey.pem": str(site.key),
    }.items():
        assert before in text
        text = text.replace(before, after)
    folders = "".join(f"{kind}_temp_path {site.folder}/{kind};\n" for kind in ("client_body", "proxy"))
    unused = "".join(f"{kind}_temp_path {site.folder}/{kind};\n" for kind in ("fastcgi", "uwsgi", "scgi"))
    (site.folder / "nginx.conf").write_text(
        f"daemon off;\npid {site.folder}/nginx.pid;\nerror_log stderr;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{folders}{unused}{text}}}\n"
    )
    options = ("-e", "stderr", "-p", str(site.folder), "-c", str(site.folder / "nginx.conf"))
    output_of(program("nginx"), "-t", *options)
    return [program("nginx"), *options]


@asynccontextmanager
async def serving(site: Site, words: list[str]) -> AsyncIterator[httpx.AsyncClient]:
    """Run the proxy; yield a client that uses the name in its certificate."""
    trust = ssl.create_default_context(cafile=str(site.certificate))
    environment = {"PATH": os.environ["PATH"], "HOME": str(site.folder)}
    with (site.folder / "proxy.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*words, env=environment, stdout=log, stderr=log)
    transport = httpx.AsyncHTTPTransport(verify=trust)
    client = httpx.AsyncClient(base_url=site.url, transport=_ToThisMachine(transport), timeout=PATIENCE_SECONDS)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS), client:
            await _until_open(site, process)
            yield client
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


class _ToThisMachine(httpx.AsyncBaseTransport):
    """Send requests for the name in the certificate to this machine."""

    def __init__(self, transport: httpx.AsyncHTTPTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.extensions["sni_hostname"] = NAME
        request.url = request.url.copy_with(host="127.0.0.1")
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        await self._transport.aclose()


async def _until_open(site: Site, process: asyncio.subprocess.Process) -> None:
    while process.returncode is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", site.https)
        except OSError:
            # poll until the port is open
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise AssertionError((site.folder / "proxy.log").read_text())


async def _administrator(folder: Path) -> str:
    async with Engine(Settings(data_dir=folder)) as engine:
        await engine.databases.upgrade()
        user = await engine.accounts.sign_in.register(email="ada@example.com", password=PASSWORD, is_admin=True)
        return (await engine.accounts.sign_in.issue(user, name="test")).secret


@pytest.mark.parametrize("proxy", [caddy, nginx])
async def test_proxy_passes_requests_files_and_event_streams(
    proxy: Callable[[Site], list[str]], tmp_path: Path
) -> None:
    https = free_port()
    data = tmp_path / "data"
    token = await _administrator(data)
    settings = {"DATA_DIR": str(data), "PUBLIC_URL": f"https://{NAME}:{https}", "TRUSTED_PROXIES": "127.0.0.1"}
    certificate, key = certificate_for(NAME, tmp_path, expires=datetime.now(UTC) + timedelta(days=30))
    async with server_process(settings) as server:
        port = server.http.base_url.port
        assert port is not None
        site = Site(folder=tmp_path, https=https, http=free_port(), server=port, certificate=certificate, key=key)
        async with serving(site, proxy(site)) as client:
            signed_in = {"Authorization": f"Bearer {token}"}
            assert (await client.get("/api/me", headers=signed_in)).status_code == 200
            for path in ("/healthz", "/readyz", "/metrics"):
                assert (await client.get(path)).status_code == 404
            announced = {"mime_type": "video/mp4", "size": len(FILE), "original_filename": "clip.mp4"}
            created = (await client.post("/api/videos/uploads", json=announced, headers=signed_in)).json()["data"]
            assert created["upload_url"].startswith(site.url)
            sent = await client.put(created["upload_url"], content=FILE, headers=created["upload_headers"])
            assert sent.is_success, sent.text
            async with client.stream("GET", "/api/events", headers=signed_in) as stream:
                # the stream remains open, so a proxy that buffers the response would send nothing
                assert await anext(stream.aiter_lines()) == ": events"


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    own = tmp_path / unit.name
    # systemd requires the program to exist
    own.write_text(unit.read_text().replace("/opt/comfyrelay/bin/comfyrelay", program("true")))
    assert output_of(program("systemd-analyze"), "verify", str(own)) == ""
