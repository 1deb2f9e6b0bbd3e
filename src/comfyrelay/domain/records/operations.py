"""How the service is doing, and what was found about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple


class LoadSample(NamedTuple):
    """How things stand at one moment. A slot runs one job at a time."""

    waiting: int
    oldest_wait_seconds: float
    busy: int
    slots: int
    workers: int


class Counted(NamedTuple):
    """What happened in some time: jobs that were begun and how long they had waited together, jobs that were completed
    or failed, and tokens that were consumed."""

    begun: int = 0
    waited_seconds: float = 0.0
    done: int = 0
    failed: int = 0
    tokens: int = 0

    def and_also(self, more: "Counted") -> "Counted":
        return Counted(
            begun=self.begun + more.begun,
            waited_seconds=self.waited_seconds + more.waited_seconds,
            done=self.done + more.done,
            failed=self.failed + more.failed,
            tokens=self.tokens + more.tokens,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledTime:
    """A stretch of time, by its number; the means of what was seen in it, and the sums of what was counted."""

    number: int
    waiting: float | None
    oldest_wait_seconds: float | None
    busy: float | None
    slots: float | None
    begun: int
    waited_seconds: float
    done: int
    failed: int
    tokens: int

    @property
    def wait_seconds(self) -> float | None:
        """How long those that were begun had waited; where none was, how long the oldest has."""
        return self.waited_seconds / self.begun if self.begun else self.oldest_wait_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class ReconcileRunRecord:
    """Without `ended_at` it goes on, or its process has ended. Of `count` findings the first are kept."""

    id: int
    started_at: datetime
    ended_at: datetime | None
    jobs: int | None
    findings: Sequence[Mapping[str, Any]] | None
    count: int | None
    shards_down: Sequence[str] | None
    problem: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StuckStep:
    """A step that has not crossed from one database to the other: `to_queue` brings jobs to the queue, `to_shard` what
    the queue has decided to the tenants."""

    id: int
    direction: str
    shard: str
    job_ids: Sequence[str]
    created_at: datetime
