"""Fleet settings as JSON, in the database and on the wire. Missing or null fields have their defaults.

Another version may have stored the settings. Unknown fields are ignored. A fleet with unreadable settings is paused
with a reason, and other fleets are not affected.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from datetime import time
from typing import Any

from comfyrelay.domain.autoscaling.spec import (
    END_OF_DAY,
    MAX_LAUNCHES_PER_MINUTE,
    MAX_MACHINES,
    MAX_MONEY,
    MAX_SLOTS,
    MAX_SPEED,
    MIN_SPEED,
    Bundle,
    InstanceType,
    Limits,
    MachineProviderName,
    MachineSpec,
    Policy,
    ScalingSpec,
    Schedule,
    time_zone,
)
from comfyrelay.errors import InvalidInput

_LIMITS = [field.name for field in fields(Limits)]
# Errors for values of another kind or version.
_UNREADABLE = (TypeError, ValueError, KeyError, AttributeError, InvalidInput)


def machines_from_json(stored: Mapping[str, Any] | None) -> MachineSpec:
    try:
        return _machines(stored)
    except _UNREADABLE as error:
        return MachineSpec(unreadable=f"machines: {_describe(error)}")


def scaling_from_json(stored: Mapping[str, Any] | None) -> ScalingSpec:
    try:
        return _scaling(stored)
    except _UNREADABLE as error:
        return ScalingSpec(is_paused=True, unreadable=f"scaling: {_describe(error)}")


def _machines(stored: Mapping[str, Any] | None) -> MachineSpec:
    values = _known(MachineSpec, stored)
    if "provider" in values:
        name = values["provider"]
        values["provider"] = MachineProviderName(name) if name in set(MachineProviderName) else str(name)
    if "instance_types" in values:
        values["instance_types"] = tuple(_instance_type(value) for value in values["instance_types"])
    if "bundle" in values:
        bundle = _known(Bundle, values["bundle"])
        values["bundle"] = Bundle(**{name: frozenset(names) for name, names in bundle.items()})
    if "options" in values:
        values["options"] = dict(values["options"])
    _within("slots", values.get("slots", 1), 1, MAX_SLOTS)
    return MachineSpec(**values)


def machines_to_json(spec: MachineSpec) -> dict[str, Any]:
    bundle = spec.bundle
    return {
        "provider": str(spec.provider),
        "image": spec.image,
        "instance_types": [asdict(instance_type) for instance_type in spec.instance_types],
        "bundle": None
        if bundle is None
        else {"node_types": sorted(bundle.node_types), "models": sorted(bundle.models)},
        "slots": spec.slots,
        "options": dict(spec.options),
    }


def _scaling(stored: Mapping[str, Any] | None) -> ScalingSpec:
    values = _known(ScalingSpec, stored)
    limits = Limits(**_known(Limits, stored))
    for name in ("min_machines", "max_machines"):
        _within(name, getattr(limits, name), 0, MAX_MACHINES)
    _within("cost_per_hour", limits.cost_per_hour or 0.0, 0, MAX_MONEY)
    _within("failed_boots", limits.failed_boots, 0, MAX_MACHINES)
    _within("last_idle_seconds", values.get("last_idle_seconds", 0.0), 0, float("inf"))
    # Larger limits would have no effect, because only the newest orders are read and counted.
    limits = replace(limits, launches_per_minute=min(limits.launches_per_minute, MAX_LAUNCHES_PER_MINUTE))
    if "policy" in values:
        values["policy"] = Policy(values["policy"])
    if "schedules" in values:
        values["schedules"] = tuple(_schedule(value) for value in values["schedules"])
    return ScalingSpec(limits=limits, **values)


def scaling_to_json(spec: ScalingSpec) -> dict[str, Any]:
    return {
        "policy": str(spec.policy),
        **{name: getattr(spec.limits, name) for name in _LIMITS},
        "schedules": [
            {
                "days": sorted(schedule.days),
                "begins": f"{schedule.begins:%H:%M}",
                "ends": f"{schedule.ends:%H:%M}" if schedule.ends != time() else END_OF_DAY,
                "at_least": schedule.at_least,
                "timezone": schedule.timezone,
            }
            for schedule in spec.schedules
        ],
        "last_idle_seconds": spec.last_idle_seconds,
        "is_dry_run": spec.is_dry_run,
        "is_paused": spec.is_paused,
    }


def _schedule(stored: Mapping[str, Any]) -> Schedule:
    values = _known(Schedule, stored)
    time_zone(values.get("timezone", "UTC"))
    return Schedule(
        **{
            **values,
            "days": frozenset(values["days"]),
            "begins": time.fromisoformat(values["begins"]),
            "ends": time() if values["ends"] == END_OF_DAY else time.fromisoformat(values["ends"]),
        }
    )


def _instance_type(stored: Mapping[str, Any]) -> InstanceType:
    kind = InstanceType(**_known(InstanceType, stored))
    _within("price_per_hour", kind.price_per_hour, 0, MAX_MONEY)
    _within("speed", kind.speed, MIN_SPEED, MAX_SPEED)
    return kind


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}, not between {low:g} and {high:g}")


def _describe(error: Exception) -> str:
    return error.detail if isinstance(error, InvalidInput) else str(error)


def _known(kind: type[Any], stored: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the stored values that are set and that this version knows."""
    names = {field.name for field in fields(kind)} - {"limits", "unreadable"}
    return {name: value for name, value in (stored or {}).items() if name in names and value is not None}
