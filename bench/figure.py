"""A row of the table."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A figure, its comparison and its goal."""

    name: str
    value: float
    unit: str
    against: str = ""
    ratio: float | None = None
    reach: str = ""
    holds: bool | None = None
