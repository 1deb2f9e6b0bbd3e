"""Read the server's queue once for all runs that need their position."""

import asyncio
from typing import Any

from comfyrelay.http_client import Http

# The response contains whole graphs: a server could not serve one request per run.
SHARED_SECONDS = 2.0


class QueueReader:
    def __init__(self, http: Http) -> None:
        self._http = http
        self._read_at = float("-inf")
        self._last: asyncio.Task[dict[str, Any]] | None = None

    async def recent(self) -> dict[str, Any]:
        """Return a queue at most 2 seconds old. Good enough for a position, not to conclude that a run is missing."""
        now = asyncio.get_running_loop().time()
        if self._last is None or _failed(self._last) or now - self._read_at > SHARED_SECONDS:
            self._read_at = now
            self._last = asyncio.create_task(self.now())
        return await asyncio.shield(self._last)

    async def now(self) -> dict[str, Any]:
        return await self._http.object("/queue")


def _failed(read: asyncio.Task[dict[str, Any]]) -> bool:
    return read.done() and (read.cancelled() or read.exception() is not None)
