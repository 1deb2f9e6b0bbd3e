"""Discrete-event simulation of one fleet with the production decision function."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from heapq import heappop, heappush
from math import inf
from random import Random

from comfyrelay.autoscaling.simulation.traces import TraceRequest
from comfyrelay.autoscaling.simulation.world import (
    SimulatedMachine,
    SimulatedQueue,
    WaitingRequest,
    WorldSettings,
    observe,
)
from comfyrelay.domain.autoscaling import learning
from comfyrelay.domain.autoscaling.baseline import METRIC_SECONDS, Alarms
from comfyrelay.domain.autoscaling.decide import decide
from comfyrelay.domain.autoscaling.limits import LAUNCH_WINDOW_SECONDS
from comfyrelay.domain.autoscaling.observation import ObservedFleet, ObservedMachine, QueuedWork, StageSnapshot
from comfyrelay.domain.autoscaling.plan import FleetPlan
from comfyrelay.domain.autoscaling.spec import LAST_IDLE_SECONDS, Limits, Policy, ScalingSpec

# The loop decides within a second of an event, and at a tick.
DEBOUNCE_SECONDS = 1.0
TICK_SECONDS = 20.0
# Lower arrival rates are ignored.
MIN_RATE = 1e-5
REFUSED_SECONDS = 60.0
# Evictions are announced this long in advance.
NOTICE_SECONDS = 120.0
PROGRESS_JOBS = 500
START = datetime(2026, 1, 5, tzinfo=UTC)

Progress = Callable[[int, int], None]


class SimulatedEvent(IntEnum):
    DONE = 0
    BOOTED = 1
    EVICTED = 2
    DECIDE = 3


@dataclass(slots=True)
class SimulationOutcome:
    waits: list[float] = field(default_factory=list)
    machine_seconds: float = 0.0
    busy_seconds: float = 0.0
    launches: int = 0
    # Requests that found no running machine.
    cold_starts: int = 0
    evictions: int = 0
    lost_seconds: float = 0.0
    refusals: int = 0
    busy_ended: int = 0
    peak_machines: int = 0
    decisions: int = 0
    events: int = 0


class Simulation:
    def __init__(
        self,
        requests: Sequence[TraceRequest],
        scaling: ScalingSpec,
        setting: WorldSettings | None = None,
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self._requests = requests
        self._setting = setting or WorldSettings()
        self._scaling = scaling
        self._is_reference = scaling.policy is Policy.REFERENCE
        self._progress = progress
        # All policies use the same seed.
        self._draw = Random(seed)
        self._events: list[tuple[float, int, SimulatedEvent, SimulatedMachine | None]] = []
        self._sequence = 0
        self._machines: dict[str, SimulatedMachine] = {}
        # The least recently used machine comes first.
        self._idle: dict[str, SimulatedMachine] = {}
        self._queue = SimulatedQueue()
        # The server learns these values by the same rules.
        self._durations: dict[str, learning.Duration] = {}
        self._boots: deque[float] = deque(maxlen=learning.NEWEST_BOOTS)
        self._boot_seconds = learning.DEFAULT_BOOT_SECONDS
        self._rates: dict[str, learning.Rate] = {}
        self._rate = learning.Rate()
        self._regularity = learning.Regularity()
        self._idle_gaps = learning.IdleGaps()
        self._following = learning.FollowingJobs()
        self._launched: list[float] = []
        self._refused_until = -inf
        self._next_decision = inf
        self._alarms = Alarms(points=self._setting.alarm_points)
        self._numbers = {
            name: number for number, name in enumerate(sorted({request.workflow for request in requests}), 1)
        }
        self.outcome = SimulationOutcome()

    def run(self) -> SimulationOutcome:
        requests, outcome = self._requests, self.outcome
        outcome.waits = [0.0] * len(requests)
        position = 0
        if self._is_reference:
            self._schedule_decision(METRIC_SECONDS)
        while position < len(requests) or self._queue or self._machines:
            outcome.events += 1
            arrival = requests[position].arrival_seconds if position < len(requests) else inf
            if not self._events or arrival <= self._events[0][0]:
                self._arrive(WaitingRequest(position, requests[position]))
                position += 1
                if self._progress and position % PROGRESS_JOBS == 0:
                    self._progress(position, len(requests))
                continue
            now, _, event, machine = heappop(self._events)
            if event is SimulatedEvent.DECIDE:
                if now == self._next_decision:
                    self._decide_at(now)
            elif machine is None or machine.is_gone:
                continue
            elif event is SimulatedEvent.DONE:
                if machine.done_at == now:
                    self._done(machine, now)
            elif event is SimulatedEvent.BOOTED:
                machine.is_ready = True
                self._boots.appendleft(now - machine.launched_at)
                self._boot_seconds = learning.typical_boot(self._boots) or learning.DEFAULT_BOOT_SECONDS
                self._free(machine, now)
                self._decide_soon(now)
            else:
                self._evicted(machine, now)
        if self._progress:
            self._progress(len(requests), len(requests))
        return outcome

    def _push(self, at: float, event: SimulatedEvent, machine: SimulatedMachine | None = None) -> None:
        self._sequence += 1
        heappush(self._events, (at, self._sequence, event, machine))

    def _decide_soon(self, now: float) -> None:
        if not self._is_reference:
            self._schedule_decision(now + DEBOUNCE_SECONDS)

    def _schedule_decision(self, at: float) -> None:
        if at < self._next_decision:
            self._next_decision = at
            self._push(at, SimulatedEvent.DECIDE)

    def _arrive(self, job: WaitingRequest) -> None:
        now, workflow = job.request.arrival_seconds, job.request.workflow
        if not any(machine.is_ready for machine in self._machines.values()):
            self.outcome.cold_starts += 1
        at = _time(now)
        self._rates.setdefault(workflow, learning.Rate()).add(at)
        self._rate.add(at)
        self._regularity.add(at)
        silence = self._scaling.last_idle_seconds or LAST_IDLE_SECONDS
        self._following.add(at, boot_seconds=self._boot_seconds, silence_seconds=silence)
        self._queue.add(job)
        machine = self._idle_machine(job.request.model)
        if machine is not None:
            self._free(machine, now)
        self._decide_soon(now)

    def _idle_machine(self, model: str) -> SimulatedMachine | None:
        """Return the idle machine with the model, or the most recently busy one, so that the others can stop."""
        last = next(reversed(self._idle.values()), None)
        return next((machine for machine in reversed(self._idle.values()) if machine.model == model), last)

    def _free(self, machine: SimulatedMachine, now: float) -> None:
        """Give the machine the next job, or mark it as idle."""
        job = self._queue.take(machine.model, now)
        if job is None:
            machine.idle_since = now
            self._idle[machine.id] = machine
            return
        self._idle.pop(machine.id, None)
        request = job.request
        run = request.duration_seconds + (0.0 if machine.model == request.model else self._setting.load_seconds)
        machine.model = request.model
        machine.running, machine.started_at, machine.done_at = job, now, now + run
        self.outcome.waits[job.number] = now - request.arrival_seconds
        self._push(now + run, SimulatedEvent.DONE, machine)

    def _done(self, machine: SimulatedMachine, now: float) -> None:
        job = machine.running
        assert job is not None
        run = now - machine.started_at
        self.outcome.busy_seconds += run
        workflow = job.request.workflow
        self._durations[workflow] = self._durations.get(workflow, learning.NO_RUNS).including(run)
        machine.running = None
        if machine.is_draining:
            self._gone(machine, now)
        else:
            self._free(machine, now)

    def _evicted(self, machine: SimulatedMachine, now: float) -> None:
        self.outcome.evictions += 1
        if machine.running is not None and machine.done_at - now <= NOTICE_SECONDS:
            machine.is_draining = True
        else:
            lost = machine.running
            self._gone(machine, now)
            idle = self._idle_machine(lost.request.model) if lost is not None else None
            if idle is not None:
                self._free(idle, now)
        self._decide_soon(now)

    def _gone(self, machine: SimulatedMachine, now: float) -> None:
        if machine.running is not None:
            self.outcome.lost_seconds += now - machine.started_at
            self._queue.give_back(machine.running)
            machine.running = None
        machine.is_gone = True
        self._idle.pop(machine.id, None)
        del self._machines[machine.id]
        self.outcome.machine_seconds += now - machine.launched_at

    def _decide_at(self, now: float) -> None:
        self._next_decision = inf
        is_busy = bool(self._queue) or any(machine.running is not None for machine in self._machines.values())
        self._idle_gaps.observe(now, is_busy=is_busy)
        if self._is_reference:
            depth = len(self._queue) + sum(machine.running is not None for machine in self._machines.values())
            workers = sum(machine.is_ready for machine in self._machines.values())
            self._alarms.publish(now, depth=depth, workers=workers)
            self._schedule_decision(now + METRIC_SECONDS)
            if not self._machines and self._alarms.alarm(now).depth == 0:
                return
        elif self._machines or self._queue:
            self._schedule_decision(now + TICK_SECONDS)
        self.outcome.decisions += 1
        for plan in decide(self._snapshot(now)):
            self._carry_out(plan, now)

    def _carry_out(self, plan: FleetPlan, now: float) -> None:
        for name in plan.end:
            machine = self._machines[name]
            if machine.running is not None:
                self.outcome.busy_ended += 1
            self._gone(machine, now)
        for launch in plan.launch:
            for _ in range(launch.count):
                self._launch(now)

    def _launch(self, now: float) -> None:
        setting = self._setting
        spread = 1 + setting.boot_spread * (2 * self._draw.random() - 1)
        if setting.refused_share and self._draw.random() < setting.refused_share:
            self.outcome.refusals += 1
            self._refused_until = now + REFUSED_SECONDS
            if not self._is_reference:
                self._schedule_decision(self._refused_until)
            return
        self.outcome.launches += 1
        machine = SimulatedMachine(
            id=f"m{self.outcome.launches}", launched_at=now, ready_at=now + setting.boot_seconds * spread
        )
        self._machines[machine.id] = machine
        self._launched = [at for at in self._launched if now - at < LAUNCH_WINDOW_SECONDS] + [now]
        self.outcome.peak_machines = max(self.outcome.peak_machines, len(self._machines))
        self._push(machine.ready_at, SimulatedEvent.BOOTED, machine)
        if setting.evictions_per_hour:
            lifetime = self._draw.expovariate(setting.evictions_per_hour / 3600)
            self._push(now + lifetime, SimulatedEvent.EVICTED, machine)

    def _run_seconds(self, now: float) -> dict[str, float]:
        """Return the expected duration of a job by workflow."""
        running: dict[str, list[float]] = {workflow: [] for workflow in self._numbers}
        for machine in self._machines.values():
            if machine.running is not None:
                running[machine.running.request.workflow].append(now - machine.started_at)
        return {
            workflow: self._durations.get(workflow, learning.UNKNOWN_DURATION).expected_seconds(seconds)
            for workflow, seconds in running.items()
        }

    def _work(self, now: float, run_seconds: Mapping[str, float]) -> list[QueuedWork]:
        work = []
        factor = self._rate.correction(_time(now))
        for workflow, rate in self._rates.items():
            jobs_per_second, jobs = rate.at(_time(now)) * factor, self._queue.by_workflow.get(workflow, 0)
            if not jobs and jobs_per_second < MIN_RATE:
                continue
            seconds_per_job = run_seconds[workflow]
            work.append(
                QueuedWork(
                    workflow=self._numbers[workflow],
                    jobs=jobs,
                    seconds=jobs * seconds_per_job,
                    seconds_per_job=seconds_per_job,
                    jobs_per_second=jobs_per_second,
                    arrivals_seconds=self._rate.observed_seconds(),
                    one_arrival=learning.ONE_ARRIVAL * factor,
                )
            )
        return work

    def _observe(self, machine: SimulatedMachine, now: float, run_seconds: Mapping[str, float]) -> ObservedMachine:
        return observe(
            machine,
            now,
            boot_seconds=self._boot_seconds,
            run_seconds=run_seconds[machine.running.request.workflow] if machine.running else 0.0,
            price_per_hour=self._setting.price_per_hour,
        )

    def _snapshot(self, now: float) -> StageSnapshot:
        run_seconds = self._run_seconds(now)
        fleet = ObservedFleet(
            slug="fleet",
            workflows=frozenset(self._numbers.values()),
            scaling=self._scaling,
            machines=[self._observe(machine, now, run_seconds) for machine in self._machines.values()],
            all_types_refused=now < self._refused_until,
            boot_seconds=self._boot_seconds,
            following_jobs=self._following.jobs(),
            variation=self._regularity.variation(),
            idle_gaps=self._idle_gaps.newest(),
            launches_ago=[now - at for at in self._launched],
            alarm=self._alarms.alarm(now) if self._is_reference else None,
            idle_seconds=self._alarms.idle_seconds(now) if self._is_reference else None,
            low_seconds=self._alarms.low_seconds(now) if self._is_reference else None,
        )
        return StageSnapshot(now=_time(now), work=self._work(now, run_seconds), fleets=[fleet])


def _time(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def scaling_of(policy: Policy, setting: WorldSettings) -> ScalingSpec:
    return ScalingSpec(
        policy=policy,
        limits=Limits(max_machines=setting.max_machines, launches_per_minute=setting.max_machines),
        last_idle_seconds=setting.last_idle_seconds,
    )


def simulate(
    requests: Sequence[TraceRequest],
    policy: Policy,
    setting: WorldSettings | None = None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> SimulationOutcome:
    setting = setting or WorldSettings()
    return Simulation(requests, scaling_of(policy, setting), setting, seed=seed, progress=progress).run()
