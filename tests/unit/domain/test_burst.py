"""The rule that sends a waiting job to the cloud, with generated queues, machines and budgets."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.domain.autoscaling.burst import (
    NO_CLOUD_WORKER,
    BurstBudget,
    BurstInput,
    BurstRunner,
    WaitingJob,
    accepted_wait,
    decide_bursts,
)
from comfyrelay.domain.autoscaling.observation import MachineState, ObservedMachine
from comfyrelay.domain.queue import lifecycle
from comfyrelay.domain.queue.states import DispatchStatus, JobEventType, Provider
from comfyrelay.errors import Fault
from tests.support.world import START, queued_dispatch

WORKFLOWS = st.integers(1, 3)
SECONDS = st.sampled_from([0.5, 10.0, 60.0, 299.0, 300.0, 301.0, 5000.0])
AMOUNTS = st.sampled_from([0, 1, 600, 6_000, 200_000])
RUNNERS = st.builds(
    BurstRunner,
    machine=st.builds(
        ObservedMachine,
        id=st.just("one"),
        state=st.sampled_from(MachineState),
        slots=st.integers(1, 3),
        leases=st.integers(0, 3),
        speed=st.sampled_from([0.5, 1.0, 2.0]),
        boot_seconds_left=SECONDS,
        busy_seconds_left=SECONDS,
    ),
    workflows=st.frozensets(WORKFLOWS),
)
JOBS = st.builds(
    WaitingJob,
    id=st.just(0),
    workflow=WORKFLOWS,
    seconds=SECONDS,
    waited_seconds=SECONDS,
    # Most jobs would burst if allowed.
    accepts_seconds=st.sampled_from([0.5, 10.0, 60.0, 300.0, None]),
    may_burst=st.sampled_from([True, True, True, True, False]),
    has_burst=st.sampled_from([False, False, False, False, True]),
    cloud_micros_per_second=st.sampled_from([1, 100, 100, 1000, None]),
)
CLOUDS = st.sampled_from([1, 20]).map(
    lambda slots: BurstRunner(
        machine=ObservedMachine(id="cloud", state=MachineState.READY, slots=slots), workflows=frozenset({1, 2, 3})
    )
)


def numbered(first: int) -> st.SearchStrategy[list[WaitingJob]]:
    jobs = st.lists(JOBS, max_size=8)
    return jobs.map(lambda found: [replace(job, id=first + number) for number, job in enumerate(found)])


def snapshots() -> st.SearchStrategy[BurstInput]:
    of_workflows = st.dictionaries(WORKFLOWS, AMOUNTS, max_size=3)
    return st.builds(
        BurstInput,
        self_hosted=st.lists(RUNNERS, max_size=3),
        cloud=st.lists(CLOUDS, min_size=1, max_size=2) | st.lists(RUNNERS, max_size=3),
        queue=numbered(1),
        cloud_queue=numbered(100),
        budget=st.builds(
            BurstBudget,
            limit_micros=st.none() | AMOUNTS,
            spent_micros=st.sampled_from([0, 0, 600]),
            workflow_limit_micros=of_workflows,
            workflow_spent_micros=st.dictionaries(WORKFLOWS, st.sampled_from([0, 600]), max_size=3),
        ),
    )


def bursting_jobs(snapshot: BurstInput) -> list[WaitingJob]:
    """Return the jobs of the queue that go to the cloud."""
    ids = {move.dispatch_id for move in decide_bursts(snapshot).moves if move.to is Provider.CLOUD}
    return [job for job in snapshot.queue if job.id in ids]


@given(snapshots())
def test_cost_limits_are_never_exceeded(snapshot: BurstInput) -> None:
    budget, bursting = snapshot.budget, bursting_jobs(snapshot)
    costs = sum(job.expected_cost_micros for job in bursting)
    if bursting and budget.limit_micros is not None:
        assert budget.spent_micros + costs <= budget.limit_micros
    for workflow, limit in budget.workflow_limit_micros.items():
        of_workflow = sum(job.expected_cost_micros for job in bursting if job.workflow == workflow)
        if of_workflow:
            assert budget.workflow_spent_micros.get(workflow, 0) + of_workflow <= limit


@given(snapshots())
def test_only_priced_jobs_that_may_burst_do_so_within_a_budget(snapshot: BurstInput) -> None:
    assert bursting_jobs(replace(snapshot, budget=BurstBudget())) == []
    for job in bursting_jobs(snapshot):
        assert job.may_burst
        assert not job.has_burst
        assert job.accepts_seconds is not None
        assert job.cloud_micros_per_second is not None


@given(snapshots())
def test_plan_is_deterministic_and_moves_each_dispatch_at_most_once(snapshot: BurstInput) -> None:
    plan = decide_bursts(snapshot)
    assert plan == decide_bursts(replace(snapshot))
    ids = [move.dispatch_id for move in plan.moves]
    assert len(ids) == len(set(ids))
    assert not set(ids) & plan.stays.keys()
    assert all(move.reason.endswith(".") for move in plan.moves)


@given(snapshots())
def test_first_job_with_an_idle_machine_does_not_burst(snapshot: BurstInput) -> None:
    idle = BurstRunner(machine=ObservedMachine(id="idle", state=MachineState.READY), workflows=frozenset({1, 2, 3}))
    first = [replace(job, waited_seconds=0.0) for job in snapshot.queue[:1]]
    waiting = replace(snapshot, self_hosted=[idle], queue=first, cloud_queue=[])
    assert bursting_jobs(waiting) == []


@given(snapshots(), SECONDS)
def test_longer_accepted_wait_never_causes_a_burst(snapshot: BurstInput, more: float) -> None:
    """Checked for the first job of a queue, because the others depend on the jobs before them."""
    one = replace(snapshot, queue=snapshot.queue[:1], cloud_queue=[])
    patient = [
        replace(job, accepts_seconds=None if job.accepts_seconds is None else job.accepts_seconds + more)
        for job in one.queue
    ]
    assert len(bursting_jobs(replace(one, queue=patient))) <= len(bursting_jobs(one))


@given(snapshots())
def test_only_burst_jobs_without_a_cloud_worker_return(snapshot: BurstInput) -> None:
    able = {
        workflow
        for runner in snapshot.cloud
        if runner.machine.state is not MachineState.DRAINING
        for workflow in runner.workflows
    }
    back = {move.dispatch_id for move in decide_bursts(snapshot).moves if move.to is Provider.SELF_HOSTED}
    assert back == {job.id for job in snapshot.cloud_queue if job.has_burst and job.workflow not in able}


def busy(*, seconds: float, workflows: Sequence[int] = (1,)) -> BurstRunner:
    machine = ObservedMachine(id="ours", state=MachineState.BUSY, leases=1, busy_seconds_left=seconds)
    return BurstRunner(machine=machine, workflows=frozenset(workflows))


CLOUD = BurstRunner(machine=ObservedMachine(id="cloud", state=MachineState.READY, slots=2), workflows=frozenset({1}))


def job(id_: int = 1, **values: object) -> WaitingJob:
    fields = {"workflow": 1, "seconds": 60.0, "accepts_seconds": 300.0, "may_burst": True}
    return WaitingJob(id=id_, **{**fields, "cloud_micros_per_second": 100, **values})  # type: ignore[arg-type]


def plan_of(*jobs: WaitingJob, self_hosted: Sequence[BurstRunner] = (), limit: int | None = 1_000_000) -> list[str]:
    snapshot = BurstInput(self_hosted=self_hosted, cloud=[CLOUD], queue=jobs, budget=BurstBudget(limit_micros=limit))
    plan = decide_bursts(snapshot)
    return [*(move.reason for move in plan.moves), *plan.stays.values()]


def test_reason_states_expected_and_accepted_wait() -> None:
    assert plan_of(job(), self_hosted=[busy(seconds=720)]) == [
        "Sent to Comfy Cloud: the wait would be about 12 min, and it accepts 5 min."
    ]


def test_reason_states_that_no_machine_can_run_the_job() -> None:
    assert plan_of(job()) == ["Sent to Comfy Cloud: no self-hosted worker can run it, and it accepts a wait of 5 min."]


def test_machine_with_a_too_small_gpu_cannot_run_the_job() -> None:
    small = replace(busy(seconds=0), oversized=frozenset({(1, "h")}))
    assert len(plan_of(job(workflow_hash="h"), self_hosted=[small])) == 1
    # Another workflow of the same graph has its own workers.
    assert plan_of(job(workflow_hash="h"), self_hosted=[replace(small, oversized=frozenset({(2, "h")}))]) == []


def test_time_already_waited_counts() -> None:
    assert plan_of(job(waited_seconds=200), self_hosted=[busy(seconds=90)]) == []
    assert len(plan_of(job(waited_seconds=250), self_hosted=[busy(seconds=90)])) == 1


def test_bursting_job_frees_its_place_for_the_next() -> None:
    queue = [job(number, seconds=200.0) for number in range(1, 6)]
    plan = decide_bursts(
        BurstInput(self_hosted=[busy(seconds=0)], cloud=[CLOUD], queue=queue, budget=BurstBudget(limit_micros=10**9))
    )
    # Here 0 s and 200 s are accepted; the third would wait for 400 s, and so would each job behind it.
    assert [move.dispatch_id for move in plan.moves] == [3, 4, 5]


def test_job_stays_when_the_cloud_is_not_sooner() -> None:
    full = BurstRunner(
        machine=ObservedMachine(id="cloud", state=MachineState.BUSY, leases=1, busy_seconds_left=2000),
        workflows=frozenset({1}),
    )
    snapshot = BurstInput(
        self_hosted=[busy(seconds=1000)], cloud=[full], queue=[job()], budget=BurstBudget(limit_micros=1_000_000)
    )
    plan = decide_bursts(snapshot)
    assert (plan.moves, list(plan.stays.values())) == (
        [],
        ["Not sent to Comfy Cloud: it would not start sooner there."],
    )


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (None, "Not sent to Comfy Cloud: its workflow has no cloud price or no cost limit."),
        (5_999, "Not sent to Comfy Cloud: the hourly cost limit is reached."),
    ],
)
def test_staying_job_has_a_reason(limit: int | None, text: str) -> None:
    assert plan_of(job(), self_hosted=[busy(seconds=1000)], limit=limit) == [text]
    assert len(plan_of(job(), self_hosted=[busy(seconds=1000)], limit=6_000)) == 1


def test_burst_job_returns_and_cloud_only_job_stays() -> None:
    burst, own = job(1, has_burst=True), job(2)
    plan = decide_bursts(BurstInput(self_hosted=[], cloud=[], queue=[], cloud_queue=[burst, own]))
    assert [(move.dispatch_id, move.to, move.reason) for move in plan.moves] == [
        (1, Provider.SELF_HOSTED, NO_CLOUD_WORKER)
    ]


def test_shortest_accepted_wait_counts() -> None:
    assert accepted_wait(None, None, None) is None
    assert accepted_wait(300, None, 60) == 60
    assert accepted_wait(None, 0, 60) == 0


class TestTransitions:
    """The transitions of the dispatch."""

    def test_queued_dispatch_bursts_once(self) -> None:
        transition = lifecycle.burst(queued_dispatch(), expected_cost_micros=7, reason="because")
        assert transition is not None
        assert (transition.after.provider, transition.after.expected_cost_micros, transition.after.version) == (
            Provider.CLOUD,
            7,
            1,
        )
        assert (transition.event_type, transition.after.epoch, transition.after.attempts) == (
            JobEventType.PROVIDER,
            0,
            0,
        )
        back = lifecycle.return_from_cloud(transition.after, reason="nobody")
        assert back is not None
        assert back.after.provider == Provider.SELF_HOSTED
        assert lifecycle.burst(back.after, expected_cost_micros=7, reason="again") is None

    @pytest.mark.parametrize("status", [status for status in DispatchStatus if status is not DispatchStatus.QUEUED])
    def test_only_queued_dispatches_move(self, status: DispatchStatus) -> None:
        assert lifecycle.burst(queued_dispatch(status=status), expected_cost_micros=1, reason="") is None
        there = queued_dispatch(status=status, provider=Provider.CLOUD, expected_cost_micros=1)
        assert lifecycle.return_from_cloud(there, reason="") is None

    def test_cloud_only_dispatch_never_returns(self) -> None:
        assert lifecycle.return_from_cloud(queued_dispatch(provider=Provider.CLOUD), reason="") is None

    def test_worker_fault_in_the_cloud_returns_the_dispatch(self) -> None:
        leased = queued_dispatch(
            status="leased", provider=Provider.CLOUD, expected_cost_micros=9, attempts=1, leased_at=START
        )
        transition = lifecycle.fail(leased, fault=Fault.WORKER, error="no", now=START)
        assert transition is not None
        assert (transition.after.provider, transition.after.status) == (Provider.SELF_HOSTED, DispatchStatus.QUEUED)
        assert transition.reason == lifecycle.MOVED_AFTER_CLOUD_FAILURE
        own = lifecycle.fail(leased._replace(expected_cost_micros=None), fault=Fault.WORKER, error="no", now=START)
        assert own is not None
        assert (own.after.provider, own.reason) == (Provider.CLOUD, None)
