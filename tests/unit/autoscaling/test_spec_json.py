"""Specs survive a round trip through JSON, and missing fields have their defaults."""

import json
from datetime import time

import pytest

from comfyrelay.domain.autoscaling.spec import (
    Bundle,
    InstanceType,
    Limits,
    MachineProviderName,
    MachineSpec,
    Policy,
    ScalingSpec,
    Schedule,
)
from comfyrelay.domain.autoscaling.spec_json import (
    machines_from_json,
    machines_to_json,
    scaling_from_json,
    scaling_to_json,
)

MACHINES = MachineSpec(
    provider=MachineProviderName.AWS,
    image="ami-1",
    instance_types=(InstanceType(name="g5", price_per_hour=0.5, speed=2.0), InstanceType(name="g4")),
    bundle=Bundle(node_types=frozenset({"KSampler", "LoadImage"}), models=frozenset({"sd.safetensors"})),
    slots=2,
    options={"subnets": ["a", "b"]},
)
SCALING = ScalingSpec(
    policy=Policy.CHEAP,
    limits=Limits(min_machines=1, max_machines=4, launches_per_minute=2, cost_per_hour=3.5, failed_boots=2),
    schedules=(
        Schedule(days=frozenset(range(5)), begins=time(9), ends=time(18, 30), at_least=2, timezone="Europe/Berlin"),
        Schedule(days=frozenset({6}), begins=time(0), ends=time(0), at_least=1),
    ),
    last_idle_seconds=60.0,
    is_dry_run=True,
    is_paused=True,
)


def test_machine_spec_survives_a_json_round_trip() -> None:
    assert machines_from_json(json.loads(json.dumps(machines_to_json(MACHINES)))) == MACHINES


def test_autoscaling_spec_survives_a_json_round_trip() -> None:
    assert scaling_from_json(json.loads(json.dumps(scaling_to_json(SCALING)))) == SCALING


@pytest.mark.parametrize("empty", [None, {}, {"provider": None, "bundle": None, "instance_types": None}])
def test_empty_machine_spec_has_the_defaults(empty: dict[str, object] | None) -> None:
    assert machines_from_json(empty) == MachineSpec()


@pytest.mark.parametrize("empty", [None, {}, {"policy": None, "max_machines": None, "schedules": None}])
def test_empty_autoscaling_spec_has_the_defaults(empty: dict[str, object] | None) -> None:
    assert scaling_from_json(empty) == ScalingSpec()
