"""Timeouts of a run, and the limit for a server that does not respond."""

import asyncio
from dataclasses import dataclass

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.errors import ComfyError
from comfyrelay.http_client import PortClosed


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTimeouts:
    """Timeouts in seconds; `None` means no limit.

    `queue_seconds` limits the wait behind other runs, `start_seconds` the wait at the head of the queue, `node_seconds`
    the time without progress, `run_seconds` the time from start to end. For the first run of a workflow on a server,
    which loads its models, `node_seconds` is multiplied by two to four.
    """

    queue_seconds: float | None = None
    start_seconds: float | None = 60.0
    node_seconds: float | None = 300.0
    run_seconds: float | None = 3600.0
    # A server that loads a model may not respond for minutes. A closed port means that the process is not running.
    unreachable_seconds: float = 120.0
    refused_seconds: float = 3.0


def loading_factor(graph: Graph) -> int:
    """Return the factor for `node_seconds` while the models of a graph are loading."""
    loaders = sum("Loader" in node["class_type"] for node in graph.values())
    if loaders == 0:
        return 1
    return 2 if loaders <= 2 else 3 if loaders <= 4 else 4


class SilenceLimit:
    """Limit how long a server may be unresponsive: minutes while it loads a model, seconds if its port is closed."""

    def __init__(self, timeouts: RunTimeouts) -> None:
        self._timeouts = timeouts
        self._silent_since: float | None = None

    def record_response(self) -> None:
        self._silent_since = None

    def record_failure(self, error: ComfyError) -> None:
        """Record a failed request; raise its error if the server has been silent for too long."""
        now = asyncio.get_running_loop().time()
        self._silent_since = self._silent_since or now
        is_closed = isinstance(error, PortClosed)
        limit = self._timeouts.refused_seconds if is_closed else self._timeouts.unreachable_seconds
        if now - self._silent_since >= limit:
            raise error
