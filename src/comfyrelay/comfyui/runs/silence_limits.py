"""How long a server may be silent: one that loads a model for minutes, one whose port is closed for a moment."""

import asyncio

from comfyrelay.comfyui.runs.timeouts import RunTimeouts
from comfyrelay.errors import ComfyError
from comfyrelay.http_client import PortClosed


class Patience:
    def __init__(self, timeouts: RunTimeouts) -> None:
        self._timeouts = timeouts
        self._silent_since: float | None = None

    def answered(self) -> None:
        self._silent_since = None

    def failed(self, error: ComfyError) -> None:
        """The server did not answer; raises the error when that has gone on for too long."""
        now = asyncio.get_running_loop().time()
        self._silent_since = self._silent_since or now
        limits = self._timeouts
        limit = limits.refused_seconds if isinstance(error, PortClosed) else limits.unreachable_seconds
        if now - self._silent_since >= limit:
            raise error
