"""A log, for tests, of a simulator's requests and actions, which is kept across restarts."""

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
    # Does not include cached nodes and models that were already loaded.
    nodes_executed: int = 0
    models_loaded: int = 0
    # Requests to the file store that contained a credential.
    leaked_credentials: list[Received] = field(default_factory=list)

    def count(self, method: str, path: str) -> int:
        return self.requests.count(Received(method, path))
