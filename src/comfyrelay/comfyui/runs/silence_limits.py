"""Limit how long a server may not respond: minutes while it loads a model, seconds if its port is closed."""

import asyncio

from comfyrelay.comfyui.runs.timeouts import RunTimeouts
from comfyrelay.errors import ComfyError
from comfyrelay.http_client import PortClosed


class SilenceLimit:
    def __init__(self, timeouts: RunTimeouts) -> None:
        self._timeouts = timeouts
        self._silent_since: float | None = None

    def record_response(self) -> None:
        self._silent_since = None

    def record_failure(self, error: ComfyError) -> None:
        """Record a failed request; raise its error once the server has been silent for too long."""
        now = asyncio.get_running_loop().time()
        self._silent_since = self._silent_since or now
        limits = self._timeouts
        limit = limits.refused_seconds if isinstance(error, PortClosed) else limits.unreachable_seconds
        if now - self._silent_since >= limit:
            raise error
