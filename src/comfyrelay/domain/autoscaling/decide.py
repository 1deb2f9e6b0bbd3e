"""Decide how many machines each fleet of a stage should have: a pure function of an observation."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, sqrt

from comfyrelay.domain.autoscaling import baseline, reasons
from comfyrelay.domain.autoscaling.capacity import (
    ROUNDING,
    Load,
    arrival_rate,
    arriving_load,
    can_terminate,
    expected_wait,
    free_slots,
    is_capacity,
    is_idle,
    machines_for,
    queued_seconds,
    reserve,
    seconds_per_job,
    work_capacity,
)
from comfyrelay.domain.autoscaling.learning import idle_limit
from comfyrelay.domain.autoscaling.limits import NO_HEADROOM, UP, Headroom, beyond_limits, headroom, preferred_type
from comfyrelay.domain.autoscaling.observation import (
    MachineState,
    ObservedFleet,
    ObservedMachine,
    QueuedWork,
    StageSnapshot,
)
from comfyrelay.domain.autoscaling.plan import FleetPlan
from comfyrelay.domain.autoscaling.policies import WEIGHTS
from comfyrelay.domain.autoscaling.spec import Policy, scheduled_minimum


def decide(snapshot: StageSnapshot) -> Sequence[FleetPlan]:
    """Return one plan per fleet, in order.

    Work that several fleets can serve is staffed only once: by existing machines, then by the cheapest fleet, and among
    equally cheap fleets by the fastest.
    """
    stage = _Stage(snapshot)
    plans = {fleet.slug: _plan(stage, fleet) for fleet in stage.by_price}
    return [plans[fleet.slug] for fleet in snapshot.fleets]


def _plan(stage: "_Stage", fleet: ObservedFleet) -> FleetPlan:
    try:
        return stage.plan(fleet)
    except Exception as error:
        # An overflow in one fleet must not affect the others.
        why = f"no action taken: the decision failed ({type(error).__name__}: {error})"
        return FleetPlan(
            fleet=fleet.slug, desired=stage.capacity[fleet.slug], reason=f"{reasons.machines(fleet)}: {why}"
        )


@dataclass(kw_only=True, slots=True)
class _UnservedWork:
    """The part of a workflow's queue that no existing machine can take. `seconds` includes expected arrivals."""

    jobs: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Proposal:
    """The machines that a policy would launch or terminate before limits are applied."""

    more: int
    why: str
    end: Sequence[ObservedMachine] = ()


class _Stage:
    def __init__(self, snapshot: StageSnapshot) -> None:
        self.now = snapshot.now
        self.work = {work.workflow: work for work in snapshot.work}
        self.by_price = sorted(snapshot.fleets, key=_price)
        self.capacity = {
            fleet.slug: sum(is_capacity(machine) for machine in fleet.machines) for fleet in snapshot.fleets
        }
        # Arrivals count once they have been observed for the shortest boot time of the fleets that could serve them.
        boots: dict[int, float] = {}
        for fleet in snapshot.fleets:
            for number in fleet.workflows & self.work.keys():
                boots[number] = min(boots.get(number, inf), fleet.boot_seconds)
        self.load = {number: arriving_load(work, boots.get(number, inf)) for number, work in self.work.items()}
        self.shared_loads: dict[tuple[str, str], Load] = {}
        self.unserved = self._find_unserved()

    def plan(self, fleet: ObservedFleet) -> FleetPlan:
        work = [queued for queued in self.work.values() if queued.workflow in fleet.workflows]
        jobs = sum(queued.jobs for queued in work)
        observed = f"{reasons.work(jobs, _total_seconds(work))}, {reasons.machines(fleet)}"
        if fleet.scaling.is_paused:
            why = fleet.scaling.unreadable
            why = "paused: no action taken" if why is None else f"paused, because its settings cannot be read: {why}"
            return FleetPlan(fleet=fleet.slug, desired=self.capacity[fleet.slug], reason=f"{observed}: {why}")
        minimum = max(fleet.scaling.limits.min_machines, scheduled_minimum(fleet.scaling.schedules, self.now))
        if fleet.scaling.policy is Policy.REFERENCE:
            proposal = self._follow_alarms(fleet, jobs, minimum)
        else:
            proposal = self._weigh(fleet, work, jobs, minimum)
        return self._within_limits(fleet, proposal, observed)

    def _find_unserved(self) -> dict[int, _UnservedWork]:
        capacity = {fleet.slug: work_capacity(fleet.machines, _horizon(fleet)) for fleet in self.by_price}
        free = {
            fleet.slug: sum(free_slots(machine, fleet.boot_seconds) for machine in fleet.machines)
            for fleet in self.by_price
        }
        unserved = {}
        # If jobs wait for a fleet, the arrivals expected until a new machine could start count as work, too.
        counted: set[int] = set()
        for fleet in self.by_price:
            numbers = fleet.workflows & self.work.keys()
            if any(self.work[number].jobs for number in numbers):
                counted |= numbers
        serving = {number: [fleet for fleet in self.by_price if number in fleet.workflows] for number in counted}
        # Workflows that the fewest fleets serve come first, because the others have alternatives.
        for number in sorted(serving, key=lambda number: (len(serving[number]), number)):
            work = self.work[number]
            arrivals = max(arrival_rate(work, fleet.boot_seconds) * _horizon(fleet) for fleet in serving[number])
            total = seconds = queued_seconds(work) + arrivals * seconds_per_job(work)
            if total <= 0:
                continue
            jobs = work.jobs
            for fleet in serving[number]:
                taken = min(seconds, capacity[fleet.slug])
                capacity[fleet.slug] -= taken
                seconds -= taken
                started = min(jobs, free[fleet.slug])
                free[fleet.slug] -= started
                jobs -= started
            # A job runs on one machine, and jobs are already assigned to booting machines.
            unserved[number] = _UnservedWork(jobs=min((work.jobs + arrivals) * seconds / total, jobs), seconds=seconds)
        return unserved

    def _weigh(self, fleet: ObservedFleet, work: Sequence[QueuedWork], jobs: int, minimum: int) -> _Proposal:
        own = self.capacity[fleet.slug]
        load = sum((self.load[queued.workflow] for queued in work), Load())
        for_arrivals = self._for_arrivals(fleet, load.to_launch) - self._in_other_fleets(fleet) - own
        known = max(self._for_queue(fleet), for_arrivals, minimum - own, 0)
        more = max(known, self._with_following_jobs(fleet, work, jobs))
        if more > 0:
            wait = expected_wait(_total_seconds(work), [*fleet.machines, *_booting(fleet, more)]) or 0.0
            if minimum - own == more:
                why = f"the minimum is now {minimum}"
            elif jobs:
                why = f"{reasons.count(own + more, 'machine')} would keep the wait near {wait:.0f} s"
                if more > known:
                    why += f": {known} for waiting jobs, {more - known} for jobs that usually follow"
            else:
                why = f"arriving jobs need {reasons.count(own + more, 'machine')}"
            return _Proposal(more=more, why=why)
        keep = self._for_arrivals(fleet, load.to_keep) - self._in_other_fleets(fleet, cheaper=True)
        return self._end_idle(fleet, work, jobs, max(minimum, keep))

    def _end_idle(self, fleet: ObservedFleet, work: Sequence[QueuedWork], jobs: int, keep: int) -> _Proposal:
        """Judge each machine by its own idle time: idling longer than a boot costs more than booting again.

        Machines that are still booting when no jobs wait are canceled, because other machines have taken the jobs for
        which they were launched. In a bursty fleet, they continue to boot for the jobs that usually follow.
        """
        own = self.capacity[fleet.slug]
        late = _booting_longest_first(fleet)[: max(0, own - max(keep, 1))]
        if late and jobs == 0 and not fleet.is_bursty:
            return _Proposal(more=0, why=f"no jobs are waiting: {reasons.ending(late, 0.0)}", end=late)
        limit = WEIGHTS[fleet.scaling.policy].idle_boots * fleet.boot_seconds
        idle = sum(is_idle(machine) for machine in fleet.machines)
        # Keep the idle machines that the waiting jobs are about to use.
        spare = min(own - keep, idle - ceil(jobs / fleet.slots))
        ended: list[ObservedMachine] = []
        for machine in _idle_longest_first(fleet)[: max(0, spare)]:
            limit_now = _last_idle_seconds(fleet) if own - len(ended) == 1 else limit
            if machine.idle_seconds < limit_now:
                break
            ended.append(machine)
            limit = limit_now
        if ended:
            return _Proposal(more=0, why=reasons.ending(ended, limit), end=ended)
        if jobs == 0:
            why = reasons.count(own, "machine stays", "machines stay") if own else "nothing to do"
            return _Proposal(more=0, why=why)
        wait = expected_wait(_total_seconds(work), fleet.machines)
        why = "other fleets take the jobs" if wait is None else f"the wait is near {wait:.0f} s, no more are needed"
        return _Proposal(more=0, why=why)

    def _for_queue(self, fleet: ObservedFleet) -> int:
        """Return the number of additional machines needed to finish the waiting work soon after they could start."""
        unserved = [
            work for number, work in self.unserved.items() if number in fleet.workflows and work.seconds > ROUNDING
        ]
        return _machines_needed(fleet, sum(work.seconds for work in unserved), sum(work.jobs for work in unserved))

    def _for_arrivals(self, fleet: ObservedFleet, machines: float) -> int:
        """Return the number of machines for a load, with the reserve of the policy. Regular arrivals need no reserve.

        The first machine does not count here: it is launched for waiting jobs, and the learnt idle gaps decide how long
        it stays.
        """
        load = machines / (preferred_type(fleet).speed * fleet.slots)
        spare = reserve(load, WEIGHTS[fleet.scaling.policy], is_bursty=fleet.is_bursty)
        needed = machines_for(load, spare * sqrt(fleet.variation))
        return needed if needed > 1 else 0

    def _with_following_jobs(self, fleet: ObservedFleet, work: Sequence[QueuedWork], jobs: int) -> int:
        """If no machine is running, return the number of machines for waiting jobs and for jobs that usually follow.

        The following jobs should not have to wait for a second boot.
        """
        following = WEIGHTS[fleet.scaling.policy].following * (1 + fleet.following_jobs - jobs)
        if not jobs or following <= 0:
            return 0
        serving = [other for other in self.by_price if other.workflows & fleet.workflows]
        if any(machine.state in UP for other in serving for machine in other.machines):
            return 0
        needed = _machines_needed(fleet, _total_seconds(work) * (1 + following / jobs), jobs + following)
        return needed - sum(self.capacity[other.slug] for other in serving)

    def _in_other_fleets(self, fleet: ObservedFleet, *, cheaper: bool = False) -> int:
        """Count the machines of other fleets (or only of cheaper ones) that take a share of this fleet's arrivals."""
        found = 0
        for other in self.by_price:
            if other.slug == fleet.slug:
                if cheaper:
                    break
                continue
            if not self.capacity[other.slug] or other.scaling.policy is Policy.REFERENCE:
                continue
            load = self._shared_load(fleet, other)
            found += min(self.capacity[other.slug], self._for_arrivals(other, load.to_launch))
        return found

    def _shared_load(self, fleet: ObservedFleet, other: ObservedFleet) -> Load:
        """Return the load of the workflows that both fleets serve. It is cached, because each fleet queries it."""
        pair = (min(fleet.slug, other.slug), max(fleet.slug, other.slug))
        if pair not in self.shared_loads:
            both = fleet.workflows & other.workflows & self.load.keys()
            self.shared_loads[pair] = sum((self.load[number] for number in sorted(both)), Load())
        return self.shared_loads[pair]

    def _follow_alarms(self, fleet: ObservedFleet, jobs: int, minimum: int) -> _Proposal:
        own = self.capacity[fleet.slug]
        more = max(baseline.wanted(fleet, jobs), minimum) - own
        if more > 0 and baseline.has_acted(fleet):
            return _Proposal(more=0, why="its alarms have acted and will be evaluated again in a minute")
        if more > 0 and own >= minimum and baseline.is_unconfirmed(fleet):
            return _Proposal(more=0, why="its alarms need more high data points")
        if more > 0:
            why = f"a backlog of {baseline.BACKLOG_TARGET:g} per machine needs {reasons.count(own + more, 'machine')}"
            return _Proposal(more=more, why=why)
        ended = baseline.to_end(fleet, jobs, minimum)
        return _Proposal(more=0, why=f"terminating {len(ended)}" if ended else "nothing to do", end=ended)

    def _within_limits(self, fleet: ObservedFleet, proposal: _Proposal, observed: str) -> FleetPlan:
        own = self.capacity[fleet.slug]
        excess = beyond_limits(fleet, _dispensable(fleet))
        if excess.count:
            why = reasons.beyond_limits(fleet, excess.count, len(excess.end))
            proposal = _Proposal(more=0, why=why, end=excess.end)
        space = headroom(fleet) if proposal.more > 0 else NO_HEADROOM
        launched = max(0, min(proposal.more, space.launches))
        why = proposal.why
        if proposal.more > launched:
            why += f"; launching {launched} of {proposal.more}: {space.limit}"
        elif launched:
            why += f"; launching {launched}"
        is_dry_run = fleet.scaling.is_dry_run
        is_report = is_dry_run or not fleet.can_launch
        if launched and not is_dry_run and (fleet.can_launch or fleet.is_scaled_externally):
            self._serve(fleet, space, launched)
        if is_dry_run and (fleet.can_launch or fleet.is_scaled_externally):
            why += " (dry run: no action taken)"
        elif is_report and fleet.is_scaled_externally:
            why += " (the cluster acts on this decision)"
        elif is_report:
            why += " (this fleet only reports: no action taken)"
        return FleetPlan(
            fleet=fleet.slug,
            desired=own + launched - len(proposal.end),
            reason=f"{observed}: {why}",
            launch=space.launch(launched),
            end=[machine.id for machine in proposal.end],
            is_report=is_report,
            limit=space.user_text if proposal.more > launched else None,
        )

    def _serve(self, fleet: ObservedFleet, space: Headroom, launched: int) -> None:
        """Subtract the work of the launched machines, so that later fleets do not staff it again."""
        self.capacity[fleet.slug] += launched
        capacity = launched * _work_of_new(fleet, space.instance_type.speed)
        slots = float(launched * fleet.slots)
        for number in sorted(fleet.workflows & self.unserved.keys()):
            work = self.unserved[number]
            if work.seconds <= 0:
                continue
            taken = min(work.seconds, capacity)
            capacity -= taken
            started = min(work.jobs, slots)
            slots -= started
            work.jobs = min(work.jobs - started, work.jobs * (1 - taken / work.seconds))
            work.seconds -= taken


def _total_seconds(work: Sequence[QueuedWork]) -> float:
    return sum(queued_seconds(queued) for queued in work)


def _price(fleet: ObservedFleet) -> tuple[float, float, str]:
    kind = preferred_type(fleet)
    return (kind.price_per_hour, -kind.speed, fleet.slug)


def _horizon(fleet: ObservedFleet) -> float:
    """Return the time limit for waiting work: if existing machines can finish it by then, launch none."""
    weights = WEIGHTS.get(fleet.scaling.policy)
    return fleet.boot_seconds + (weights.drain_seconds if weights else 0.0)


def _work_of_new(fleet: ObservedFleet, speed: float) -> float:
    """Return how many seconds of work a machine launched now can do by the horizon."""
    return speed * fleet.slots * (_horizon(fleet) - fleet.boot_seconds or 60.0)


def _machines_needed(fleet: ObservedFleet, seconds: float, jobs: float) -> int:
    """Return the number of new machines for this work, with no more slots than jobs: a job runs on one machine."""
    by_work = seconds / _work_of_new(fleet, preferred_type(fleet).speed)
    return ceil(min(by_work, jobs / fleet.slots) - ROUNDING)


def _booting(fleet: ObservedFleet, number: int) -> list[ObservedMachine]:
    """Combine new machines into one with all their slots, because only the total matters."""
    if number <= 0:
        return []
    combined = ObservedMachine(
        id="",
        state=MachineState.BOOTING,
        speed=preferred_type(fleet).speed,
        slots=fleet.slots * number,
        boot_seconds_left=fleet.boot_seconds,
    )
    return [combined]


def _last_idle_seconds(fleet: ObservedFleet) -> float:
    """Return how long the last machine may idle: the configured time, or one based on the learnt gaps."""
    if fleet.scaling.last_idle_seconds is not None:
        return fleet.scaling.last_idle_seconds
    restart_seconds = fleet.boot_seconds + WEIGHTS[fleet.scaling.policy].cold_start_seconds
    return idle_limit(fleet.idle_gaps, restart_seconds, is_bursty=fleet.is_bursty)


def _idle_longest_first(fleet: ObservedFleet) -> list[ObservedMachine]:
    idle = [machine for machine in fleet.machines if can_terminate(machine)]
    return sorted(idle, key=lambda machine: (-machine.idle_seconds, -machine.price_per_hour, machine.id))


def _dispensable(fleet: ObservedFleet) -> list[ObservedMachine]:
    """Return idle machines, then booting machines (those with the longest boot time left first), but no busy ones."""
    return _idle_longest_first(fleet) + _booting_longest_first(fleet)


def _booting_longest_first(fleet: ObservedFleet) -> list[ObservedMachine]:
    booting = [machine for machine in fleet.machines if machine.state is MachineState.BOOTING]
    return sorted(booting, key=lambda machine: (-machine.boot_seconds_left, machine.id))
