"""Two server processes behind one address act as one server, even when one of them dies."""

import asyncio
import contextlib
import itertools
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from tests.support.processes import Service
from tests.support.server_processes import free_port
from tests.support.web_app import record_page
from tests.support.whole_system import System
from tests.support.world import PATIENCE_SECONDS, PostgresBackend, memory_folder
from tests.system.browser.server import open_server, open_visitor, sign_in, url_of

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Balancer:
    """Pass each connection to the next server that accepts it."""

    def __init__(self, targets: Sequence[str]) -> None:
        self._targets = itertools.cycle([urlsplit(target) for target in targets])
        self._count = len(targets)
        self.served: set[int] = set()

    async def accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            their_reader, their_writer = await self._connect()
            with contextlib.closing(their_writer):
                await asyncio.wait(
                    [
                        asyncio.create_task(_pass_on(reader, their_writer)),
                        asyncio.create_task(_pass_on(their_reader, writer)),
                    ],
                    return_when=asyncio.FIRST_COMPLETED,
                )

    async def _connect(self) -> tuple[StreamReader, StreamWriter]:
        for target in itertools.islice(self._targets, self._count):
            with contextlib.suppress(OSError):
                found = await asyncio.open_connection(target.hostname, target.port)
                self.served.add(target.port or 0)
                return found
        raise ConnectionRefusedError


async def _pass_on(reader: StreamReader, writer: StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()


@asynccontextmanager
async def second_server(system: System) -> AsyncIterator[str]:
    port = free_port()
    environment = {**system.server.environment, "COMFYRELAY_PORT": str(port)}
    server = Service(
        *("second", "server", "--log-level", "info"), environment=environment, log=system.folder / "second.log"
    )
    await server.start()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS), httpx.AsyncClient() as http:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    await http.get(f"http://127.0.0.1:{port}/healthz")
                    break
                # there is no signal for an opened port
                await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.kill()


@pytest.mark.journey
async def test_page_stays_live_across_processes_and_when_one_dies(
    chromium: Browser, real_postgres_backend: PostgresBackend, s3_server: str, built_app: None
) -> None:
    with memory_folder() as folder:
        async with (
            open_server(folder, real_postgres_backend, s3_server, simulators=1) as system,
            second_server(system) as second,
        ):
            balancer = Balancer([url_of(system), second])
            server = await asyncio.start_server(balancer.accept, "127.0.0.1", 0)
            address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            effect = await system.plain_effect()
            await system.started(simulators=[system.simulator], api_base_url=address)
            async with server, open_visitor(chromium, system, url=address) as context:
                await sign_in(context, system, system.user_token)
                page = await context.new_page()
                page_log = record_page(page)
                await page.goto("/queue")
                await expect(page.get_by_role("heading", name="Queue", exact=True)).to_be_visible()
                # a job created on one server is reported by either
                await system.submit(effect, label="the first")
                await _is_done(page, "the first")
                assert len(balancer.served) == 2
                assert page_log.complaints == []
                await system.server.kill()
                system.http.base_url = httpx.URL(second)
                await system.submit(effect, label="the second")
                await _is_done(page, "the second")


async def _is_done(page: Page, label: str) -> None:
    unit = page.get_by_role("listitem").filter(has=page.get_by_role("button", name=label, exact=True))
    await expect(unit).to_contain_text("Done")
