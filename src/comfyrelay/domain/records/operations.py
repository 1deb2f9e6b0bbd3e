"""Records of load samples, reconciler runs, stuck outbox entries and schemas."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple


class LoadSample(NamedTuple):
    """The load at one moment. A slot runs one job at a time."""

    waiting: int
    oldest_wait_seconds: float
    busy: int
    slots: int
    workers: int


class WaitingGroup(NamedTuple):
    """Queued jobs that the same workers can run, and the time since which the oldest job has waited."""

    stage: str
    provider: str
    workflow_id: int
    workflow_hash: str
    jobs: int
    oldest_at: datetime


class ActivityCounts(NamedTuple):
    """Counts over an interval. `waited_seconds` is the total wait of the started (`begun`) jobs."""

    begun: int = 0
    waited_seconds: float = 0.0
    done: int = 0
    failed: int = 0
    tokens: int = 0

    def plus(self, more: "ActivityCounts") -> "ActivityCounts":
        return ActivityCounts(
            begun=self.begun + more.begun,
            waited_seconds=self.waited_seconds + more.waited_seconds,
            done=self.done + more.done,
            failed=self.failed + more.failed,
            tokens=self.tokens + more.tokens,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class IntervalAggregate:
    """Aggregates for one interval: means of the load samples, sums of the counts."""

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
        """Mean wait of the started jobs; if none started, the wait of the oldest job."""
        return self.waited_seconds / self.begun if self.begun else self.oldest_wait_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class ReconcileRunRecord:
    """A run of the reconciler. Without `ended_at` it is running or was interrupted.

    Only the first of `count` findings are stored.
    """

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
    """An undelivered outbox entry: `to_queue` submits jobs, `to_shard` delivers job updates."""

    id: int
    direction: str
    shard: str
    job_ids: Sequence[str]
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaState:
    """The schema of a database, compared with the one of this version."""

    revision: str | None
    newest: str
    # Why ComfyRelay cannot use the schema.
    problem: str | None = None
    # Additions that do no harm, such as an operator's index.
    additions: tuple[str, ...] = ()

    @property
    def is_current(self) -> bool:
        return self.revision == self.newest and self.problem is None


class ConnectedProcess(NamedTuple):
    """A server, or a command, that is connected to a database. Its name is its process id and host."""

    name: str
    version: str


class WorkerVersion(NamedTuple):
    """The number of active workers with this version of ComfyRelay and of the worker protocol."""

    version: str | None
    protocol: int
    workers: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditFilter:
    """`search` is part of the actor, the subject, the action, the address or the new values, or the email of a
    customer."""

    search: str | None = None
    action: str | None = None
    begins: datetime | None = None
    ends: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NewAuditLogEntry:
    """A change by a person. `actor` is the email, or the user who ran a command on the machine `address`."""

    actor_id: str | None
    actor: str
    address: str | None
    action: str
    subject: str
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    is_done: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditLogEntry:
    """A change by a person. `actor_id` is null for a command on the server's host. `before` and `after` have the
    changed fields, without secrets, or the request if it changed something else. `is_done` is false if the outcome is
    unknown, because the server stopped before the end of the request."""

    id: int
    created_at: datetime
    actor_id: str | None
    actor: str
    address: str | None
    action: str
    subject: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    is_done: bool
