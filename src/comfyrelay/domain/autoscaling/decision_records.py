"""Record decisions."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from comfyrelay.domain.autoscaling.limits import LAUNCH_WINDOW_SECONDS
from comfyrelay.domain.autoscaling.observation import MachineState, ObservedFleet, StageSnapshot
from comfyrelay.domain.autoscaling.plan import FleetPlan
from comfyrelay.domain.autoscaling.schedules import at_least
from comfyrelay.domain.autoscaling.spec import InstanceType

# Number of machines kept with a decision, in addition to the counts by state.
MACHINES_KEPT = 50


def reason_class(reason: str) -> str:
    """The reason without numbers and observations: unchanged means nothing new to report."""
    return re.sub(r"\d+(\.\d+)?", "#", reason.partition(": ")[2] or reason)


def describe_observation(
    seen: ObservedFleet, plan: FleetPlan, snapshot: StageSnapshot, types: Sequence[InstanceType]
) -> Mapping[str, Any]:
    """The observation behind a decision, for the record."""
    left = {instance_type_.name for instance_type_ in seen.instance_types}
    # booting machines first: waiting jobs refer to them
    kept = sorted(seen.machines, key=lambda machine: machine.state is not MachineState.BOOTING)[:MACHINES_KEPT]
    return {
        "work": [
            {
                "workflow": each.workflow,
                "jobs": each.jobs,
                "seconds": round(each.seconds, 1),
                "jobs_per_second": round(each.jobs_per_second, 5),
                "arrivals_seconds": round(each.arrivals_seconds, 1),
            }
            for each in snapshot.work
            if each.workflow in seen.workflows and (each.jobs or each.jobs_per_second > 1e-5)
        ],
        "machines": [
            {
                "id": each.id,
                "state": str(each.state),
                "leases": each.leases,
                "instance_type": each.instance_type,
                "price_per_hour": each.price_per_hour,
                "boot_seconds_left": round(each.boot_seconds_left, 1),
                "busy_seconds_left": round(each.busy_seconds_left, 1),
                "idle_seconds": round(each.idle_seconds, 1),
            }
            for each in kept
        ],
        "machines_left_out": len(seen.machines) - len(kept),
        "machines_by_state": dict(Counter(str(machine.state) for machine in seen.machines)),
        "prices": {type_.name: type_.price_per_hour for type_ in types},
        "refused_types": [type_.name for type_ in types if type_.name not in left],
        "limits": asdict(seen.scaling.limits),
        "scheduled_machines": at_least(seen.scaling.schedules, snapshot.now),
        "launches_last_minute": sum(ago < LAUNCH_WINDOW_SECONDS for ago in seen.launches_ago),
        "boot_seconds": round(seen.boot_seconds, 1),
        "following_jobs": round(seen.following_jobs, 1),
        "failed_boots": seen.failed_boots,
        "limit": plan.limit,
    }
