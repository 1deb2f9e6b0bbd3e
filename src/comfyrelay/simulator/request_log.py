"""What a simulator was asked, for tests to look at. It outlives restarts."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple


class Received(NamedTuple):
    method: str
    path: str


@dataclass(kw_only=True, slots=True)
class SimulatorLog:
    # the latest ones: a server that runs for days must not fill the memory with them
    requests: deque[Received] = field(default_factory=lambda: deque(maxlen=10_000))
    prompts_queued: int = 0
    interrupts: int = 0
    uploads_written: int = 0
    # what was not in its cache, and what was not in its memory
    nodes_executed: int = 0
    models_loaded: int = 0
    # requests that brought a credential to the cloud's file store, which must never see one
    leaked_credentials: list[Received] = field(default_factory=list)

    def count(self, method: str, path: str) -> int:
        return self.requests.count(Received(method, path))
