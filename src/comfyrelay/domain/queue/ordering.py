"""Reorder a tenant's queued dispatches within one priority."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never


class MoveTo(StrEnum):
    TOP = "top"
    UP = "up"
    DOWN = "down"
    BOTTOM = "bottom"


@dataclass(frozen=True, slots=True)
class Before:
    """Before the first of these dispatches. If that is an item of another batch, before the whole batch."""

    ids: Set[int]


@dataclass(frozen=True, slots=True)
class After:
    """After the last of these dispatches. If that is an item of another batch, after the whole batch."""

    ids: Set[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class NextTo:
    """Directly before or after the job or batch with this id."""

    id: str
    is_after: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A dispatch's place in the queue: `rank` is the sort key, `group` identifies its batch."""

    id: int
    rank: int
    group: str


def move(places: Sequence[Place], moving: Set[int], to: MoveTo | Before | After) -> dict[int, int]:
    """Return the changed ranks by dispatch id.

    `places` are in queue order. Only the tenant's own ranks are permuted, so other tenants keep their places. Up and
    down step over one neighbour: a job or a whole batch, or one item within the same batch.
    """
    block = [place for place in places if place.id in moving]
    if not block:
        return {}
    order = _reordered(list(places), block, to)
    ranks = _strictly_rising(sorted(place.rank for place in places))
    return {place.id: rank for place, rank in zip(order, ranks, strict=True) if place.rank != rank}


def _reordered(places: list[Place], block: list[Place], to: MoveTo | Before | After) -> list[Place]:
    moving = {place.id for place in block}
    groups = {place.group for place in block}
    rest = [place for place in places if place.id not in moving]
    match to:
        case MoveTo.TOP:
            return block + rest
        case MoveTo.BOTTOM:
            return rest + block
        case Before(ids):
            at = _start_of(rest, ids, own=groups)
        case After(ids):
            # This is the same as `Before` in the reversed list.
            at = len(rest) - _start_of(rest[::-1], ids, own=groups)
        case MoveTo.UP:
            ahead = [place for place in places[: places.index(block[0])] if place.id not in moving]
            at = _start_of_last_group(ahead, own=block[0].group)
        case MoveTo.DOWN:
            ahead_count = sum(place.id not in moving for place in places[: places.index(block[-1])])
            at = _end_of_first_group(rest, ahead_count, own=block[-1].group)
        case _:
            assert_never(to)
    return rest[:at] + block + rest[at:]


def _start_of(rest: list[Place], ids: Set[int], *, own: Set[str]) -> int:
    """Return the index of the first of these ids, or of its batch if that is another one; the end if none is found."""
    at = next((n for n, place in enumerate(rest) if place.id in ids), len(rest))
    if at < len(rest) and rest[at].group not in own:
        at = next(n for n, place in enumerate(rest) if place.group == rest[at].group)
    return at


def _start_of_last_group(ahead: list[Place], *, own: str) -> int:
    at = len(ahead)
    if ahead and ahead[-1].group == own:
        return at - 1
    while at > 0 and ahead[at - 1].group == ahead[-1].group:
        at -= 1
    return at


def _end_of_first_group(rest: list[Place], start: int, *, own: str) -> int:
    at = start
    if at < len(rest) and rest[at].group == own:
        return at + 1
    while at < len(rest) and rest[at].group == rest[start].group:
        at += 1
    return at


def _strictly_rising(ranks: list[int]) -> list[int]:
    """Break ties by the smallest step, because equal ranks cannot be permuted."""
    risen: list[int] = []
    for rank in ranks:
        risen.append(max(rank, risen[-1] + 1) if risen else rank)
    return risen
