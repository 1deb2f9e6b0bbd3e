"""Find waiting jobs that have had no suitable online server for too long."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from comfyrelay.comfyui.pool.ticket import Ticket


@dataclass(slots=True)
class _Group:
    """Jobs that exclude the same servers, so that each server suits either all or none of them."""

    # When the last suitable server went offline; `None` while one is online.
    since: float | None = None
    # By job id: when the job started to wait, and how long it waits without a server.
    jobs: dict[str, tuple[float, float]] = field(default_factory=dict)


class UnservedJobs:
    """Waiting jobs that fail after a time without servers. Callers pass the time of a monotonic clock."""

    def __init__(self) -> None:
        self._groups: dict[frozenset[str], _Group] = {}

    def add(self, ticket: Ticket, *, now: float) -> None:
        """Add a waiting job. A job without a limit is ignored."""
        if ticket.give_up_after_seconds is not None:
            group = self._groups.setdefault(ticket.bucket.exclude_clients, _Group())
            group.jobs[ticket.id] = (now, ticket.give_up_after_seconds)

    def discard(self, ticket: Ticket) -> None:
        """Remove a job that no longer waits."""
        group = self._groups.get(ticket.bucket.exclude_clients)
        if group is not None:
            group.jobs.pop(ticket.id, None)
            if not group.jobs:
                del self._groups[ticket.bucket.exclude_clients]

    def overdue(self, online: Collection[str], *, now: float) -> list[str]:
        """Return the jobs that have waited too long, and record which servers are online now."""
        for excluded, group in self._groups.items():
            if not excluded.issuperset(online):
                group.since = None
            elif group.since is None:
                group.since = now
        return [job_id for deadline, job_id in self._deadlines if deadline <= now]

    @property
    def next_deadline(self) -> float | None:
        """Return when the next job fails if no server comes online; `None` if no job has a limit."""
        return min((deadline for deadline, _ in self._deadlines), default=None)

    @property
    def _deadlines(self) -> Iterator[tuple[float, str]]:
        for group in self._groups.values():
            if group.since is not None:
                for job_id, (began, seconds) in group.jobs.items():
                    yield max(group.since, began) + seconds, job_id
