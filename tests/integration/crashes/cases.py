"""Select the crash cases of `make test` and their databases; `--full` runs all cases on both databases."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from tests.support import full

Case = tuple[Any, ...]


def on_both(groups: Iterable[Sequence[Case]]) -> list[Any]:
    """Return all cases for SQLite, and the first case of each group for PostgreSQL."""
    return [parameter for group in groups for parameter in _parameters(group, sqlite=group, postgresql=group[:1])]


def sampled_on_both(groups: Sequence[Sequence[Case]], *, covering: int) -> list[Any]:
    """Return the first case of each group for SQLite, and a case for each further value of the column `covering`.

    For PostgreSQL, return the first case of every other group.
    """
    cases, seen = [], set[Any]()
    for number, group in enumerate(groups):
        chosen = [case for place, case in enumerate(group) if place == 0 or case[covering] not in seen]
        seen |= {case[covering] for case in group}
        cases += _parameters(group, sqlite=chosen, postgresql=group[:1] if _is_chosen(number) else [])
    return cases


def _is_chosen(number: int) -> bool:
    """Groups come in pairs, before and after a commit: choose alternately the first and the second of a pair."""
    return number % 4 in (0, 3)


def _parameters(group: Sequence[Case], **chosen: Sequence[Case]) -> list[Any]:
    return [
        pytest.param(backend, *values, id="-".join((backend, *map(_name, values))))
        for values in group
        for backend, cases in chosen.items()
        if full.is_enabled or values in cases
    ]


def _name(value: object) -> str:
    return getattr(value, "__name__", str(value))
