"""A log for tests of what a simulator received and did. It survives restarts."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple


class Received(NamedTuple):
    method: str
    path: str


@dataclass(kw_only=True, slots=True)
class SimulatorLog:
    # Old requests are dropped to limit memory.
    requests: deque[Received] = field(default_factory=lambda: deque(maxlen=10_000))
    prompts_queued: int = 0
    interrupts: int = 0
    uploads_written: int = 0
    # Cached nodes and loaded models do not count.
    nodes_executed: int = 0
    models_loaded: int = 0
    # Requests that sent a credential to the file store.
    leaked_credentials: list[Received] = field(default_factory=list)

    def count(self, method: str, path: str) -> int:
        return self.requests.count(Received(method, path))
