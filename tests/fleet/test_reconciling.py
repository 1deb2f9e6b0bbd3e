"""Rows of machines are held against what their provider has, and against the workers."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comfyrelay.domain.scaling.machines import Ended, Machine
from comfyrelay.domain.scaling.reconciling import Reconciled, Registered, Sighting, reconcile

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def machine(key: str = "a", ordered: float = 30, **more: Any) -> Machine:
    return Machine(key=key, fleet_id=1, ordered_at=ago(ordered), **more)


def launched(key: str = "a", ordered: float = 30, **more: Any) -> Machine:
    return machine(key, ordered, provider_id=f"i-{key}", launched_at=ago(ordered), **more)


def found(*machines: Machine, sightings: list[Sighting] | None, **more: Any) -> Reconciled:
    workers: dict[str, Registered] = more.pop("workers", {})
    given: dict[str, Any] = {"absent_since": {}, "boot_seconds": 100.0, "prices": {}, **more}
    return reconcile(machines, sightings, workers, now=NOW, **given)


def test_a_machine_that_cannot_tell_its_order_belongs_to_the_oldest_without_one() -> None:
    judged = found(machine("old", 20), machine("new", 5), sightings=[Sighting(id="i-1")])
    assert judged.changes["old"]["provider_id"] == "i-1"
    assert "new" not in judged.changes
    assert judged.order_again == []
    assert judged.adopt == []


def test_of_several_orders_one_of_its_type_is_preferred() -> None:
    orders = [machine("big", 20, instance_type="big"), machine("small", 5, instance_type="small")]
    judged = found(*orders, sightings=[Sighting(id="i-1", instance_type="small")])
    assert judged.changes.keys() == {"small"}


@pytest.mark.parametrize(
    ("sighting", "price"),
    [
        (Sighting(id="i-1"), 0.5),
        (Sighting(id="i-1", instance_type="small"), 0.5),
        (Sighting(id="i-1", instance_type="big"), 2.0),
        (Sighting(id="i-1", instance_type="big", price_per_hour=1.8), 1.8),
        (Sighting(id="i-1", instance_type="unknown"), None),
    ],
)
def test_one_of_another_type_than_was_ordered_costs_what_that_type_costs(
    sighting: Sighting, price: float | None
) -> None:
    order = machine(instance_type="small", price_per_hour=0.5)
    judged = found(order, sightings=[sighting], prices={"small": 0.6, "big": 2.0})
    assert judged.changes["a"]["price_per_hour"] == price


def test_a_machine_of_a_key_belongs_to_no_other_order() -> None:
    judged = found(machine("a"), sightings=[Sighting(id="i-1", key="another")])
    assert judged.changes == {}
    assert [each.id for each in judged.adopt] == ["i-1"]


@pytest.mark.parametrize(("ordered", "again"), [(5, []), (10, ["a"])])
def test_an_order_that_nobody_answered_is_placed_again(ordered: float, again: list[str]) -> None:
    assert found(machine(ordered=ordered), sightings=[]).order_again == again


def test_one_that_was_just_made_may_not_be_listed_yet() -> None:
    assert found(launched(ordered=59), sightings=[]).changes == {}
    assert found(launched(ordered=60), sightings=[]).changes == {"a": {"ended_at": ..., "reason": Ended.GONE_BOOTING}}


def test_one_that_was_a_worker_and_is_not_listed_is_gone() -> None:
    judged = found(launched(registered_at=ago(5)), sightings=[])
    assert judged.changes == {"a": {"ended_at": ..., "reason": Ended.GONE}}


def test_nothing_is_gone_while_the_provider_cannot_be_asked() -> None:
    assert found(launched(ordered=200, registered_at=ago(5)), sightings=None) == Reconciled()


def test_one_that_was_to_end_has_ended_when_it_is_not_listed_and_keeps_its_reason() -> None:
    judged = found(launched(registered_at=ago(9), ending_at=ago(5), reason="unneeded"), sightings=[])
    assert judged.changes == {"a": {"ended_at": ...}}


@pytest.mark.parametrize(
    ("marked", "is_ending", "again"), [(5, False, []), (10, False, ["a"]), (10, True, []), (900, False, ["a"])]
)
def test_an_end_is_asked_for_again_until_it_is_under_way(marked: float, is_ending: bool, again: list[str]) -> None:
    sightings = [Sighting(id="i-a", is_ending=is_ending)]
    assert found(launched(ending_at=ago(marked)), sightings=sightings).end_again == again


@pytest.mark.parametrize(("ordered", "is_ended"), [(419, False), (420, True)])
def test_a_boot_may_take_three_times_as_long_as_usual_and_two_minutes(ordered: float, is_ended: bool) -> None:
    judged = found(launched(ordered=ordered), sightings=[Sighting(id="i-a")])
    assert bool(judged.end) is is_ended


def test_a_silent_worker_with_a_lease_keeps_its_machine() -> None:
    row = launched(registered_at=ago(5))
    for leases, ended in ((1, set()), (0, {"a"})):
        workers = {"i-a": Registered(registered_at=ago(20), is_stale=True, leases=leases)}
        assert found(row, sightings=[Sighting(id="i-a")], workers=workers).end.keys() == ended
