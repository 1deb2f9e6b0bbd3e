"""How a decision is written down."""

import re
from collections.abc import Mapping
from typing import Any

from comfyrelay.domain.scaling.plan import FleetPlan
from comfyrelay.domain.scaling.snapshot import SeenFleet, Snapshot


def reason_class(reason: str) -> str:
    """A reason without what was seen, and without numbers: as long as it stays the same, nothing new is to be told."""
    return re.sub(r"\d+(\.\d+)?", "#", reason.partition(": ")[2] or reason)


def what_was_seen(seen: SeenFleet, plan: FleetPlan, snapshot: Snapshot) -> Mapping[str, Any]:
    """What a decision was made on, as it is kept."""
    return {
        "work": [
            {
                "workflow": each.workflow,
                "jobs": each.jobs,
                "seconds": round(each.seconds, 1),
                "jobs_per_second": round(each.jobs_per_second, 5),
            }
            for each in snapshot.work
            if each.workflow in seen.workflows and (each.jobs or each.jobs_per_second > 1e-5)
        ],
        "machines": [
            {
                "id": each.id,
                "state": str(each.state),
                "leases": each.leases,
                "seconds": round(each.boot_seconds_left or each.busy_seconds_left or each.idle_seconds, 1),
            }
            for each in seen.machines
        ],
        "boot_seconds": round(seen.boot_seconds, 1),
        "failed_boots": seen.failed_boots,
        "limit": plan.limit,
    }
