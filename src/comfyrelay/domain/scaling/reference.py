"""What alarms on queue depth do: from none to one while anything waits, then a backlog of 2 for each worker, and none
after 15 minutes without work.

An alarm sees what was published, once a minute, and acts when it has looked at it for a minute more. That delay is not
in here: whoever asks for this policy does so once a minute, with the work of the minute before (the simulation does;
the scaling loop, which has no metrics to wait for, shows the policy at its best). Target tracking takes machines away
only after 15 low minutes in a row, and those that run something are protected.
"""

from math import ceil

from comfyrelay.domain.scaling.snapshot import MachineState, SeenFleet, SeenMachine
from comfyrelay.domain.scaling.staffing import is_capacity, is_idle

BACKLOG_TARGET = 2.0
# Target tracking calls a backlog low below nine tenths of its target.
LOW_BACKLOG = 0.9 * BACKLOG_TARGET
LOW_SECONDS = 900.0
ZERO_AFTER_SECONDS = 900.0


def backlog(depth: int, workers: int) -> float:
    return depth / workers if workers else float(depth)


def wanted(fleet: SeenFleet, queued: int) -> int:
    """How many machines the two policies ask for while they scale out."""
    depth = queued + sum(each.leases for each in fleet.machines)
    if depth == 0:
        return 0
    if not any(is_capacity(each) for each in fleet.machines):
        return 1
    workers = sum(each.state in (MachineState.READY, MachineState.BUSY) for each in fleet.machines)
    return ceil(max(1, workers) * backlog(depth, workers) / BACKLOG_TARGET)


def to_end(fleet: SeenFleet, queued: int, floor: int) -> list[SeenMachine]:
    capacity = [each for each in fleet.machines if is_capacity(each)]
    idle = sorted((each for each in capacity if is_idle(each)), key=lambda each: (-each.idle_seconds, each.id))
    if fleet.idle_seconds is not None and fleet.idle_seconds >= ZERO_AFTER_SECONDS:
        return idle[: max(0, len(capacity) - floor)]
    excess = len(capacity) - max(1, floor, wanted(fleet, queued))
    if excess <= 0:
        return []
    if fleet.low_seconds is None:
        idle = [each for each in idle if each.idle_seconds >= LOW_SECONDS]
    elif fleet.low_seconds < LOW_SECONDS:
        return []
    return idle[:excess]
