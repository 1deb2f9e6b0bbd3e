"""One line of the table of figures."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One figure, what it is held against, and how far it should reach."""

    name: str
    value: float
    unit: str
    against: str = ""
    ratio: float | None = None
    reach: str = ""
    holds: bool | None = None
