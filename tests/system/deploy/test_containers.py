"""The services of the compose file work from a browser on the host."""

import asyncio
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.support.chromium import PATIENCE_MS
from tests.support.compose_files import composed, example, of_kind
from tests.support.media_samples import video
from tests.support.paths import ROOT
from tests.support.processes import Service
from tests.support.server_processes import free_port
from tests.support.web_app import record_page
from tests.support.world import PATIENCE_SECONDS
from tests.system.browser.server_setup import PRINTED, set_up

FILLED = {name: value or f"{name.lower().replace('_', '')}0123456789abcdef" for name, value in example().items()}
BIN = Path(sysconfig.get_path("scripts"))
MOVIE_SECONDS = 2

_FETCH = """async ([path, body]) => {
  const init = body && {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)};
  return (await (await fetch(path, init ?? {})).json()).data;
}"""
_PLAY = """(url) => new Promise((done, fail) => {
  const video = document.body.appendChild(document.createElement("video"));
  video.onloadedmetadata = () => { video.currentTime = video.duration - 0.5; };
  video.onseeked = () => done(video.currentTime);
  video.onerror = () => fail(new Error(video.error.message));
  video.src = url;
})"""
pytestmark = pytest.mark.asyncio(loop_scope="session")


def service(name: str) -> Any:
    return composed(FILLED)["services"][name]


class ComposedProcesses:
    """The services of the compose file, run as local processes on free ports."""

    def __init__(self, folder: Path, databases: Mapping[str, str]) -> None:
        self._folder = folder
        self.port = {name: free_port() for name in ("server", "s3", "comfyui", "worker")}
        s3, server = f"127.0.0.1:{self.port['s3']}", f"{{}}:{self.port['server']}"
        self._places = {
            # the browser resolves this name, but the resolver of this machine may not
            "s3.localhost:9000": s3,
            "127.0.0.1:9000": s3,
            "server:8420": server.format("127.0.0.1"),
            "localhost:8420": server.format("localhost"),
            "127.0.0.1:8420": server.format("127.0.0.1"),
            "comfyui:8188": f"127.0.0.1:{self.port['comfyui']}",
            "127.0.0.1:8188": f"127.0.0.1:{self.port['comfyui']}",
            "127.0.0.1:9100": f"127.0.0.1:{self.port['worker']}",
            **databases,
        }

    def text(self, text: str) -> str:
        for before, after in self._places.items():
            text = text.replace(before, after)
        return text

    def environment(self, name: str) -> dict[str, str]:
        return {key: self.text(value) for key, value in service(name).get("environment", {}).items()}

    def words(self, name: str) -> list[str]:
        """Return the command with local folders and ports."""
        found = {"-dir=/data": f"-dir={self._folder / 's3'}", "-s3.port=9000": f"-s3.port={self.port['s3']}"}
        found |= {"0.0.0.0": "127.0.0.1", "-ip.bind=0.0.0.0": "-ip.bind=127.0.0.1"}
        found |= {"8188": str(self.port["comfyui"]), "9100": str(self.port["worker"])}
        return [found.get(word, word) for word in service(name)["command"]]

    def comfyrelay(self, name: str, **more: str) -> Service:
        environment = {"HOME": str(self._folder), **self.environment(name), **more}
        return Service(name, *self.words(name), environment=environment, log=self._folder / f"{name}.log")

    @asynccontextmanager
    async def started(self, process: Service) -> AsyncIterator[None]:
        await process.start()
        try:
            await self.wait_until_healthy([sys.executable, *(self.text(word) for word in _check(process.name))], {})
            yield
        finally:
            await process.kill()

    async def wait_until_healthy(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Wait until the health check succeeds."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                process = await asyncio.create_subprocess_exec(
                    *words, env=dict(environment), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
                if await process.wait() == 0:
                    return
                # there is no signal for an opened port
                await asyncio.sleep(0.05)


@asynccontextmanager
async def s3(processes: ComposedProcesses, folder: Path) -> AsyncIterator[None]:
    """Run the storage, whose internal ports are also free ports."""
    own = {"PATH": os.environ["PATH"], "HOME": str(folder), **processes.environment("s3")}
    program, *options = service("s3")["entrypoint"]
    inner = [
        f"-{part}.{kind}={free_port()}"
        for part, kind in product(("master", "volume", "filer", "admin", "s3"), ("port", "port.grpc"))
        if (part, kind) != ("s3", "port")
    ]
    words = [str(BIN / program), *options, *processes.words("s3"), *inner, "-s3.port.iceberg=0", "-s3.port.lance=0"]
    (folder / "s3").mkdir()
    with (folder / "s3.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*words, env=own, stdout=log, stderr=log)
    try:
        [_, *check] = service("s3")["healthcheck"]["test"]
        await processes.wait_until_healthy([processes.text(word) for word in check], own)
        yield
    finally:
        process.kill()
        await process.wait()


@pytest_asyncio.fixture(loop_scope="session")
async def databases(postgres_url: str) -> AsyncIterator[dict[str, str]]:
    """Create the databases of the compose file under unique names."""
    name = f"composed_{free_port()}"
    databases = {f"relay_{role}": f"{name}_{role}" for role in ("central", "tenants")}
    postgres = service("postgres")
    assert postgres["environment"]["POSTGRES_DB"] == "relay_central"
    assert composed(FILLED)["configs"]["shards"]["content"] == "CREATE DATABASE relay_tenants;"
    connection = await asyncpg.connect(postgres_url.format("postgres"))
    for database in databases.values():
        await connection.execute(f"CREATE DATABASE {database}")
    address = f"postgresql://relay:{FILLED['POSTGRES_PASSWORD']}@postgres/"
    yield {f"{address}{before}": postgres_url.format(after) for before, after in databases.items()}
    for database in databases.values():
        await connection.execute(f"DROP DATABASE {database} WITH (FORCE)")
    await connection.close()


@pytest.mark.journey
async def test_browser_on_the_host_sets_up_the_composed_services(
    databases: dict[str, str], tmp_path: Path, chromium: Browser, built_app: None
) -> None:
    processes = ComposedProcesses(tmp_path, databases)
    at = {"COMFYRELAY_DATA_DIR": str(tmp_path / "server"), "COMFYRELAY_PORT": str(processes.port["server"])}
    server, comfyui = processes.comfyrelay("server", **at), processes.comfyrelay("comfyui")
    worker = processes.comfyrelay("worker", COMFYRELAY_WORKER_DATA_DIR=str(tmp_path / "worker"))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(s3(processes, tmp_path))
        for process in (server, comfyui):
            await stack.enter_async_context(processes.started(process))
        public_url = processes.environment("server")["COMFYRELAY_PUBLIC_URL"]
        page = await _page(stack, chromium, public_url)
        page_log = record_page(page)
        printed = PRINTED.search(server.text())
        assert printed is not None, server.text()
        assert printed[1].startswith(public_url)
        await page.goto(printed[1])

        async def start_worker(_command: str) -> None:
            await stack.enter_async_context(processes.started(worker))

        await set_up(page, start_worker, fleet=processes.environment("worker")["FLEET_SLUG"])
        assert page_log.complaints == []
        # the index of the video is at the end, and Chromium requests that range
        movie = video(frames=25 * MOVIE_SECONDS, size=(320, 240))
        assert await page.evaluate(_PLAY, await _upload(page, movie)) == pytest.approx(MOVIE_SECONDS - 0.5)
        # the browser resolves the name that the compose file gives to the storage
        [alias] = service("s3")["networks"]["default"]["aliases"]
        found = await page.goto(f"http://{alias}:{processes.port['s3']}/healthz")
        assert found is not None
        assert found.ok


async def _page(stack: AsyncExitStack, chromium: Browser, url: str) -> Page:
    context = await chromium.new_context(base_url=url)
    stack.push_async_callback(context.close)
    context.set_default_timeout(PATIENCE_MS)
    return await context.new_page()


async def _upload(page: Page, content: bytes) -> str:
    """Upload a video as the user of the page; return the URL of the file."""
    announced = {"mime_type": "video/mp4", "size": len(content), "original_filename": "clip.mp4"}
    created = await page.evaluate(_FETCH, ["/api/videos/uploads", announced])
    async with httpx.AsyncClient() as http:
        (await http.put(created["upload_url"], content=content, headers=created["upload_headers"])).raise_for_status()
    url: str = (await page.evaluate(_FETCH, [f"/api/videos/uploads/{created['file']['id']}", None]))["url"]
    return url


def _check(name: str) -> list[str]:
    """Return arguments of the health check of a service or its image, after `python`."""
    own = service(name).get("healthcheck")
    if own is not None:
        found: list[str] = own["test"]
        return found[2:]
    [check] = of_kind(ROOT / service(name)["build"]["dockerfile"], "HEALTHCHECK")
    words: list[str] = json.loads(check.partition("CMD ")[2])
    return words[1:]
