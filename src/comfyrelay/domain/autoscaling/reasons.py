"""Reasons of plans, for operators."""

from collections.abc import Sequence

from comfyrelay.domain.autoscaling.observation import MachineState, ObservedFleet, ObservedMachine


def count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def work(jobs: int, seconds: float) -> str:
    return f"{count(jobs, 'job')}, {seconds:.0f} s of work" if jobs else "nothing waits"


def machines(fleet: ObservedFleet) -> str:
    ready = busy = draining = 0
    booting: list[ObservedMachine] = []
    for machine in fleet.machines:
        if machine.state is MachineState.BOOTING:
            booting.append(machine)
        elif machine.state is MachineState.DRAINING:
            draining += 1
        elif machine.state is MachineState.BUSY or machine.leases:
            busy += 1
        else:
            ready += 1
    parts = [f"{number} {word}" for number, word in ((ready, "ready"), (busy, "busy")) if number]
    if booting:
        left = min(each.boot_seconds_left for each in booting)
        parts.append(f"{len(booting)} booting ({max(0.0, left):.0f} s left)")
    if draining:
        parts.append(f"{draining} draining")
    return " + ".join(parts) or "no machine"


def beyond(fleet: ObservedFleet, count_: int, ended: int) -> str:
    never = "busy ones and foreign ones" if any(machine.is_foreign for machine in fleet.machines) else ""
    return f"{count(count_, 'machine')} beyond the limits; ending {ended} of them, {never or 'busy ones'} never"


def ending(ended: Sequence[ObservedMachine], limit_seconds: float) -> str:
    idle = [each.idle_seconds for each in ended if each.state is MachineState.READY]
    if not idle:
        return f"ending {len(ended)} that still boot"
    return f"idle for {min(idle):.0f} s (at most {limit_seconds:.0f} s): ending {len(ended)}"
