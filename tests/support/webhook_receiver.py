"""A server that receives webhooks and answers as configured."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from comfyrelay.http_client import listen
from tests.support.world import PATIENCE_SECONDS


@dataclass
class Receiver:
    url: str
    # Status codes of the next responses; later responses have 204.
    statuses: list[int] = field(default_factory=list)
    answer: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    # Responses wait until this event is set.
    free: asyncio.Event = field(default_factory=asyncio.Event)
    received: list[tuple[dict[str, str], str]] = field(default_factory=list)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def receive(self, request: web.Request) -> web.Response:
        body = (await request.read()).decode()
        async with self._news:
            self.received.append((dict(request.headers), body))
            self._news.notify_all()
        await self.free.wait()
        status = self.statuses.pop(0) if self.statuses else 204
        return web.Response(status=status, body=None if status == 204 else self.answer, headers=self.headers)

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), self._news:
            await self._news.wait_for(lambda: len(self.received) >= count)


@asynccontextmanager
async def open_receiver() -> AsyncIterator[Receiver]:
    listener = listen("127.0.0.1", 0)
    receiver = Receiver(f"http://127.0.0.1:{listener.getsockname()[1]}/hook")
    receiver.free.set()
    app = web.Application()
    app.router.add_post("/hook", receiver.receive)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    try:
        yield receiver
    finally:
        receiver.free.set()
        await runner.cleanup()
