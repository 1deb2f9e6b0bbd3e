"""The order in which many waiting workers are offered a job."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.domain.queue import offers
from comfyrelay.domain.queue.offers import OfferOrder, WaitingWorker

WORKERS = st.builds(
    WaitingWorker,
    is_scaled=st.booleans(),
    load=st.integers(0, 2),
    busy_at=st.sampled_from([0.0, 5.0, 9.0]),
    warm_hashes=st.frozensets(st.sampled_from("abc")),
)


def order_of(workers: list[WaitingWorker]) -> OfferOrder[int]:
    order: OfferOrder[int] = OfferOrder()
    for number, worker in enumerate(workers):
        order.add(number, worker)
    return order


def test_machines_of_scaled_fleets_come_last_with_the_most_recently_busy_first() -> None:
    scaled = [WaitingWorker(is_scaled=True, busy_at=at) for at in (5.0, 0.0, 9.0)]
    assert list(order_of([*scaled, WaitingWorker(busy_at=1.0)])) == [3, 2, 0, 1]


def test_fullest_machine_of_a_scaled_fleet_comes_first() -> None:
    scaled = [WaitingWorker(is_scaled=True, load=load, busy_at=9.0 - load) for load in (0, 2, 1)]
    assert list(order_of(scaled)) == [1, 2, 0]


def test_warm_workers_come_first() -> None:
    warm = WaitingWorker(warm_hashes=frozenset("a"))
    assert list(order_of([WaitingWorker(), warm, WaitingWorker(), warm]).first({"a"})) == [1, 3, 0, 2]


def test_added_worker_is_moved_and_not_listed_twice() -> None:
    order = order_of([WaitingWorker(), WaitingWorker()])
    order.add(0, WaitingWorker(warm_hashes=frozenset("a")))
    assert (list(order), list(order.first({"a"})), len(order)) == ([1, 0], [0, 1], 2)


@given(st.lists(WORKERS, max_size=12), st.sets(st.sampled_from("abc")), st.data())
def test_order_is_the_same_as_when_sorting_all_remaining_workers(
    workers: list[WaitingWorker], hashes: set[str], data: st.DataObject
) -> None:
    order = order_of(workers)
    removed = data.draw(st.sets(st.integers(0, 12)))
    for number in removed:
        order.discard(number)
    remaining = [(number, worker) for number, worker in enumerate(workers) if number not in removed]
    remaining.sort(
        key=lambda entry: (
            entry[1].warm_hashes.isdisjoint(hashes),
            *((True, -entry[1].load, -entry[1].busy_at) if entry[1].is_scaled else (False, 0, 0.0)),
            entry[0],
        )
    )
    assert list(order.first(hashes)) == [number for number, _ in remaining]
    assert sorted(order) == sorted(number for number, _ in remaining)


def test_workers_removed_during_the_iteration_are_not_offered() -> None:
    order = order_of([WaitingWorker(warm_hashes=frozenset("a"))] * 3 + [WaitingWorker()] * 2)
    found = order.first({"a"})
    assert next(found) == 0
    order.discard(0)
    order.discard(1)
    order.discard(3)
    order.add(5, WaitingWorker())
    assert list(found) == [2, 4, 5]


@pytest.mark.parametrize("is_scaled", [False, True])
def test_first_workers_of_many_are_found_without_reading_the_others(
    is_scaled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = WaitingWorker(is_scaled=is_scaled, warm_hashes=frozenset("a"))
    order = order_of([worker] * 10_000)
    looked_at = 0
    after = offers._after

    def count(*arguments: object) -> object:
        nonlocal looked_at
        looked_at += 1
        return after(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(offers, "_after", count)
    assert list(islice(order.first({"a"}), 64)) == list(range(64))
    assert looked_at == 64
