"""Launch limits: machines, launches per minute, cost per hour, and the circuit breaker."""

from collections.abc import Sequence
from dataclasses import dataclass

from comfyrelay.domain.autoscaling import reasons
from comfyrelay.domain.autoscaling.capacity import is_capacity
from comfyrelay.domain.autoscaling.observation import MachineState, ObservedFleet, ObservedMachine
from comfyrelay.domain.autoscaling.plan import Launch
from comfyrelay.domain.autoscaling.spec import InstanceType

# Tolerance when comparing sums of prices.
PRICE_ERROR = 1e-9
# Launches are limited per minute.
LAUNCH_WINDOW_SECONDS = 60.0
# Circuit breaker: if launched machines never become workers, more launches only cost money.
PAUSE_SECONDS = 300.0
MAX_PAUSE_SECONDS = 3600.0
UP = (MachineState.READY, MachineState.BUSY)
_ANY = InstanceType(name="")


@dataclass(frozen=True, kw_only=True, slots=True)
class Headroom:
    """The number and type of machines that may be launched, and the limit that applies.

    Draining machines count, because they cost money. `user_text` is the limit without the provider's message, which is
    only for operators.
    """

    launches: int
    instance_type: InstanceType
    limit: str
    user_text: str

    def launch(self, count: int) -> tuple[Launch, ...]:
        return (Launch(count=count, instance_type=self.instance_type.name or None),) if count > 0 else ()


NO_HEADROOM = Headroom(launches=0, instance_type=_ANY, limit="", user_text="")


def headroom(fleet: ObservedFleet) -> Headroom:
    limits = fleet.scaling.limits
    kind = _affordable_type(fleet, limits.cost_per_hour)
    bounds = [
        (limits.max_machines - len(fleet.machines), f"the limit is {limits.max_machines} machines"),
        (
            limits.launches_per_minute - sum(ago < LAUNCH_WINDOW_SECONDS for ago in fleet.launches_ago),
            f"the limit is {limits.launches_per_minute} launches a minute",
        ),
        *_registration_limits(fleet),
    ]
    if limits.cost_per_hour is not None:
        affordable, text = _cost_limit(fleet, limits.cost_per_hour, kind)
        bounds.append((affordable, text))
    if fleet.all_types_refused:
        bounds.append((0, fleet.refusal or "none of its instance types is currently available"))
    pause = pause_left(fleet)
    if pause is not None:
        # After the pause, one machine is launched, and the next launch waits for its result.
        is_booting = any(machine.state is MachineState.BOOTING for machine in fleet.machines)
        rounds = reasons.count(fleet.failed_boots, "launch round")
        text = f"none of the machines from the last {rounds} became a worker"
        text += f" (next attempt in {pause:.0f} s)" if pause else ""
        bounds.append((int(pause == 0 and not is_booting), text))
    launches, limit = min(bounds, key=lambda bound: bound[0])
    user_text = "its provider currently refuses launches" if limit == fleet.refusal else limit
    return Headroom(launches=max(0, launches), instance_type=kind or _ANY, limit=limit, user_text=user_text)


def _cost_limit(fleet: ObservedFleet, limit: float, kind: InstanceType | None) -> tuple[int, str]:
    """Return how many machines the cost limit allows, and the text for it. `kind` is `None` if none is affordable."""
    left = limit - cost_per_hour(fleet)
    text = f"the cost limit is {limit:g} per hour"
    if kind is None:
        return 0, text
    # Without named types, assume for the next machine the price of the most expensive existing one.
    highest = max((machine.price_per_hour for machine in fleet.machines), default=0.0)
    price = highest if kind is _ANY else kind.price_per_hour
    if price > 0:
        return int((left + PRICE_ERROR) / price), text
    if kind is _ANY and not any(machine.state in UP for machine in fleet.machines):
        # Launch one machine to learn the price. If it is still unknown once the machine runs, it stays unknown.
        affordable = 1 - len(fleet.machines) if left > PRICE_ERROR else 0
        return affordable, f"{text}, and the price of the first machine is not yet known"
    # Here, the price is 0. For `_ANY` it is unknown, so a spent budget allows no machine; a free type needs no budget.
    is_allowed = left > (PRICE_ERROR if kind is _ANY else -PRICE_ERROR)
    return fleet.scaling.limits.max_machines - len(fleet.machines) if is_allowed else 0, text


def _registration_limits(fleet: ObservedFleet) -> list[tuple[int, str]]:
    """Return the limits beyond which machines could not become workers."""
    present, bounds = len(fleet.machines) + fleet.workers_without_machine, []
    if fleet.max_workers is not None:
        bounds.append((fleet.max_workers - present, f"at most {fleet.max_workers} workers may register in the fleet"))
    if fleet.max_workers_of_all_fleets is not None:
        left = fleet.max_workers_of_all_fleets - fleet.workers_elsewhere - present
        bounds.append((left, f"at most {fleet.max_workers_of_all_fleets} workers may register in all fleets together"))
    if not fleet.can_register:
        bounds.append((0, "no workflow is mapped to it, so no worker could register"))
    return bounds


def cost_per_hour(fleet: ObservedFleet) -> float:
    return sum(machine.price_per_hour for machine in fleet.machines)


@dataclass(frozen=True, kw_only=True, slots=True)
class Excess:
    """The number of machines beyond the limits, and those to terminate."""

    count: int
    end: Sequence[ObservedMachine] = ()


def beyond_limits(fleet: ObservedFleet, dispensable: Sequence[ObservedMachine]) -> Excess:
    """Return the machines beyond limits that were lowered. Draining machines are not counted.

    For the cost limit, the most expensive dispensable machines are terminated; for the machine limit, the first ones.
    """
    limits = fleet.scaling.limits
    staying = [machine for machine in fleet.machines if is_capacity(machine)]
    count = max(0, len(staying) - limits.max_machines)
    if limits.cost_per_hour is None:
        return Excess(count=count, end=dispensable[:count])
    cost = sum(machine.price_per_hour for machine in staying)
    too_expensive = len(_most_expensive_beyond(limits.cost_per_hour, staying, cost))
    ended = _most_expensive_beyond(limits.cost_per_hour, dispensable, cost)
    ended += [machine for machine in dispensable if machine not in ended][: max(0, count - len(ended))]
    return Excess(count=max(count, too_expensive, len(ended)), end=ended)


def _most_expensive_beyond(allowed: float, machines: Sequence[ObservedMachine], cost: float) -> list[ObservedMachine]:
    """Return the machines to terminate so that the rest is within the cost limit. Free machines stay."""
    found = []
    for machine in sorted(machines, key=lambda machine: -machine.price_per_hour):
        if cost <= allowed + PRICE_ERROR or machine.price_per_hour <= 0:
            break
        cost -= machine.price_per_hour
        found.append(machine)
    return found


def preferred_type(fleet: ObservedFleet) -> InstanceType:
    return fleet.instance_types[0] if fleet.instance_types else _ANY


def _affordable_type(fleet: ObservedFleet, limit: float | None) -> InstanceType | None:
    """Return the first of the fleet's types that the cost limit allows."""
    if limit is None or not fleet.instance_types:
        return preferred_type(fleet)
    left = limit - cost_per_hour(fleet) + PRICE_ERROR
    return next((type_ for type_ in fleet.instance_types if type_.price_per_hour <= left), None)


def pause_left(fleet: ObservedFleet) -> float | None:
    """Return the remaining pause after consecutive failed rounds. Each further round doubles the pause.

    0 means that one machine may be launched; `None` means that there is no pause, because too few rounds failed.
    """
    beyond = fleet.failed_boots - fleet.scaling.limits.failed_boots
    if beyond < 0 or fleet.failed_boots == 0:
        return None
    # Bound the exponent for any number of failures.
    pause = min(PAUSE_SECONDS * (1 << min(beyond, 10)), MAX_PAUSE_SECONDS)
    return max(0.0, pause - (fleet.failed_boot_seconds_ago or 0.0))
