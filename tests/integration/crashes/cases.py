"""Which cases run with every change, and on which database; all others run in `make long`."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet

Case = tuple[Any, ...]


def on_both(groups: Iterable[Sequence[Case]]) -> list[ParameterSet]:
    """All on SQLite, and the first of each group on PostgreSQL."""
    return [each for group in groups for each in _cases(group, sqlite=group, postgresql=group[:1])]


def sampled_on_both(groups: Sequence[Sequence[Case]], *, named: int) -> list[ParameterSet]:
    """The first of each group on SQLite, and the first that has this in the place `named`: nothing there is left out.

    On PostgreSQL the first of every other group."""
    cases, seen = [], set[Any]()
    for number, group in enumerate(groups):
        chosen = [each for place, each in enumerate(group) if place == 0 or each[named] not in seen]
        seen |= {each[named] for each in group}
        cases += _cases(group, sqlite=chosen, postgresql=group[:1] if _is_turn(number) else [])
    return cases


def _is_turn(number: int) -> bool:
    """Groups come in pairs, before a commit and after it: of one pair the former, of the next the latter."""
    return number % 4 in (0, 3)


def _cases(group: Sequence[Case], **chosen: Sequence[Case]) -> list[ParameterSet]:
    return [
        pytest.param(
            backend,
            *values,
            id="-".join((backend, *(getattr(value, "__name__", str(value)) for value in values))),
            marks=[] if values in now else [pytest.mark.long],
        )
        for values in group
        for backend, now in chosen.items()
    ]
