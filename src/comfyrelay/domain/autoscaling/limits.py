"""Launch limits: machines, launches per minute, cost per hour, and the circuit breaker."""

from collections.abc import Sequence
from dataclasses import dataclass

from comfyrelay.domain.autoscaling.observation import MachineState, ObservedFleet, ObservedMachine
from comfyrelay.domain.autoscaling.plan import Launch
from comfyrelay.domain.autoscaling.spec import InstanceType

# Tolerance when comparing sums of prices.
MONEY_ERROR = 1e-9
# Launches are limited per minute.
LAUNCH_WINDOW_SECONDS = 60.0
# Circuit breaker: if launched machines never become workers, more launches only cost money.
PAUSE_SECONDS = 300.0
LONGEST_PAUSE_SECONDS = 3600.0
_ANY = InstanceType(name="")
_UP = (MachineState.READY, MachineState.BUSY)


@dataclass(frozen=True, kw_only=True, slots=True)
class Headroom:
    """How many machines of which type may be launched, and which limit applies.

    Draining machines count, because they cost.
    """

    launches: int
    instance_type: InstanceType
    limit: str
    # the limit as text for users; provider messages are for operators
    told: str

    def launch(self, count: int) -> tuple[Launch, ...]:
        return (Launch(count=count, instance_type=self.instance_type.name or None),) if count > 0 else ()


NO_HEADROOM = Headroom(launches=0, instance_type=_ANY, limit="", told="")
REFUSES = "its provider launches none now"


def headroom(fleet: ObservedFleet) -> Headroom:
    limits = fleet.scaling.limits
    kind = _type_within(fleet, limits.cost_per_hour)
    bounds = [
        (limits.max_machines - len(fleet.machines), f"the limit is {limits.max_machines} machines"),
        (
            limits.launches_per_minute - sum(ago < LAUNCH_WINDOW_SECONDS for ago in fleet.launches_ago),
            f"the limit is {limits.launches_per_minute} launches a minute",
        ),
        *_places(fleet),
    ]
    if limits.cost_per_hour is not None:
        left = limits.cost_per_hour - cost_per_hour(fleet)
        text = f"the limit is {limits.cost_per_hour:g} an hour"
        # without named types, the next may cost what the most expensive does
        known = max((machine.price_per_hour for machine in fleet.machines), default=0.0)
        price = known if kind is _ANY else kind.price_per_hour if kind is not None else 0.0
        if kind is None:
            affordable = 0
        elif price > 0:
            affordable = int((left + MONEY_ERROR) / price)
        elif kind is _ANY and not any(machine.state in _UP for machine in fleet.machines):
            # launch one to learn the price; if it is still unknown once it runs, it stays unknown
            affordable = 1 - len(fleet.machines) if left > MONEY_ERROR else 0
            text += ", and the first has not told its price yet"
        else:
            # no free machines where machines may cost something
            affordable = bounds[0][0] if left > (MONEY_ERROR if kind is _ANY else -MONEY_ERROR) else 0
        bounds.append((affordable, text))
    if fleet.all_types_refused:
        bounds.append((0, fleet.refusal or "none of its instance types can be had now"))
    pause = pause_left(fleet)
    if pause is not None:
        # after the pause one machine is tried, and the next waits for its result
        tries = 1 if pause == 0 and not any(machine.state is MachineState.BOOTING for machine in fleet.machines) else 0
        text = f"{fleet.failed_boots} launches in a row never became a worker"
        bounds.append((tries, f"{text} (tried again in {pause:.0f} s)" if pause else text))
    launches, limit = min(bounds, key=lambda bound: bound[0])
    told = REFUSES if limit == fleet.refusal else limit
    return Headroom(launches=max(0, launches), instance_type=kind or _ANY, limit=limit, told=told)


def _places(fleet: ObservedFleet) -> list[tuple[int, str]]:
    """Machines beyond these could not become workers."""
    there, found = len(fleet.machines) + fleet.workers_without_machine, []
    if fleet.max_workers is not None:
        found.append((fleet.max_workers - there, f"{fleet.max_workers} workers may register in the fleet"))
    if fleet.max_workers_of_all_fleets is not None:
        left = fleet.max_workers_of_all_fleets - fleet.workers_elsewhere - there
        found.append((left, f"{fleet.max_workers_of_all_fleets} workers may register in all fleets together"))
    if not fleet.can_register:
        found.append((0, "no workflow is mapped to it, so that no worker could register"))
    return found


def cost_per_hour(fleet: ObservedFleet) -> float:
    return sum(machine.price_per_hour for machine in fleet.machines)


@dataclass(frozen=True, kw_only=True, slots=True)
class Excess:
    """How many machines are too many, and which to terminate."""

    count: int
    end: Sequence[ObservedMachine] = ()


def beyond_limits(fleet: ObservedFleet, dispensable: Sequence[ObservedMachine]) -> Excess:
    """Apply lowered limits.

    Draining machines are not counted again. For cost the most expensive dispensable machines go, for the number the
    first.
    """
    limits = fleet.scaling.limits
    staying = [machine for machine in fleet.machines if machine.state is not MachineState.DRAINING]
    count = max(0, len(staying) - limits.max_machines)
    if limits.cost_per_hour is None:
        return Excess(count=count, end=dispensable[:count])
    allowed = limits.cost_per_hour
    too_dear = len(_dearest_beyond(allowed, staying, sum(each.price_per_hour for each in staying)))
    ended = _dearest_beyond(allowed, dispensable, sum(each.price_per_hour for each in staying))
    ended += [each for each in dispensable if each not in ended][: max(0, count - len(ended))]
    return Excess(count=max(count, too_dear, len(ended)), end=ended)


def _dearest_beyond(allowed: float, machines: Sequence[ObservedMachine], cost: float) -> list[ObservedMachine]:
    """Terminate until the rest is within the cost limit. Free machines stay."""
    found = []
    for machine in sorted(machines, key=lambda each: -each.price_per_hour):
        if cost <= allowed + MONEY_ERROR or machine.price_per_hour <= 0:
            break
        cost -= machine.price_per_hour
        found.append(machine)
    return found


def preferred_type(fleet: ObservedFleet) -> InstanceType:
    return fleet.instance_types[0] if fleet.instance_types else _ANY


def _type_within(fleet: ObservedFleet, cost: float | None) -> InstanceType | None:
    """The first of the fleet's types that the budget allows."""
    if not fleet.instance_types:
        return _ANY
    if cost is None:
        return fleet.instance_types[0]
    left = cost - cost_per_hour(fleet) + MONEY_ERROR
    return next(
        (instance_type_ for instance_type_ in fleet.instance_types if instance_type_.price_per_hour <= left), None
    )


def pause_left(fleet: ObservedFleet) -> float | None:
    """How long launching pauses after consecutive failed boots; `None` if too few failed, 0 when one machine may be
    tried. Each further failure doubles the pause."""
    beyond = fleet.failed_boots - fleet.scaling.limits.failed_boots
    if beyond < 0 or fleet.failed_boots == 0:
        return None
    # a bounded exponent, for any number of failures
    pause = min(PAUSE_SECONDS * (1 << min(beyond, 10)), LONGEST_PAUSE_SECONDS)
    return max(0.0, pause - (fleet.failed_boot_seconds_ago or 0.0))
