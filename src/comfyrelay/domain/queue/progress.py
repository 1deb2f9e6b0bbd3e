"""Job progress as workers report it with heartbeats, or estimated if they report none."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from math import floor
from typing import Any, Self


class Phase(StrEnum):
    """The phase of a job on its worker. The run starts after `WAITING`."""

    FETCHING = "fetching"
    WAITING = "waiting"
    RUNNING = "running"
    STORING = "storing"
    SETTLING = "settling"


BEFORE_RUN = frozenset({Phase.FETCHING, Phase.WAITING})
AFTER_RUN = frozenset({Phase.STORING, Phase.SETTLING})
# Estimated progress at the expected end of a run. If the run takes longer, it approaches the second value.
EXPECTED_END = 0.9
MAX_ESTIMATE = 0.99


# The progress of a job whose run was lost, until its next run reports its own.
STARTING_AGAIN: Mapping[str, Any] = {"phase": "starting again"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The known fields of a progress report, with their wire names.

    The server stores and returns reports unchanged, because a worker may send other fields and types.
    """

    # Progress from 0 to 1.
    value: float | None = None
    # One of `Phase`, or an unknown value of another worker version.
    phase: str | None = None
    # Start of the run, which may be long after the lease.
    began_at: datetime | None = None
    # Name of the ComfyUI server, as in `devices`.
    server: str | None = None
    # Id and title of the running node.
    node_id: str | None = None
    node: str | None = None
    node_class: str | None = None
    # Number of nodes that have run, and of all nodes in the graph.
    nodes_done: float | None = None
    nodes_total: float | None = None
    step: float | None = None
    steps: float | None = None
    # Whether the server has estimated `value`, because the worker reports none.
    is_estimated: bool | None = None

    @classmethod
    def from_report(cls, report: Mapping[str, Any] | None) -> Self:
        """Read the known fields; ignore values of the wrong type."""
        report = report or {}
        return cls(
            value=number(report.get("value")),
            phase=_comparable(report.get("phase")),
            began_at=_timestamp(report.get("began_at")),
            server=_comparable(report.get("server")),
            node_id=text(report.get("node_id")),
            node=text(report.get("node")),
            node_class=text(report.get("node_class")),
            nodes_done=number(report.get("nodes_done")),
            nodes_total=number(report.get("nodes_total")),
            step=number(report.get("step")),
            steps=number(report.get("steps")),
            is_estimated=report.get("is_estimated") is True or None,
        )

    def to_report(self) -> dict[str, Any]:
        """Return the wire format, without unknown fields."""
        report = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.began_at is not None:
            report["began_at"] = self.began_at.isoformat()
        return {name: value for name, value in report.items() if value is not None}

    @property
    def fraction(self) -> float | None:
        """`value`, limited to 0 to 1."""
        return None if self.value is None else min(1.0, max(0.0, self.value))

    @property
    def has_begun(self) -> bool:
        return self.phase is not None and self.phase not in BEFORE_RUN

    @property
    def is_after_run(self) -> bool:
        return self.phase in AFTER_RUN


def with_estimate(
    report: Mapping[str, Any] | None,
    *,
    is_prefetch: bool,
    leased_at: datetime | None,
    expected_seconds: float | None,
    now: datetime,
) -> Mapping[str, Any] | None:
    """Add an estimated `value` to the progress of a running job whose worker reports none.

    The estimate depends on the time since the lease only, so it never decreases, and it stays below 1.
    `expected_seconds` is the duration of the last such job before the lease.
    """
    progress = Progress.from_report(report)
    is_running = not (progress.phase in BEFORE_RUN or progress.is_after_run or (is_prefetch and not progress.has_begun))
    if progress.value is not None or not is_running or not expected_seconds or leased_at is None:
        return report
    elapsed = max(0.0, (now - (progress.began_at or leased_at)).total_seconds())
    return {**(report or {}), "value": _estimate(elapsed / expected_seconds), "is_estimated": True}


def _estimate(share: float) -> float:
    """Return the progress after this share of the expected time, in whole percents."""
    overdue = max(0.0, share - 1)
    value = EXPECTED_END * min(share, 1.0) + (MAX_ESTIMATE - EXPECTED_END) * overdue / (1 + overdue)
    return floor(value * 100 + 1e-9) / 100


def text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _comparable(value: Any) -> str | None:
    """Keep a non-text value as text: it equals no known name, but the field was reported."""
    return None if value is None else str(value)


def _timestamp(value: Any) -> datetime | None:
    try:
        at = datetime.fromisoformat(text(value) or "")
    except ValueError:
        return None
    return at if at.tzinfo is not None else None
