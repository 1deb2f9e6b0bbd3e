"""Specs as JSON, as they are stored with a fleet and go over the wire. What is not there, or null, is as by default."""

from collections.abc import Mapping
from datetime import time
from typing import Any

from comfyrelay.domain.scaling.spec import (
    Bundle,
    InstanceType,
    Limits,
    MachineProviderName,
    MachineSpec,
    Policy,
    ScalingSpec,
    Schedule,
)

_LIMITS = ("min_machines", "max_machines", "launches_per_minute", "cost_per_hour", "failed_boots")


def machines_from_json(found: Mapping[str, Any] | None) -> MachineSpec:
    values = _said(found)
    if "provider" in values:
        name = values["provider"]
        values["provider"] = MachineProviderName(name) if name in set(MachineProviderName) else str(name)
    if "instance_types" in values:
        values["instance_types"] = tuple(InstanceType(**_said(each)) for each in values["instance_types"])
    if "bundle" in values:
        values["bundle"] = Bundle(**{name: frozenset(each) for name, each in _said(values["bundle"]).items()})
    return MachineSpec(**values)


def machines_to_json(spec: MachineSpec) -> dict[str, Any]:
    bundle = spec.bundle
    return {
        "provider": str(spec.provider),
        "image": spec.image,
        "instance_types": [
            {"name": each.name, "price_per_hour": each.price_per_hour, "speed": each.speed}
            for each in spec.instance_types
        ],
        "bundle": None
        if bundle is None
        else {"node_types": sorted(bundle.node_types), "models": sorted(bundle.models)},
        "slots": spec.slots,
        "options": dict(spec.options),
    }


def scaling_from_json(found: Mapping[str, Any] | None) -> ScalingSpec:
    values = _said(found)
    limits = Limits(**{name: values.pop(name) for name in _LIMITS if name in values})
    if "policy" in values:
        values["policy"] = Policy(values["policy"])
    if "schedules" in values:
        values["schedules"] = tuple(_schedule(each) for each in values["schedules"])
    return ScalingSpec(limits=limits, **values)


def scaling_to_json(spec: ScalingSpec) -> dict[str, Any]:
    return {
        "policy": str(spec.policy),
        **{name: getattr(spec.limits, name) for name in _LIMITS},
        "schedules": [
            {
                "days": sorted(each.days),
                "begins": f"{each.begins:%H:%M}",
                "ends": f"{each.ends:%H:%M}",
                "at_least": each.at_least,
                "timezone": each.timezone,
            }
            for each in spec.schedules
        ],
        "last_idle_seconds": spec.last_idle_seconds,
        "is_dry_run": spec.is_dry_run,
        "is_paused": spec.is_paused,
    }


def _schedule(found: Mapping[str, Any]) -> Schedule:
    values = _said(found)
    return Schedule(
        **{
            **values,
            "days": frozenset(values["days"]),
            "begins": time.fromisoformat(values["begins"]),
            "ends": time.fromisoformat(values["ends"]),
        }
    )


def _said(found: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (found or {}).items() if value is not None}
