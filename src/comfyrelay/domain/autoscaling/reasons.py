"""Reasons of plans, for operators."""

from collections import Counter
from collections.abc import Sequence

from comfyrelay.domain.autoscaling.observation import MachineState, ObservedFleet, ObservedMachine


def count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def work(jobs: int, seconds: float) -> str:
    return f"{count(jobs, 'job')}, {seconds:.0f} s of work" if jobs else "no jobs wait"


def machines(fleet: ObservedFleet) -> str:
    states = Counter(
        MachineState.BUSY if machine.state is MachineState.READY and machine.leases else machine.state
        for machine in fleet.machines
    )
    texts = {state: f"{number} {state}" for state, number in states.items()}
    boots = [machine.boot_seconds_left for machine in fleet.machines if machine.state is MachineState.BOOTING]
    if boots:
        texts[MachineState.BOOTING] += f" ({max(0.0, min(boots)):.0f} s left)"
    order = (MachineState.READY, MachineState.BUSY, MachineState.BOOTING, MachineState.DRAINING)
    return " + ".join(texts[state] for state in order if state in texts) or "no machine"


def beyond_limits(fleet: ObservedFleet, excess: int, ended: int) -> str:
    kept = "busy or foreign" if any(machine.is_foreign for machine in fleet.machines) else "busy"
    return f"{count(excess, 'machine')} over the limits: terminating {ended} (never {kept} ones)"


def ending(ended: Sequence[ObservedMachine], limit_seconds: float) -> str:
    idle = [machine.idle_seconds for machine in ended if machine.state is MachineState.READY]
    if not idle:
        return f"terminating {count(len(ended), 'machine')} still booting"
    return f"idle for {min(idle):.0f} s (at most {limit_seconds:.0f} s): terminating {len(ended)}"
