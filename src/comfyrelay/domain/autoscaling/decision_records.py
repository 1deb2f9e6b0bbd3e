"""Describe the observation behind a decision, for the record."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from comfyrelay.domain.autoscaling.limits import LAUNCH_WINDOW_SECONDS
from comfyrelay.domain.autoscaling.observation import MachineState, ObservedFleet, StageSnapshot
from comfyrelay.domain.autoscaling.plan import FleetPlan
from comfyrelay.domain.autoscaling.spec import InstanceType, scheduled_minimum

# Maximum number of machines that a record lists, in addition to the counts by state.
MAX_MACHINES_LISTED = 50


def reason_class(reason: str) -> str:
    """Return the reason without numbers and observations. Consecutive decisions of one class are recorded once."""
    return re.sub(r"\d+(\.\d+)?", "#", reason.partition(": ")[2] or reason)


def describe_observation(
    fleet: ObservedFleet, plan: FleetPlan, snapshot: StageSnapshot, types: Sequence[InstanceType]
) -> Mapping[str, Any]:
    available = {instance_type.name for instance_type in fleet.instance_types}
    # Booting machines come first, because waiting jobs refer to them.
    by_state = sorted(fleet.machines, key=lambda machine: machine.state is not MachineState.BOOTING)
    listed = by_state[:MAX_MACHINES_LISTED]
    return {
        "work": [
            {
                "workflow": work.workflow,
                "jobs": work.jobs,
                "seconds": round(work.seconds, 1),
                "jobs_per_second": round(work.jobs_per_second, 5),
                "arrivals_seconds": round(work.arrivals_seconds, 1),
            }
            for work in snapshot.work
            if work.workflow in fleet.workflows and (work.jobs or work.jobs_per_second > 1e-5)
        ],
        "machines": [
            {
                "id": machine.id,
                "state": str(machine.state),
                "leases": machine.leases,
                "instance_type": machine.instance_type,
                "price_per_hour": machine.price_per_hour,
                "boot_seconds_left": round(machine.boot_seconds_left, 1),
                "busy_seconds_left": round(machine.busy_seconds_left, 1),
                "idle_seconds": round(machine.idle_seconds, 1),
            }
            for machine in listed
        ],
        "machines_left_out": len(fleet.machines) - len(listed),
        "machines_by_state": dict(Counter(str(machine.state) for machine in fleet.machines)),
        "prices": {instance_type.name: instance_type.price_per_hour for instance_type in types},
        "refused_types": [instance_type.name for instance_type in types if instance_type.name not in available],
        "limits": asdict(fleet.scaling.limits),
        "scheduled_machines": scheduled_minimum(fleet.scaling.schedules, snapshot.now),
        "launches_last_minute": sum(ago < LAUNCH_WINDOW_SECONDS for ago in fleet.launches_ago),
        "boot_seconds": round(fleet.boot_seconds, 1),
        "following_jobs": round(fleet.following_jobs, 1),
        "failed_boots": fleet.failed_boots,
        "limit": plan.limit,
    }
