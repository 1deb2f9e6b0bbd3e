"""Waiting jobs that are given up when no server is there for them: none that is online and not excluded."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from comfyrelay.comfyui.pool.ticket import Ticket


@dataclass(slots=True)
class _Group:
    """Jobs that exclude the same servers: what is there for one of them is there for all."""

    # the last server went away then; `None` while there is one
    since: float | None = None
    # job id → when it began to wait, and how long it waits without a server
    jobs: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def deadlines(self) -> Iterator[tuple[float, str]]:
        if self.since is not None:
            for job_id, (began, seconds) in self.jobs.items():
                yield max(self.since, began) + seconds, job_id


class Unserved:
    """Times are those of one clock that only goes forward, and are told by whoever asks."""

    def __init__(self) -> None:
        self._groups: dict[frozenset[str], _Group] = {}

    def add(self, ticket: Ticket, *, now: float) -> None:
        """A job waits. One that does not say how long it would is left out."""
        if ticket.give_up_after_seconds is not None:
            group = self._groups.setdefault(ticket.bucket.exclude_clients, _Group())
            group.jobs[ticket.id] = (now, ticket.give_up_after_seconds)

    def discard(self, ticket: Ticket) -> None:
        """It waits no more."""
        group = self._groups.get(ticket.bucket.exclude_clients)
        if group is not None:
            group.jobs.pop(ticket.id, None)
            if not group.jobs:
                del self._groups[ticket.bucket.exclude_clients]

    def overdue(self, online: Collection[str], *, now: float) -> list[str]:
        """The jobs to give up, with these servers online from now on."""
        for excluded, group in self._groups.items():
            if not excluded.issuperset(online):
                group.since = None
            elif group.since is None:
                group.since = now
        return [job_id for deadline, job_id in self._deadlines if deadline <= now]

    @property
    def next_deadline(self) -> float | None:
        """When the next one is due if no server comes; `None` when there is none."""
        return min((deadline for deadline, _ in self._deadlines), default=None)

    @property
    def _deadlines(self) -> Iterator[tuple[float, str]]:
        for group in self._groups.values():
            yield from group.deadlines
