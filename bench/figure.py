"""A measured value."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A row of the table: a value, the baseline that it is compared with, and its goal."""

    name: str
    value: float
    unit: str
    baseline: str = ""
    ratio: float | None = None
    goal: str = ""
    is_met: bool | None = None
