"""Machine rows are compared with the machines of their provider, and with the workers."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comfyrelay.domain.autoscaling.machines import (
    MachineEndReason,
    MachineRecord,
    ProviderMachine,
    ProviderMachineState,
)
from comfyrelay.domain.autoscaling.reconcile import Reconciled, RegisteredWorker, reconcile

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def machine(key: str = "a", ordered: float = 30, **more: Any) -> MachineRecord:
    return MachineRecord(key=key, fleet_id=1, ordered_at=ago(ordered), **more)


def launched(key: str = "a", ordered: float = 30, **more: Any) -> MachineRecord:
    return machine(key, ordered, provider_id=f"i-{key}", launched_at=ago(ordered), **more)


def run_reconcile(*machines: MachineRecord, listed: list[ProviderMachine] | None, **more: Any) -> Reconciled:
    workers: dict[str, RegisteredWorker] = more.pop("workers", {})
    arguments: dict[str, Any] = {"absent_since": {}, "missing_since": {}, "boot_seconds": 100.0, "prices": {}, **more}
    return reconcile(machines, listed, workers, now=NOW, **arguments)


def test_machine_without_a_key_is_matched_to_the_oldest_order() -> None:
    result = run_reconcile(machine("old", 20), machine("new", 5), listed=[ProviderMachine(id="i-1")])
    assert result.changes["old"]["provider_id"] == "i-1"
    assert "new" not in result.changes
    assert result.order_again == []
    assert result.adopt == []


def test_machine_is_matched_to_an_order_of_its_type() -> None:
    orders = [machine("big", 20, instance_type="big"), machine("small", 5, instance_type="small")]
    result = run_reconcile(*orders, listed=[ProviderMachine(id="i-1", instance_type="small")])
    assert result.changes.keys() == {"small"}


@pytest.mark.parametrize(
    ("reported", "price"),
    [
        (ProviderMachine(id="i-1"), 0.6),
        (ProviderMachine(id="i-1", instance_type="small"), 0.6),
        (ProviderMachine(id="i-1", instance_type="big"), 2.0),
        (ProviderMachine(id="i-1", instance_type="big", price_per_hour=1.8), 1.8),
        (ProviderMachine(id="i-1", instance_type="unknown"), None),
    ],
)
def test_new_machine_gets_the_current_price_of_its_type(reported: ProviderMachine, price: float | None) -> None:
    order = machine(instance_type="small", price_per_hour=0.5)
    result = run_reconcile(order, listed=[reported], prices={"small": 0.6, "big": 2.0})
    assert result.changes["a"]["price_per_hour"] == price


@pytest.mark.parametrize(
    ("reported_price", "prices", "changes"),
    [
        (None, {}, {}),
        (None, {"small": 0.0}, {}),
        (None, {"small": 0.5}, {}),
        (None, {"small": 3.0}, {"a": {"price_per_hour": 3.0}}),
        (4.0, {"small": 3.0}, {"a": {"price_per_hour": 4.0}}),
    ],
)
def test_price_of_a_running_machine_follows_its_provider(
    reported_price: float | None, prices: dict[str, float], changes: dict[str, Any]
) -> None:
    row = launched(instance_type="small", price_per_hour=0.5)
    assert (
        run_reconcile(row, listed=[ProviderMachine(id="i-a", price_per_hour=reported_price)], prices=prices).changes
        == changes
    )


def test_machine_with_an_unknown_key_is_adopted() -> None:
    result = run_reconcile(machine("a"), listed=[ProviderMachine(id="i-1", key="another")])
    assert result.changes == {}
    assert [reported.id for reported in result.adopt] == ["i-1"]


@pytest.mark.parametrize("is_known", [True, False])
def test_second_machine_of_an_order_is_surplus(is_known: bool) -> None:
    order = launched("a") if is_known else machine("a")
    first, second = ProviderMachine(id="i-a", key="a", worker_id="w"), ProviderMachine(id="i-b", key="a", worker_id="w")
    result = run_reconcile(order, listed=[second, first] if is_known else [first, second])
    assert result.surplus == [ProviderMachine(id="i-b")]
    assert result.adopt == []


def test_second_unknown_machine_with_the_same_key_is_surplus() -> None:
    result = run_reconcile(
        listed=[
            ProviderMachine(id="i-a", key="a"),
            ProviderMachine(id="i-b", key="a"),
            ProviderMachine(id="i-a", key="a"),
        ]
    )
    assert [reported.id for reported in result.adopt] == ["i-a"]
    assert [reported.id for reported in result.surplus] == ["i-b"]


@pytest.mark.parametrize(("ordered", "again"), [(5, []), (10, ["a"])])
def test_unanswered_order_is_placed_again(ordered: float, again: list[str]) -> None:
    assert run_reconcile(machine(ordered=ordered), listed=[]).order_again == again


@pytest.mark.parametrize(("ordered", "is_dropped"), [(419, False), (420, True)])
def test_order_unanswered_for_too_long_is_dropped(ordered: float, is_dropped: bool) -> None:
    result = run_reconcile(machine(ordered=ordered), listed=[])
    assert result.changes == ({"a": {"ended_at": ..., "reason": MachineEndReason.UNANSWERED}} if is_dropped else {})
    assert result.order_again == ([] if is_dropped else ["a"])
    assert result.end == {}
    # Without a listing, the outcome is unknown.
    assert run_reconcile(machine(ordered=ordered), listed=None).changes == {}


@pytest.mark.parametrize(("ordered", "missing", "is_gone"), [(59, 50, False), (60, 29, False), (60, 30, True)])
def test_new_machine_may_be_missing_from_the_listing(ordered: float, missing: float, is_gone: bool) -> None:
    result = run_reconcile(launched(ordered=ordered), listed=[], missing_since={"a": ago(missing)})
    assert result.missing == ["a"]
    assert result.changes == ({"a": {"ended_at": ..., "reason": MachineEndReason.GONE_BOOTING}} if is_gone else {})


def test_unlisted_machine_of_a_deregistered_worker_has_ended() -> None:
    result = run_reconcile(launched(registered_at=ago(5)), listed=[])
    assert result.changes == {"a": {"ended_at": ..., "reason": MachineEndReason.GONE}}


@pytest.mark.parametrize(
    ("missing", "heard", "is_gone"), [(0, 500, False), (29, 500, False), (500, 59, False), (30, 60, True)]
)
def test_machine_ends_only_if_unlisted_and_silent(missing: float, heard: float, is_gone: bool) -> None:
    row = launched(ordered=900, registered_at=ago(800))
    workers = {"i-a": RegisteredWorker(registered_at=ago(800), last_seen_at=ago(heard))}
    result = run_reconcile(row, listed=[], workers=workers, missing_since={"a": ago(missing)})
    assert result.changes == ({"a": {"ended_at": ..., "reason": MachineEndReason.GONE}} if is_gone else {})


def test_no_machine_ends_while_the_provider_is_unreachable() -> None:
    assert run_reconcile(launched(ordered=200, registered_at=ago(5)), listed=None) == Reconciled()


def test_stopping_machine_has_ended_when_unlisted_and_keeps_its_reason() -> None:
    result = run_reconcile(launched(registered_at=ago(9), ending_at=ago(5), reason="unneeded"), listed=[])
    assert result.changes == {"a": {"ended_at": ...}}


@pytest.mark.parametrize(
    ("marked", "is_ending", "again"), [(5, False, []), (10, False, ["a"]), (10, True, []), (900, False, ["a"])]
)
def test_stop_is_repeated_until_it_is_in_progress(marked: float, is_ending: bool, again: list[str]) -> None:
    state = ProviderMachineState.ENDING if is_ending else ProviderMachineState.RUNNING
    listed = [ProviderMachine(id="i-a", state=state)]
    assert run_reconcile(launched(ending_at=ago(marked)), listed=listed).end_again == again


@pytest.mark.parametrize(("ordered", "is_ended"), [(419, False), (420, True)])
def test_boot_timeout_is_three_boot_times_plus_two_minutes(ordered: float, is_ended: bool) -> None:
    result = run_reconcile(launched(ordered=ordered), listed=[ProviderMachine(id="i-a")])
    assert bool(result.end) is is_ended


def test_silent_worker_with_a_lease_keeps_its_machine() -> None:
    row = launched(registered_at=ago(5))
    for leases, ended in ((1, set()), (0, {"a"})):
        workers = {"i-a": RegisteredWorker(registered_at=ago(20), last_seen_at=ago(20), is_offline=True, leases=leases)}
        assert run_reconcile(row, listed=[ProviderMachine(id="i-a")], workers=workers).end.keys() == ended


@pytest.mark.parametrize(("idle", "leases", "is_ended"), [(59, 0, False), (60, 0, True), (900, 1, False)])
def test_machine_of_a_draining_worker_is_stopped_once_it_has_no_job(idle: float, leases: int, is_ended: bool) -> None:
    worker = RegisteredWorker(
        registered_at=ago(900), last_seen_at=NOW, closed="was drained", last_at=ago(idle), leases=leases
    )
    result = run_reconcile(
        launched(registered_at=ago(900)), listed=[ProviderMachine(id="i-a")], workers={"i-a": worker}
    )
    assert result.end == ({"a": "closed: its worker was drained"} if is_ended else {})
