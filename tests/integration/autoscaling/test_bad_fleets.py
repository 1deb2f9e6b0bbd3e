"""A fleet with unreadable or impossible settings is paused with a reason; the others keep running."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from sqlalchemy import update

from comfyrelay.domain.autoscaling.spec import MachineSpec, ScalingSpec
from comfyrelay.domain.autoscaling.spec_json import machines_from_json, scaling_from_json
from comfyrelay.domain.queue.states import Stage
from comfyrelay.protocol.admin.autoscaling import FleetAutoscaling, FleetMachines
from comfyrelay.store.central.tables.workers import fleets as fleet_rows
from tests.support.burst import burst_scenario
from tests.support.memory_provider import Fleets, open_fleets
from tests.support.observations import fleet, launched, plan, plans, waiting
from tests.support.world import World

UNKNOWN_ZONE = {"days": [0], "begins": "09:00", "ends": "18:00", "at_least": 1, "timezone": "Nowhere/Town"}
INVALID_SETTINGS: dict[str, dict[str, Any]] = {
    "unknown policy": {"autoscaling": {"policy": "frugal"}},
    "unknown time zone": {"autoscaling": {"schedules": [UNKNOWN_ZONE]}},
    "not a number": {"autoscaling": {"max_machines": "ten"}},
    "speed near zero": {"machines": {"provider": "command", "instance_types": [{"name": "a", "speed": 1e-310}]}},
    "too many slots": {"machines": {"provider": "command", "slots": 100_000}},
    "types that are not objects": {"machines": {"provider": "command", "instance_types": ["g5"]}},
}


async def store(fleets: Fleets, **raw: Any) -> None:
    """Store settings as another version may have written them."""
    query = update(fleet_rows).where(fleet_rows.c.slug == fleets.fleet).values(**raw)
    await fleets.world.engine.databases.central.run("test", lambda tx: tx.execute(query))


async def test_invalid_fleet_is_paused_with_its_reason_and_others_are_scaled(world: World) -> None:
    good = await open_fleets(world)
    others = {name: await open_fleets(world) for name in INVALID_SETTINGS}
    for name, other in others.items():
        await store(other, **INVALID_SETTINGS[name])
        await other.submit()
    await good.submit()
    await good.round()
    assert len(await good.present()) == 1
    for name, other in others.items():
        assert await other.present() == []
        [decision] = await other.decisions()
        assert "paused, because its settings cannot be read: " in decision.reason, name
        await world.engine.autoscaling.views.set_paused(Stage.PRODUCTION, other.fleet, is_paused=True)
    assert len(await world.engine.autoscaling.views.all()) == len(others) + 1
    for other in others.values():
        await other.change(machines=None, autoscaling=None)
        await other.change(machines={"provider": "command"}, autoscaling={"policy": "cheap"})
    await good.decide()
    assert [len(await other.present()) for other in others.values()] == [1] * len(others)


async def test_bursting_continues_next_to_an_invalid_fleet(world: World) -> None:
    burst = await burst_scenario(world, max_wait_seconds=10)
    other = await open_fleets(world)
    await store(other, **INVALID_SETTINGS["unknown policy"])
    await burst.submit()
    await world.advance(30)
    assert len(await burst.run_once()) == 1


async def test_failure_of_one_fleet_does_not_delay_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = await open_fleets(world), await open_fleets(world)
    intend = world.engine.autoscaling.machines.intend

    async def fails(fleet: Any, *args: Any, **more: Any) -> Any:
        if fleet.slug == bad.fleet:
            raise RuntimeError("unexpected")
        return await intend(fleet, *args, **more)

    monkeypatch.setattr(world.engine.autoscaling.machines, "intend", fails)
    await bad.submit()
    await good.submit()
    await good.decide()
    assert len(await good.present()) == 1


def test_unknown_fields_are_ignored() -> None:
    assert machines_from_json({"slots": 2, "gpus": 1, "limits": 3}) == MachineSpec(slots=2)
    assert scaling_from_json({"is_dry_run": True, "cooldown": 5, "unreadable": "x"}) == ScalingSpec(is_dry_run=True)


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (FleetMachines, {"instance_types": [{"name": "a", "speed": 1e-310}]}),
        (FleetMachines, {"options": {"boot_seconds": 1e308}}),
        (FleetMachines, {"options": {"boot_seconds": -1}}),
        (FleetMachines, {"slots": 65}),
        (FleetAutoscaling, {"max_machines": 10_001}),
        (FleetAutoscaling, {"min_machines": 10_001}),
        (FleetAutoscaling, {"launches_per_minute": 101}),
    ],
)
def test_settings_out_of_bounds_are_refused(model: type[BaseModel], values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(values)


def test_launches_per_minute_are_capped_at_100() -> None:
    assert scaling_from_json({"launches_per_minute": 250}).limits.launches_per_minute == 100


def test_failed_decision_does_not_affect_other_fleets() -> None:
    bad = fleet(slug="bad", slots=0)
    good = fleet(slug="good", workflows=(2,))
    found = {fleet_plan.fleet: fleet_plan for fleet_plan in plans([waiting(3), waiting(3, workflow=2)], bad, good)}
    assert launched(found["good"]) > 0
    assert launched(found["bad"]) == 0
    assert "the decision failed" in found["bad"].reason


def test_decision_memory_does_not_grow_with_machines_and_slots() -> None:
    """One object per slot would exceed any memory."""
    wide = fleet(slots=10**15, max_machines=10**12, min_machines=10**12, launches_per_minute=5)
    assert launched(plan([waiting(3)], wide)) == 5
