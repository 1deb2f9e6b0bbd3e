"""The server's queue, read once for all runs that want to know their place in it."""

import asyncio
from typing import Any

from comfyrelay.http_client import Http

# It carries whole graphs: many runs that each read it would be more than a server can say.
SHARED_SECONDS = 2.0


class QueueReader:
    def __init__(self, http: Http) -> None:
        self._http = http
        self._read_at = float("-inf")
        self._last: asyncio.Task[dict[str, Any]] | None = None

    async def recent(self) -> dict[str, Any]:
        """The queue as it was a moment ago: good for a place in it, not for saying that a run is gone."""
        now = asyncio.get_running_loop().time()
        if self._last is None or _failed(self._last) or now - self._read_at > SHARED_SECONDS:
            self._read_at = now
            self._last = asyncio.create_task(self.now())
        return await asyncio.shield(self._last)

    async def now(self) -> dict[str, Any]:
        return await self._http.object("/queue")


def _failed(read: asyncio.Task[dict[str, Any]]) -> bool:
    return read.done() and (read.cancelled() or read.exception() is not None)
