"""How far a job is, in the words of its worker: what comes with heartbeats, and what users are shown. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, Self


class Phase(StrEnum):
    """How far a job has come at its worker. Up to `WAITING` nothing of it has run."""

    FETCHING = "fetching"
    WAITING = "waiting"
    RUNNING = "running"
    STORING = "storing"
    SETTLING = "settling"


BEFORE_RUN = frozenset({Phase.FETCHING, Phase.WAITING})
AFTER_RUN = frozenset({Phase.STORING, Phase.SETTLING})


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """What is known here of what a worker tells; the names are those of the wire. All of it is kept and passed on as it
    came: a worker may say more, and in other shapes."""

    # from 0 to 1
    value: float | None = None
    # one of `Phase`, or a word of another worker
    phase: str | None = None
    # when it began to run, which may be long after it was fetched
    began_at: datetime | None = None
    # where it runs, by the name that `devices` have
    server: str | None = None
    # what runs now: its id in the graph, and its title
    node_id: str | None = None
    node: str | None = None
    step: float | None = None
    steps: float | None = None

    @classmethod
    def read(cls, told: Mapping[str, Any] | None) -> Self:
        """What is of another type is as good as nothing."""
        told = told or {}
        return cls(
            value=number(told.get("value")),
            phase=_word(told.get("phase")),
            began_at=_moment(told.get("began_at")),
            server=_word(told.get("server")),
            node_id=text(told.get("node_id")),
            node=text(told.get("node")),
            step=number(told.get("step")),
            steps=number(told.get("steps")),
        )

    def as_told(self) -> dict[str, Any]:
        """As a worker sends it: without what it does not know."""
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        if self.began_at is not None:
            told["began_at"] = self.began_at.isoformat()
        return {name: value for name, value in told.items() if value is not None}

    @property
    def part(self) -> float | None:
        """`value`, where it should be."""
        return None if self.value is None else min(1.0, max(0.0, self.value))

    @property
    def has_begun(self) -> bool:
        return self.phase is not None and self.phase not in BEFORE_RUN

    @property
    def is_after_run(self) -> bool:
        return self.phase in AFTER_RUN


def text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _word(value: Any) -> str | None:
    """For comparing: what is no text is none of our words, but something was said."""
    return None if value is None else str(value)


def _moment(value: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(text(value) or "")
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
