"""Each invariant detects the states and changes that it forbids."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from comfyrelay.domain.queue.updates import JobUpdate
from comfyrelay.store.database import Boundary
from tests.support import invariants
from tests.support.invariants import (
    ALWAYS,
    CHANGES,
    QUIET,
    AttemptFact,
    BurstFact,
    Change,
    DispatchFact,
    EarlierFacts,
    Facts,
    InvariantViolation,
    JobFact,
    LeaseFact,
    Rule,
    TransactionFact,
    check_agreed,
    check_always,
    check_quiet,
    every_job_has_ended,
    find_violations,
)
from tests.support.world import START, Crash, World

LEASED = DispatchFact(
    id=1,
    tenant_id="t",
    tenant_job_id="j",
    workflow_id=7,
    stage="production",
    provider="self_hosted",
    status="leased",
    epoch=1,
    version=1,
    attempts=1,
    max_attempts=3,
    worker_id="w",
    lease_token="one",
)
COMPLETED = replace(LEASED, status="completed", version=2, worker_id=None, lease_token=None)
LEASE = LeaseFact(lease_token="one", dispatch_id=1, epoch=1, worker_id="w")
ENDED = replace(LEASE, ended_at=START, outcome="completed", ended_by="complete", status_after="completed")
JOB = JobFact(id="j", tenant_id="t", status="processing", reserved_tokens=10, dispatch_version=1, event_seq=2)
CREDIT = TransactionFact(id=1, tenant_id="t", type="PAYMENT_CREDIT", amount=100)
RESERVE = TransactionFact(id=2, tenant_id="t", type="JOB_RESERVE", amount=-10, job_id="j")
CONSUME = TransactionFact(id=3, tenant_id="t", type="JOB_CONSUME", amount=0, job_id="j")
REFUND = TransactionFact(id=3, tenant_id="t", type="JOB_REFUND", amount=10, job_id="j")
UPDATE = JobUpdate(
    tenant_id="t",
    job_id="j",
    version=1,
    event_type="job:started",
    status="processing",
    at=START,
    epoch=1,
    attempts=1,
    priority=0,
)


def running(**changes: Any) -> Facts:
    """Return the facts of a leased job in a consistent state, except for `changes`."""
    facts: dict[str, Any] = {
        "dispatches": [LEASED],
        "leases": [LEASE],
        "jobs": [JOB],
        "attempts": [AttemptFact(job_id="j", epoch=1, outcome=None)],
        "events": [("j", 1), ("j", 2)],
        "transactions": [CREDIT, RESERVE],
        "wallets": {"t": 90},
        "entitled": {"w": ("production", frozenset({7}))},
    }
    return Facts(**(facts | changes))


def completed(**changes: Any) -> Facts:
    """Return the facts of the same job after its completion."""
    return running(
        **{
            "dispatches": [COMPLETED],
            "leases": [ENDED],
            "jobs": [replace(JOB, status="completed", dispatch_version=2, event_seq=3, charged_tokens=10)],
            "attempts": [AttemptFact(job_id="j", epoch=1, outcome="completed")],
            "events": [("j", 1), ("j", 2), ("j", 3)],
            "transactions": [CREDIT, RESERVE, CONSUME],
            **changes,
        }
    )


def requeued(times: int) -> list[LeaseFact]:
    return [
        replace(LEASE, lease_token=str(epoch), epoch=epoch, ended_at=START, outcome="requeued")
        for epoch in range(1, times + 1)
    ]


BURST = replace(LEASED, provider="cloud", expected_cost_micros=7)
BURST_JOB = replace(JOB, expected_cost_micros=7)
FORBIDDEN_STATES: Sequence[tuple[Rule, Facts]] = [
    (invariants.every_burst_is_recorded_once, running(dispatches=[BURST])),
    (invariants.every_burst_is_recorded_once, running(bursts=[BurstFact(dispatch_id=1)])),
    (invariants.every_burst_is_recorded_once, running(bursts=[BurstFact(dispatch_id=2)])),
    (
        invariants.every_burst_is_recorded_once,
        running(dispatches=[BURST], bursts=[BurstFact(dispatch_id=1, ended_at=START)]),
    ),
    (
        invariants.every_burst_is_recorded_once,
        running(dispatches=[replace(BURST, provider="self_hosted")], bursts=[BurstFact(dispatch_id=1)]),
    ),
    (invariants.every_job_agrees_with_its_dispatch, running(jobs=[replace(JOB, cost_micros=1)])),
    (
        invariants.every_job_agrees_with_its_dispatch,
        running(dispatches=[BURST], bursts=[BurstFact(dispatch_id=1)]),
    ),
    (invariants.leased_means_one_lease, running(leases=[])),
    (invariants.leased_means_one_lease, running(leases=[LEASE, replace(LEASE, lease_token="two")])),
    (invariants.leased_means_one_lease, running(leases=[replace(LEASE, lease_token="two")])),
    (invariants.leased_means_one_lease, running(dispatches=[replace(LEASED, lease_token=None)])),
    (invariants.leased_means_one_lease, completed(leases=[LEASE])),
    (invariants.every_lease_has_its_own_epoch, running(leases=[LEASE, replace(ENDED, lease_token="two")])),
    (invariants.every_lease_has_its_own_epoch, running(dispatches=[replace(LEASED, epoch=2)])),
    (invariants.attempts_are_the_penalised_leases, running(dispatches=[replace(LEASED, attempts=0)])),
    (invariants.attempts_are_the_penalised_leases, running(leases=requeued(1))),
    (invariants.leases_stay_within_the_limit, running(dispatches=[replace(LEASED, max_attempts=0)])),
    (
        invariants.leases_stay_within_the_limit,
        running(dispatches=[replace(LEASED, max_attempts=1)], leases=[*requeued(2), LEASE, LEASE]),
    ),
    (invariants.every_lease_is_entitled, running(entitled={"w": ("production", frozenset({8}))})),
    (invariants.every_lease_is_entitled, running(entitled={"w": ("staging", frozenset({7}))})),
    (invariants.job_and_dispatch_never_end_differently, running(jobs=[replace(JOB, status="canceled")])),
    (
        invariants.job_and_dispatch_never_end_differently,
        completed(jobs=[replace(JOB, status="canceled", dispatch_version=2)]),
    ),
    (
        invariants.job_and_dispatch_never_end_differently,
        completed(dispatches=[replace(COMPLETED, status="canceled")], jobs=[JOB]),
    ),
    (invariants.balance_is_the_sum, running(wallets={"t": 100})),
    (invariants.balance_is_the_sum, running(wallets={"t": -10}, transactions=[RESERVE])),
    (invariants.every_job_is_reserved_once_and_settled_once, running(transactions=[CREDIT])),
    (invariants.every_job_is_reserved_once_and_settled_once, running(transactions=[CREDIT, RESERVE, RESERVE])),
    (invariants.every_job_is_reserved_once_and_settled_once, running(transactions=[RESERVE, CONSUME])),
    (invariants.every_job_is_reserved_once_and_settled_once, completed(transactions=[RESERVE])),
    (invariants.every_job_is_reserved_once_and_settled_once, completed(transactions=[RESERVE, REFUND])),
    (invariants.every_job_is_reserved_once_and_settled_once, completed(transactions=[RESERVE, CONSUME, REFUND])),
    (
        invariants.every_job_is_reserved_once_and_settled_once,
        running(jobs=[replace(JOB, status="failed")], transactions=[RESERVE, replace(REFUND, amount=5)]),
    ),
    (invariants.every_job_is_reserved_once_and_settled_once, running(jobs=[])),
    (invariants.every_difference_is_in_the_outbox, running(dispatches=[])),
    (invariants.every_difference_is_in_the_outbox, running(jobs=[replace(JOB, status="queued", dispatch_version=0)])),
    (invariants.every_difference_is_in_the_outbox, running(jobs=[replace(JOB, status="queued")])),
    (invariants.every_dispatch_has_a_job, running(jobs=[])),
    (invariants.every_transition_has_one_event, running(events=[("j", 1)])),
    (invariants.every_transition_has_one_event, running(events=[("j", 1), ("j", 2), ("j", 3)])),
    (invariants.every_transition_has_one_event, running(jobs=[replace(JOB, event_seq=3)])),
    (invariants.outbox_is_empty, running(entries=[UPDATE])),
    (invariants.outbox_is_empty, running(submitted=["j"])),
    (invariants.every_job_agrees_with_its_dispatch, running(dispatches=[])),
    (invariants.every_job_agrees_with_its_dispatch, completed(jobs=[JOB])),
    (invariants.attempts_mirror_leases, running(attempts=[])),
    (invariants.attempts_mirror_leases, completed(attempts=[AttemptFact(job_id="j", epoch=1, outcome=None)])),
    (every_job_has_ended, running()),
]

FORBIDDEN_CHANGES: Sequence[tuple[Change, Facts, Facts]] = [
    (invariants.epoch_and_version_only_grow, running(), running(dispatches=[replace(LEASED, epoch=0)])),
    (invariants.epoch_and_version_only_grow, running(), running(dispatches=[replace(LEASED, version=0)])),
    (
        invariants.ended_leases_never_change,
        completed(),
        completed(leases=[replace(ENDED, outcome="failed")]),
    ),
    (invariants.ended_leases_never_change, completed(), running()),
    (invariants.terminal_states_absorb, completed(), running(jobs=[])),
    (invariants.terminal_states_absorb, completed(), running(dispatches=[])),
    (invariants.terminal_states_absorb, completed(), completed(dispatches=[replace(COMPLETED, status="canceled")])),
    (
        invariants.no_lease_after_a_cancel,
        running(dispatches=[replace(LEASED, cancel_requested_at=START)]),
        running(dispatches=[replace(LEASED, epoch=2)]),
    ),
    (invariants.transactions_are_append_only, running(), running(transactions=[CREDIT])),
    (
        invariants.transactions_are_append_only,
        running(),
        running(transactions=[CREDIT, replace(RESERVE, amount=-1)]),
    ),
]


@pytest.mark.parametrize(("rule", "facts"), FORBIDDEN_STATES, ids=lambda value: getattr(value, "__name__", ""))
def test_rule_detects_its_forbidden_state(rule: Rule, facts: Facts) -> None:
    assert list(rule(facts))


@pytest.mark.parametrize(
    ("rule", "before", "after"), FORBIDDEN_CHANGES, ids=lambda value: getattr(value, "__name__", "")
)
def test_rule_detects_its_forbidden_change(rule: Change, before: Facts, after: Facts) -> None:
    seen = EarlierFacts()
    seen.note(before)
    assert list(rule(after, seen))


def test_every_rule_has_a_forbidden_example() -> None:
    assert {rule for rule, _ in FORBIDDEN_STATES} == {*ALWAYS, *QUIET, every_job_has_ended}
    assert {rule for rule, _, _ in FORBIDDEN_CHANGES} == {*CHANGES}


def test_consistent_states_break_no_rule() -> None:
    seen = EarlierFacts()
    for facts in (Facts(), running(), running(), completed(), completed()):
        assert find_violations(facts, [*ALWAYS, *QUIET], seen=seen) == []


def test_unfinished_steps_break_no_rule() -> None:
    behind = running(
        jobs=[replace(JOB, status="queued", dispatch_version=0, event_seq=1)], events=[("j", 1)], entries=[UPDATE]
    )
    assert find_violations(behind, ALWAYS) == []
    unqueued = running(
        dispatches=[],
        leases=[],
        jobs=[replace(JOB, status="queued", dispatch_version=0, event_seq=1)],
        events=[("j", 1)],
        submitted=["j"],
    )
    assert find_violations(unqueued, ALWAYS) == []


async def test_rules_read_the_databases(world: World) -> None:
    seen = EarlierFacts()
    desk = await world.desk()
    _, leased = await desk.submit_and_lease()
    facts = await check_always(world, seen)
    assert (len(facts.dispatches), len(facts.leases), len(facts.jobs), len(facts.attempts)) == (1, 1, 1, 1)
    assert (len(facts.events), len(facts.transactions), facts.wallets) == (2, 2, {desk.user.tenant_id: 990})
    assert facts.entitled[desk.worker] == ("production", frozenset({desk.workflow.id}))
    await check_agreed(world)
    with pytest.raises(InvariantViolation, match="every_job_has_ended"):
        await check_quiet(world)
    world.crash_on("deliver.apply", Boundary.BEFORE_COMMIT)
    with pytest.raises(Crash):
        await world.complete(leased)
    assert len((await check_always(world, seen)).entries) == 1
    with pytest.raises(InvariantViolation, match="outbox_is_empty"):
        await check_agreed(world)
    await world.restart()
    await world.relay()
    await check_always(world, seen)
    await check_quiet(world)
