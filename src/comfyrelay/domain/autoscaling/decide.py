"""Decide how many machines each fleet of a stage should have: a pure function of an observation."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from comfyrelay.domain.autoscaling import baseline, reasons
from comfyrelay.domain.autoscaling.capacity import (
    ROUNDING,
    Load,
    arriving,
    can_do,
    can_terminate,
    drained_in,
    free_slots,
    is_capacity,
    is_idle,
    machines_for,
    queued_seconds,
    rate,
    seconds_per_job,
)
from comfyrelay.domain.autoscaling.limits import NO_HEADROOM, Headroom, beyond_limits, headroom, preferred_type
from comfyrelay.domain.autoscaling.observation import (
    MachineState,
    ObservedFleet,
    ObservedMachine,
    QueuedWork,
    StageSnapshot,
)
from comfyrelay.domain.autoscaling.plan import FleetPlan
from comfyrelay.domain.autoscaling.policies import WEIGHTS
from comfyrelay.domain.autoscaling.schedules import at_least
from comfyrelay.domain.autoscaling.spec import Policy


def decide(snapshot: StageSnapshot) -> Sequence[FleetPlan]:
    """Return one plan per fleet, in order.

    Work that several fleets serve is staffed once: by existing machines, then by the cheapest fleet, then the fastest.
    """
    stage = _Stage(snapshot)
    plans = {each.slug: _plan(stage, each) for each in stage.by_price}
    return [plans[fleet.slug] for fleet in snapshot.fleets]


def _plan(stage: "_Stage", fleet: ObservedFleet) -> FleetPlan:
    try:
        return stage.plan(fleet)
    except Exception as error:
        # overflow in one fleet must not affect the others
        why = f"nothing is done, for nothing can be decided ({type(error).__name__}: {error})"
        return FleetPlan(
            fleet=fleet.slug, desired=stage.capacity[fleet.slug], reason=f"{reasons.machines(fleet)}: {why}"
        )


@dataclass(kw_only=True, slots=True)
class _Left:
    """The part of a workflow's queue that no machine takes yet.

    `seconds` includes expected arrivals; `jobs` are waiting ones.
    """

    jobs: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wish:
    """What a policy wants before limits: additional machines, or machines to terminate."""

    more: int
    why: str
    end: Sequence[ObservedMachine] = ()


class _Stage:
    def __init__(self, snapshot: StageSnapshot) -> None:
        self.now = snapshot.now
        self.work = {each.workflow: each for each in snapshot.work}
        self.by_price = sorted(snapshot.fleets, key=_price)
        # machines that are or will be capacity
        self.capacity = {
            fleet.slug: sum(is_capacity(machine) for machine in fleet.machines) for fleet in snapshot.fleets
        }
        # Arrivals of each workflow, and of each pair of fleets that share one. They count once observed for the
        # shortest boot time of the fleets that could serve them.
        boots: dict[int, float] = {}
        for fleet in snapshot.fleets:
            for number in fleet.workflows & self.work.keys():
                boots[number] = min(boots.get(number, inf), fleet.boot_seconds)
        self.load = {number: arriving(each, boots.get(number, inf)) for number, each in self.work.items()}
        self.shared: dict[tuple[str, str], Load] = {}
        self.left = self._beyond_what_is_there()

    def plan(self, fleet: ObservedFleet) -> FleetPlan:
        work = [each for each in self.work.values() if each.workflow in fleet.workflows]
        jobs = sum(each.jobs for each in work)
        seen = f"{reasons.work(jobs, sum(queued_seconds(each) for each in work))}, {reasons.machines(fleet)}"
        if fleet.scaling.is_paused:
            why = fleet.scaling.unreadable
            why = "paused, nothing is done" if why is None else f"paused, its settings cannot be read: {why}"
            return FleetPlan(fleet=fleet.slug, desired=self.capacity[fleet.slug], reason=f"{seen}: {why}")
        floor = max(fleet.scaling.limits.min_machines, at_least(fleet.scaling.schedules, self.now))
        wish = (
            self._reference(fleet, jobs, floor)
            if fleet.scaling.policy is Policy.REFERENCE
            else self._weighed(fleet, work, jobs, floor)
        )
        return self._within_limits(fleet, wish, seen)

    def _beyond_what_is_there(self) -> dict[int, _Left]:
        can = {each.slug: can_do(each.machines, _horizon(each)) if each.machines else 0.0 for each in self.by_price}
        free = {fleet.slug: sum(free_slots(machine) for machine in fleet.machines) for fleet in self.by_price}
        left = {}
        # while jobs wait, arrivals up to the time a machine could start count as work, too
        waited_for = {
            number
            for fleet in self.by_price
            if any(self.work[number].jobs for number in fleet.workflows & self.work.keys())
            for number in fleet.workflows & self.work.keys()
        }
        serving = {
            number: [fleet for fleet in self.by_price if number in fleet.workflows]
            for number in self.work
            if number in waited_for
        }
        # workflows with the fewest fleets first: the others have alternatives
        for number in sorted(serving, key=lambda each: (len(serving[each]), each)):
            work = self.work[number]
            soon = max(rate(work, fleet.boot_seconds) * _horizon(fleet) for fleet in serving[number])
            total = seconds = queued_seconds(work) + soon * seconds_per_job(work)
            if total <= 0:
                continue
            jobs = work.jobs
            for fleet in serving[number]:
                taken = min(seconds, can[fleet.slug])
                can[fleet.slug] -= taken
                seconds -= taken
                begun = min(jobs, free[fleet.slug])
                free[fleet.slug] -= begun
                jobs -= begun
            # limited by jobs: each runs on one machine, and booting machines have theirs already
            left[number] = _Left(jobs=min((work.jobs + soon) * seconds / total, jobs), seconds=seconds)
        return left

    def _weighed(self, fleet: ObservedFleet, work: Sequence[QueuedWork], jobs: int, floor: int) -> _Wish:
        own = self.capacity[fleet.slug]
        load = sum((self.load[each.workflow] for each in work), Load())
        for_rate = self._for_arrivals(fleet, load.to_launch)
        elsewhere = self._elsewhere(fleet)
        for_queue = self._for_queue(fleet)
        known = max(for_queue, for_rate - elsewhere - own, floor - own, 0)
        more = max(known, self._with_what_follows(fleet, work, jobs))
        if more > 0:
            seconds = sum(queued_seconds(each) for each in work)
            allowed = min(more, max(0, fleet.scaling.limits.max_machines - own))
            wait = drained_in(seconds, [*fleet.machines, *_new(fleet, allowed)]) or 0.0
            if floor - own == more:
                why = f"never fewer than {floor} now"
            elif jobs:
                why = f"{reasons.count(own + more, 'machine')} would keep the wait near {wait:.0f} s"
                if more > known:
                    why += f": {known} for what waits, {more - known} for what usually follows"
            else:
                why = f"what arrives needs {reasons.count(own + more, 'machine')}"
            return _Wish(more=more, why=why)
        keep = max(floor, self._for_arrivals(fleet, load.to_keep) - self._elsewhere(fleet, cheaper=True))
        return self._idle(fleet, work, jobs, keep)

    def _idle(self, fleet: ObservedFleet, work: Sequence[QueuedWork], jobs: int, keep: int) -> _Wish:
        """Judge each machine by its own idle time: idling longer than a boot costs more than booting again."""
        own = self.capacity[fleet.slug]
        limit = WEIGHTS[fleet.scaling.policy].idle_boots * fleet.boot_seconds
        idle = sum(is_idle(each) for each in fleet.machines)
        # machines that waiting jobs will take in a moment are not idle
        spare = min(own - keep, idle - ceil(jobs / fleet.slots))
        ended: list[ObservedMachine] = []
        for machine in _idle_longest_first(fleet)[: max(0, spare)]:
            limit_now = fleet.scaling.last_idle_seconds if own - len(ended) == 1 else limit
            if machine.idle_seconds < limit_now:
                break
            ended.append(machine)
            limit = limit_now
        if ended:
            return _Wish(more=0, why=reasons.ending(ended, limit), end=ended)
        if jobs == 0:
            return _Wish(more=0, why=reasons.count(own, "machine stays", "machines stay") if own else "nothing to do")
        wait = drained_in(sum(queued_seconds(each) for each in work), fleet.machines)
        why = "others take it" if wait is None else f"the wait is near {wait:.0f} s, no more are needed"
        return _Wish(more=0, why=why)

    def _for_queue(self, fleet: ObservedFleet) -> int:
        """Additional machines needed to finish waiting work soon after they could start."""
        left = [each for number, each in self.left.items() if number in fleet.workflows and each.seconds > ROUNDING]
        by_work = sum(each.seconds for each in left) / _does(fleet)
        # a job runs on one machine
        by_jobs = sum(each.jobs for each in left) / fleet.slots
        return ceil(min(by_work, by_jobs) - ROUNDING)

    def _for_arrivals(self, fleet: ObservedFleet, load: float) -> int:
        kind = preferred_type(fleet)
        return machines_for(load / (kind.speed * fleet.slots), WEIGHTS[fleet.scaling.policy].spare)

    def _with_what_follows(self, fleet: ObservedFleet, work: Sequence[QueuedWork], jobs: int) -> int:
        """If no machine runs and jobs wait:

        machines for them and for the usual followers, which should not wait for a second boot.
        """
        follow = WEIGHTS[fleet.scaling.policy].following * (1 + fleet.following_jobs - jobs)
        if not jobs or follow <= 0:
            return 0
        serving = [each for each in self.by_price if each.workflows & fleet.workflows]
        if any(machine.state in _UP for peer in serving for machine in peer.machines):
            return 0
        by_jobs = (jobs + follow) / fleet.slots
        by_work = sum(queued_seconds(each) for each in work) * (1 + follow / jobs) / _does(fleet)
        return ceil(min(by_work, by_jobs) - ROUNDING) - sum(self.capacity[each.slug] for each in serving)

    def _elsewhere(self, fleet: ObservedFleet, *, cheaper: bool = False) -> int:
        """Machines of other fleets that take a share of this fleet's arrivals."""
        found = 0
        for other in self.by_price:
            if other.slug == fleet.slug:
                if cheaper:
                    break
                continue
            if not self.capacity[other.slug] or other.scaling.policy is Policy.REFERENCE:
                continue
            load = self._shared_load(fleet, other).to_launch
            found += min(self.capacity[other.slug], self._for_arrivals(other, load))
        return found

    def _shared_load(self, fleet: ObservedFleet, other: ObservedFleet) -> Load:
        """cached, because each pair is queried from both sides"""
        pair = (min(fleet.slug, other.slug), max(fleet.slug, other.slug))
        if pair not in self.shared:
            both = fleet.workflows & other.workflows & self.load.keys()
            self.shared[pair] = sum((self.load[number] for number in sorted(both)), Load())
        return self.shared[pair]

    def _reference(self, fleet: ObservedFleet, jobs: int, floor: int) -> _Wish:
        own = self.capacity[fleet.slug]
        more = max(baseline.wanted(fleet, jobs), floor) - own
        if more > 0 and baseline.has_acted(fleet):
            return _Wish(more=0, why="its alarms have acted, and look again in a minute")
        if more > 0:
            return _Wish(more=more, why=f"a backlog of {baseline.BACKLOG_TARGET:g} for each needs {own + more}")
        ended = baseline.to_end(fleet, jobs, floor)
        return _Wish(more=0, why=f"ending {len(ended)}" if ended else "nothing to do", end=ended)

    def _within_limits(self, fleet: ObservedFleet, wish: _Wish, seen: str) -> FleetPlan:
        own = self.capacity[fleet.slug]
        excess = beyond_limits(fleet, _dispensable(fleet))
        if excess.count:
            wish = _Wish(more=0, why=reasons.beyond(fleet, excess.count, len(excess.end)), end=excess.end)
        space = headroom(fleet) if wish.more > 0 else NO_HEADROOM
        launched = max(0, min(wish.more, space.launches))
        why = wish.why
        if wish.more > launched:
            why += f"; launching {launched} of {wish.more}: {space.limit}"
        elif launched:
            why += f"; launching {launched}"
        is_report = fleet.scaling.is_dry_run or not fleet.can_launch
        does_it = not is_report or (fleet.is_scaled_externally and not fleet.scaling.is_dry_run)
        if does_it and launched:
            self._take(fleet, space, launched)
        if fleet.scaling.is_dry_run and (fleet.can_launch or fleet.is_scaled_externally):
            why += " (dry run: nothing is done)"
        elif is_report and fleet.is_scaled_externally:
            why += " (its cluster does it)"
        elif is_report:
            why += " (this fleet only reports: nothing is done)"
        return FleetPlan(
            fleet=fleet.slug,
            desired=own + launched - len(wish.end),
            reason=f"{seen}: {why}",
            launch=space.launch(launched),
            end=[each.id for each in wish.end],
            is_report=is_report,
            limit=space.told if wish.more > launched else None,
        )

    def _take(self, fleet: ObservedFleet, space: Headroom, launched: int) -> None:
        """Later fleets see the planned changes of this one."""
        self.capacity[fleet.slug] += launched
        can = launched * _does(fleet, speed=space.instance_type.speed)
        slots = float(launched * fleet.slots)
        for number in sorted(fleet.workflows & self.left.keys()):
            left = self.left[number]
            if left.seconds <= 0:
                continue
            taken = min(left.seconds, can)
            can -= taken
            begun = min(left.jobs, slots)
            slots -= begun
            left.jobs = min(left.jobs - begun, left.jobs * (1 - taken / left.seconds))
            left.seconds -= taken


_UP = (MachineState.READY, MachineState.BUSY)


def _price(fleet: ObservedFleet) -> tuple[float, float, str]:
    kind = preferred_type(fleet)
    return (kind.price_per_hour, -kind.speed, fleet.slug)


def _horizon(fleet: ObservedFleet) -> float:
    """Work that existing machines finish by then needs no other."""
    weights = WEIGHTS.get(fleet.scaling.policy)
    return fleet.boot_seconds + (weights.drain_seconds if weights else 0.0)


def _does(fleet: ObservedFleet, speed: float | None = None) -> float:
    """Seconds of work that a machine launched now can do by the horizon."""
    drain = _horizon(fleet) - fleet.boot_seconds or 60.0
    return (speed or preferred_type(fleet).speed) * fleet.slots * drain


def _new(fleet: ObservedFleet, number: int) -> list[ObservedMachine]:
    """Combine machines into one with all their slots: only their total matters."""
    if number <= 0:
        return []
    booting = ObservedMachine(
        id="",
        state=MachineState.BOOTING,
        speed=preferred_type(fleet).speed,
        slots=fleet.slots * number,
        boot_seconds_left=fleet.boot_seconds,
    )
    return [booting]


def _longest_idle(machine: ObservedMachine) -> tuple[float, float, str]:
    return (-machine.idle_seconds, -machine.price_per_hour, machine.id)


def _idle_longest_first(fleet: ObservedFleet) -> list[ObservedMachine]:
    return sorted((machine for machine in fleet.machines if can_terminate(machine)), key=_longest_idle)


def _dispensable(fleet: ObservedFleet) -> list[ObservedMachine]:
    """Idle machines, then those with the longest boot time left. Never a busy one."""
    booting = [machine for machine in fleet.machines if machine.state is MachineState.BOOTING]
    return _idle_longest_first(fleet) + sorted(booting, key=lambda each: (-each.boot_seconds_left, each.id))
