"""Which cases run on which database."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def on_both(groups: Iterable[Sequence[tuple[Any, ...]]]) -> list[ParameterSet]:
    """All on SQLite, and the first of each group on PostgreSQL; the others there only when there is time."""
    cases = []
    for group in groups:
        for number, values in enumerate(group):
            name = "-".join(getattr(value, "__name__", str(value)) for value in values)
            cases.append(pytest.param("sqlite", *values, id=f"sqlite-{name}"))
            later = [pytest.mark.long] if number else []
            cases.append(pytest.param("postgresql", *values, id=f"postgresql-{name}", marks=later))
    return cases
