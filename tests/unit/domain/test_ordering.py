"""A move changes a tenant's own places in the queue, and no others."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.domain.queue.ordering import Before, MoveTo, Place, move


def places(groups: str, *, ranks: Sequence[int] | None = None) -> list[Place]:
    """Return a place for each letter. Equal letters belong to one batch."""
    chosen = ranks or range(10, 10 + 10 * len(groups), 10)
    return [Place(id=n, rank=rank, group=group) for n, (group, rank) in enumerate(zip(groups, chosen, strict=True))]


def order_after(before: Sequence[Place], ranks: dict[int, int]) -> list[int]:
    return [place.id for place in sorted(before, key=lambda place: (ranks.get(place.id, place.rank), place.id))]


def groups_after(before: Sequence[Place], moving: set[int], to: MoveTo | Before) -> str:
    by_id = {place.id: place.group for place in before}
    return "".join(by_id[id_] for id_ in order_after(before, move(before, moving, to)))


@pytest.mark.parametrize(
    ("groups", "moving", "to", "expected"),
    [
        ("abcd", "c", MoveTo.TOP, "cabd"),
        ("abcd", "c", MoveTo.UP, "acbd"),
        ("abcd", "c", MoveTo.DOWN, "abdc"),
        ("abcd", "a", MoveTo.UP, "abcd"),
        ("abcd", "a", MoveTo.TOP, "abcd"),
        ("abcd", "d", MoveTo.DOWN, "abcd"),
        ("aabbcc", "c", MoveTo.UP, "aaccbb"),
        ("aabbcc", "a", MoveTo.DOWN, "bbaacc"),
        ("aabbcc", "c", MoveTo.TOP, "ccaabb"),
        ("aab", "b", MoveTo.UP, "baa"),
        ("baa", "b", MoveTo.DOWN, "aab"),
        ("abab", "b", MoveTo.UP, "bbaa"),
        ("abab", "a", MoveTo.DOWN, "bbaa"),
    ],
)
def test_block_steps_over_one_neighbour(groups: str, moving: str, to: MoveTo, expected: str) -> None:
    before = places(groups)
    assert groups_after(before, {place.id for place in before if place.group == moving}, to) == expected


@pytest.mark.parametrize(
    ("which", "to", "expected"),
    [
        (2, MoveTo.UP, [0, 2, 1, 3]),
        (1, MoveTo.DOWN, [0, 2, 1, 3]),
        (3, MoveTo.TOP, [3, 0, 1, 2]),
        (0, MoveTo.UP, [0, 1, 2, 3]),
        (3, MoveTo.DOWN, [0, 1, 2, 3]),
    ],
)
def test_item_steps_over_one_item_of_its_batch(which: int, to: MoveTo, expected: list[int]) -> None:
    before = places("aaaa")
    assert order_after(before, move(before, {which}, to)) == expected


def test_moving_nothing_changes_nothing() -> None:
    before = places("abc")
    assert move(before, set(), MoveTo.TOP) == {}
    assert move(before, {99}, MoveTo.TOP) == {}
    assert move([], {1}, MoveTo.TOP) == {}


def test_only_changed_ranks_are_returned() -> None:
    assert move(places("abcd"), {1}, MoveTo.UP) == {0: 20, 1: 10}


def test_equal_ranks_are_spread_by_the_smallest_step() -> None:
    before = places("abc", ranks=[7, 7, 7])
    assert order_after(before, move(before, {2}, MoveTo.TOP)) == [2, 0, 1]
    assert sorted({place.id: place.rank for place in before} | move(before, {2}, MoveTo.TOP)) == [0, 1, 2]
    assert move(before, {2}, MoveTo.TOP) == {0: 8, 1: 9}


@st.composite
def queues(draw: st.DrawFn) -> tuple[list[Place], list[Place], set[int]]:
    """Return a queue of distinct ranks: the tenant's own places, all other places, and the own places to move."""
    ranks = sorted(draw(st.sets(st.integers(0, 1_000), min_size=1, max_size=20)))
    every = [Place(id=n, rank=rank, group=draw(st.sampled_from("abcd"))) for n, rank in enumerate(ranks)]
    is_own = [draw(st.booleans()) for _ in every]
    own = [place for place, mine in zip(every, is_own, strict=True) if mine]
    others = [place for place, mine in zip(every, is_own, strict=True) if not mine]
    moving = draw(st.sets(st.sampled_from([place.id for place in own]))) if own else set()
    return own, others, moving


@given(queues(), st.sampled_from(MoveTo))
def test_move_permutes_own_ranks_and_keeps_other_places(
    queue: tuple[list[Place], list[Place], set[int]], to: MoveTo
) -> None:
    own, others, moving = queue
    changed = move(own, moving, to)
    ranks = {place.id: place.rank for place in own}
    assert changed.keys() <= ranks.keys()
    assert sorted((ranks | changed).values()) == sorted(ranks.values())
    whole_queue = sorted([*own, *others], key=lambda place: place.rank)
    after = order_after(whole_queue, changed)
    assert [after.index(other.id) for other in others] == [whole_queue.index(other) for other in others]
    # Moved and other places of the tenant keep their order among themselves.
    own_before, own_after = [place.id for place in own], order_after(own, changed)
    assert [id_ for id_ in own_after if id_ in moving] == [id_ for id_ in own_before if id_ in moving]
    assert [id_ for id_ in own_after if id_ not in moving] == [id_ for id_ in own_before if id_ not in moving]


@given(queues())
def test_job_moved_to_the_top_is_first_of_its_tenant(
    queue: tuple[list[Place], list[Place], set[int]],
) -> None:
    own, _, moving = queue
    after = order_after(own, move(own, moving, MoveTo.TOP))
    assert set(after[: len(moving)]) == moving


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.data())
def test_equal_ranks_become_distinct_and_never_decrease(ranks: list[int], data: st.DataObject) -> None:
    own = [Place(id=n, rank=rank, group=str(n)) for n, rank in enumerate(sorted(ranks))]
    which = data.draw(st.sampled_from(own))
    after = {place.id: place.rank for place in own} | move(own, {which.id}, data.draw(st.sampled_from(MoveTo)))
    assert len(set(after.values())) == len(own)
    assert all(new >= old for new, old in zip(sorted(after.values()), sorted(ranks), strict=True))


@pytest.mark.parametrize(
    ("groups", "moving", "before", "expected"),
    [
        ("abcd", "d", {1}, "adbc"),
        ("abcd", "a", {3}, "bcad"),
        ("abcd", "a", {1}, "abcd"),
        # A batch stays together, regardless of which of its items is named.
        ("abbc", "c", {2}, "acbb"),
        ("aabc", "a", {3}, "baac"),
        # The named job no longer exists.
        ("abc", "a", {99}, "bca"),
    ],
)
def test_block_moves_before_the_named_job(groups: str, moving: str, before: set[int], expected: str) -> None:
    queue = places(groups)
    assert groups_after(queue, {place.id for place in queue if place.group == moving}, Before(before)) == expected


def test_item_moves_before_the_named_item_of_its_batch() -> None:
    queue = places("aaaa")
    assert order_after(queue, move(queue, {3}, Before({1}))) == [0, 3, 1, 2]


def test_bottom_is_after_all_others() -> None:
    assert groups_after(places("abcb"), {1, 3}, MoveTo.BOTTOM) == "acbb"
