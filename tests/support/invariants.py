"""Invariants that always hold, and invariants that hold once the system is idle.

All databases are read into plain `Facts`. Each rule is a function that lists its violations, so a rule can be tested on
states that no database would accept.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Table, select

from comfyrelay.domain.queue.settlement import settlement_of
from comfyrelay.domain.queue.states import (
    JOB_STATUS_OF,
    TERMINAL_DISPATCH,
    TERMINAL_JOB,
    DispatchStatus,
    JobStatus,
    Outcome,
    Provider,
    TransactionType,
)
from comfyrelay.domain.queue.updates import JobUpdate
from comfyrelay.services.databases import Databases
from comfyrelay.store.central import tables as central
from comfyrelay.store.database import Database
from comfyrelay.store.tenant import tables as tenant
from tests.support.world import World

# Leases with one of these outcomes do not count as attempts.
UNPENALISED = frozenset({Outcome.REQUEUED, Outcome.DEFERRED})
SETTLEMENTS = frozenset({TransactionType.JOB_CONSUME, TransactionType.JOB_REFUND})


class InvariantViolation(AssertionError):
    pass


@dataclass(frozen=True, kw_only=True)
class DispatchFact:
    id: int
    tenant_id: str
    tenant_job_id: str
    workflow_id: int
    stage: str
    provider: str
    status: str
    epoch: int
    version: int
    attempts: int
    max_attempts: int
    worker_id: str | None = None
    lease_token: str | None = None
    cancel_requested_at: Any = None
    cost_micros: int = 0
    expected_cost_micros: int | None = None


@dataclass(frozen=True, kw_only=True)
class BurstFact:
    dispatch_id: int
    ended_at: Any = None


@dataclass(frozen=True, kw_only=True)
class LeaseFact:
    lease_token: str
    dispatch_id: int
    epoch: int
    worker_id: str
    ended_at: Any = None
    outcome: str | None = None
    ended_by: str | None = None
    status_after: str | None = None


@dataclass(frozen=True, kw_only=True)
class JobFact:
    id: str
    tenant_id: str
    status: str
    reserved_tokens: int
    dispatch_version: int
    event_seq: int
    charged_tokens: int | None = None
    millitokens_per_second: int | None = None
    cost_micros: int = 0
    expected_cost_micros: int | None = None
    reused_from: str | None = None


@dataclass(frozen=True, kw_only=True)
class AttemptFact:
    job_id: str
    epoch: int
    outcome: str | None


@dataclass(frozen=True, kw_only=True)
class TransactionFact:
    id: int
    tenant_id: str
    type: str
    amount: int
    job_id: str | None = None


@dataclass(kw_only=True)
class Facts:
    """The rows of all databases that the invariants check."""

    dispatches: Sequence[DispatchFact] = ()
    leases: Sequence[LeaseFact] = ()
    bursts: Sequence[BurstFact] = ()
    jobs: Sequence[JobFact] = ()
    attempts: Sequence[AttemptFact] = ()
    events: Sequence[tuple[str, int]] = ()
    transactions: Sequence[TransactionFact] = ()
    wallets: Mapping[str, int] = field(default_factory=dict)
    entries: Sequence[JobUpdate] = ()
    submitted: Sequence[str] = ()
    # The jobs that each worker may run: its stage and its assigned workflows.
    entitled: Mapping[str, tuple[str, frozenset[int]]] = field(default_factory=dict)

    def dispatch_of(self) -> dict[str, DispatchFact]:
        return {dispatch.tenant_job_id: dispatch for dispatch in self.dispatches}

    def leases_of(self) -> dict[int, list[LeaseFact]]:
        found: dict[int, list[LeaseFact]] = {dispatch.id: [] for dispatch in self.dispatches}
        for lease in self.leases:
            found.setdefault(lease.dispatch_id, []).append(lease)
        return found

    def transactions_of(self) -> dict[str, list[TransactionFact]]:
        found: dict[str, list[TransactionFact]] = {job.id: [] for job in self.jobs}
        for transaction in self.transactions:
            if transaction.job_id is not None:
                found.setdefault(transaction.job_id, []).append(transaction)
        return found


@dataclass
class EarlierFacts:
    """Earlier facts of the same world, for invariants about changes."""

    dispatches: dict[int, DispatchFact] = field(default_factory=dict)
    jobs: dict[str, JobFact] = field(default_factory=dict)
    ended: dict[str, LeaseFact] = field(default_factory=dict)
    transactions: dict[tuple[str, int], TransactionFact] = field(default_factory=dict)
    # The epoch at which a cancel request was first seen.
    cancels: dict[int, int] = field(default_factory=dict)

    def note(self, facts: Facts) -> None:
        self.dispatches.update({dispatch.id: dispatch for dispatch in facts.dispatches})
        self.jobs.update({job.id: job for job in facts.jobs})
        self.ended.update({lease.lease_token: lease for lease in facts.leases if lease.ended_at is not None})
        self.transactions.update(
            {(transaction.tenant_id, transaction.id): transaction for transaction in facts.transactions}
        )
        for dispatch in facts.dispatches:
            if dispatch.cancel_requested_at is not None or dispatch.status == DispatchStatus.CANCELED:
                self.cancels.setdefault(dispatch.id, dispatch.epoch)


Rule = Callable[[Facts], Iterable[str]]
Change = Callable[[Facts, EarlierFacts], Iterable[str]]


# Queue 2: a dispatch has exactly one lease while it is leased, otherwise none; its epoch only grows.


def leased_means_one_lease(facts: Facts) -> Iterable[str]:
    leases = facts.leases_of()
    for dispatch in facts.dispatches:
        is_leased = dispatch.status == DispatchStatus.LEASED
        open_ = [lease for lease in leases[dispatch.id] if lease.ended_at is None]
        if len(open_) != is_leased or is_leased != (dispatch.lease_token is not None):
            yield f"dispatch {dispatch.id} is {dispatch.status} with {len(open_)} leases, token {dispatch.lease_token}"
        elif is_leased and (open_[0].lease_token, open_[0].epoch, open_[0].worker_id) != (
            dispatch.lease_token,
            dispatch.epoch,
            dispatch.worker_id,
        ):
            yield f"dispatch {dispatch.id} has another lease than its history"


def every_lease_has_its_own_epoch(facts: Facts) -> Iterable[str]:
    for dispatch_id, leases in facts.leases_of().items():
        epoch = next((dispatch.epoch for dispatch in facts.dispatches if dispatch.id == dispatch_id), 0)
        if sorted(lease.epoch for lease in leases) != list(range(1, epoch + 1)):
            yield f"dispatch {dispatch_id} has epoch {epoch}, its leases {[lease.epoch for lease in leases]}"


def epoch_and_version_only_grow(facts: Facts, seen: EarlierFacts) -> Iterable[str]:
    for dispatch in facts.dispatches:
        before = seen.dispatches.get(dispatch.id, dispatch)
        if dispatch.epoch < before.epoch or dispatch.version < before.version:
            yield f"the epoch or version of dispatch {dispatch.id} fell: {before} became {dispatch}"


# Queue 3: only the current lease counts.


def ended_leases_never_change(facts: Facts, seen: EarlierFacts) -> Iterable[str]:
    for lease in facts.leases:
        before = seen.ended.get(lease.lease_token)
        if before is not None and before != lease:
            yield f"the ended lease {before} became {lease}"


# Queue 4: a job whose workers always die fails after exactly `max_attempts` leases.


def attempts_are_the_penalised_leases(facts: Facts) -> Iterable[str]:
    leases = facts.leases_of()
    for dispatch in facts.dispatches:
        used = sum(lease.outcome not in UNPENALISED for lease in leases[dispatch.id])
        if dispatch.attempts != used:
            yield f"dispatch {dispatch.id} counts {dispatch.attempts} attempts, its leases used {used}"


def leases_stay_within_the_limit(facts: Facts) -> Iterable[str]:
    leases = facts.leases_of()
    for dispatch in facts.dispatches:
        free = sum(lease.outcome in UNPENALISED for lease in leases[dispatch.id])
        if len(leases[dispatch.id]) > dispatch.max_attempts + free:
            yield f"dispatch {dispatch.id} was leased {len(leases[dispatch.id])} times, {free} of them without penalty"


# Queue 5: a worker gets only jobs that it is entitled to run.


def every_lease_is_entitled(facts: Facts) -> Iterable[str]:
    dispatches = {dispatch.id: dispatch for dispatch in facts.dispatches}
    for lease in facts.leases:
        dispatch = dispatches.get(lease.dispatch_id)
        # what a deregistered worker was entitled to run is unknown
        if dispatch is None or lease.worker_id not in facts.entitled:
            continue
        stage, workflows = facts.entitled[lease.worker_id]
        if dispatch.stage != stage or dispatch.workflow_id not in workflows:
            yield f"{lease.worker_id} leased dispatch {dispatch.id}, which it is not entitled to"


# Queue 6: after a cancel is acknowledged, no new lease starts; a job is never both canceled and completed.


def terminal_states_absorb(facts: Facts, seen: EarlierFacts) -> Iterable[str]:
    for dispatch in facts.dispatches:
        was = seen.dispatches.get(dispatch.id, dispatch)
        if was.status in TERMINAL_DISPATCH and (was.status, was.epoch) != (dispatch.status, dispatch.epoch):
            yield f"dispatch {dispatch.id} left {was.status} for {dispatch.status}"
    for job in facts.jobs:
        before = seen.jobs.get(job.id, job)
        if before.status in TERMINAL_JOB and before.status != job.status:
            yield f"job {job.id} left {before.status} for {job.status}"


def no_lease_after_a_cancel(facts: Facts, seen: EarlierFacts) -> Iterable[str]:
    for dispatch in facts.dispatches:
        if dispatch.epoch > seen.cancels.get(dispatch.id, dispatch.epoch):
            yield f"dispatch {dispatch.id} was leased after a cancel request"


def job_and_dispatch_never_end_differently(facts: Facts) -> Iterable[str]:
    dispatches = facts.dispatch_of()
    leases = facts.leases_of()
    for job in facts.jobs:
        dispatch = dispatches.get(job.id)
        if dispatch is None or dispatch.status not in TERMINAL_DISPATCH:
            if dispatch is not None and job.status in TERMINAL_JOB:
                yield f"job {job.id} is {job.status}, its dispatch is still {dispatch.status}"
            continue
        if job.status in TERMINAL_JOB and job.status != dispatch.status:
            yield f"job {job.id} is {job.status}, its dispatch {dispatch.status}"
        completed = any(lease.outcome == Outcome.COMPLETED for lease in leases[dispatch.id])
        if completed != (dispatch.status == DispatchStatus.COMPLETED):
            yield f"dispatch {dispatch.id} is {dispatch.status}, its leases disagree"


# Ledger 1: the balance is the sum of the transactions and never below zero; transactions are append-only.


def balance_is_the_sum(facts: Facts) -> Iterable[str]:
    sums: dict[str, int] = defaultdict(int)
    for transaction in facts.transactions:
        sums[transaction.tenant_id] += transaction.amount
    for tenant_id, balance in facts.wallets.items():
        if balance < 0 or balance != sums[tenant_id]:
            yield f"the balance of {tenant_id} is {balance}, the sum of its transactions is {sums[tenant_id]}"


def transactions_are_append_only(facts: Facts, seen: EarlierFacts) -> Iterable[str]:
    now = {(transaction.tenant_id, transaction.id): transaction for transaction in facts.transactions}
    for key, before in seen.transactions.items():
        if now.get(key) != before:
            yield f"the transaction {before} became {now.get(key)}"


# Ledger 2 and 3: a job has one reserve, and then one consume if it is completed or charged by the second, else one
# refund.


def every_job_is_reserved_once_and_settled_once(facts: Facts) -> Iterable[str]:
    found = facts.transactions_of()
    for job in facts.jobs:
        transactions = found[job.id]
        reserved = [entry.amount for entry in transactions if entry.type == TransactionType.JOB_RESERVE]
        settled = [(entry.type, entry.amount) for entry in transactions if entry.type in SETTLEMENTS]
        if reserved != [-job.reserved_tokens]:
            yield f"job {job.id} costs {job.reserved_tokens} and reserved {reserved}"
        due = settlement_of(job.status, job.charged_tokens or 0)
        released = job.reserved_tokens - (job.charged_tokens or 0)
        if job.status != JobStatus.COMPLETED and job.charged_tokens and job.millitokens_per_second is None:
            yield f"job {job.id} is {job.status} and costs {job.charged_tokens}"
        if settled != ([(due, released)] if due is not None else []):
            yield f"job {job.id} is {job.status} and was settled with {settled}"
    known = {job.id for job in facts.jobs}
    for job_id in found.keys() - known:
        yield f"the job {job_id} has transactions and does not exist"


# A job bursts at most once, and its expected cost is reserved exactly while it is in the cloud.


def every_burst_is_recorded_once(facts: Facts) -> Iterable[str]:
    recorded: dict[int, list[BurstFact]] = defaultdict(list)
    for burst in facts.bursts:
        recorded[burst.dispatch_id].append(burst)
    for dispatch in facts.dispatches:
        found = recorded.pop(dispatch.id, [])
        is_in_cloud = dispatch.provider == Provider.CLOUD and dispatch.status not in TERMINAL_DISPATCH
        if len(found) != (dispatch.expected_cost_micros is not None):
            yield f"dispatch {dispatch.id} should cost {dispatch.expected_cost_micros}, recorded {found}"
        elif found and is_in_cloud != (found[0].ended_at is None):
            yield f"dispatch {dispatch.id} is {dispatch.status} at {dispatch.provider}, recorded {found}"
    for dispatch_id in recorded:
        yield f"the burst of dispatch {dispatch_id} is recorded, but the dispatch does not exist"


# Across 1: a step writes its outbox rows with its business rows, so every difference is in the outbox.


def every_difference_is_in_the_outbox(facts: Facts) -> Iterable[str]:
    dispatches = facts.dispatch_of()
    pending: dict[str, set[int]] = defaultdict(set)
    for update in facts.entries:
        pending[update.job_id].add(update.version)
    for job in facts.jobs:
        dispatch = dispatches.get(job.id)
        if dispatch is None:
            if job.status not in TERMINAL_JOB and job.id not in facts.submitted:
                yield f"job {job.id} is {job.status}, has no dispatch, and no pending submission"
            continue
        lost = set(range(job.dispatch_version + 1, dispatch.version + 1)) - pending[job.id]
        if lost:
            yield f"the outbox lacks the updates {sorted(lost)} of job {job.id}"
        if dispatch.version == job.dispatch_version and JOB_STATUS_OF[DispatchStatus(dispatch.status)] != job.status:
            yield f"job {job.id} is {job.status}, its dispatch {dispatch.status}, at the same version"


def every_dispatch_has_a_job(facts: Facts) -> Iterable[str]:
    """Submission writes the shard first, so every dispatch has a job."""
    known = {job.id for job in facts.jobs}
    for dispatch in facts.dispatches:
        if dispatch.tenant_job_id not in known:
            yield f"dispatch {dispatch.id} has no job"


def every_transition_has_one_event(facts: Facts) -> Iterable[str]:
    """Each job has one event for the submission and one per transition, numbered without gaps."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for job_id, seq in facts.events:
        numbers[job_id].append(seq)
    for job in facts.jobs:
        expected = list(range(1, job.dispatch_version + 2))
        if sorted(numbers[job.id]) != expected or job.event_seq != len(expected):
            yield f"job {job.id} has version {job.dispatch_version} and the events {sorted(numbers[job.id])}"


ALWAYS: tuple[Rule, ...] = (
    leased_means_one_lease,
    every_lease_has_its_own_epoch,
    attempts_are_the_penalised_leases,
    leases_stay_within_the_limit,
    every_lease_is_entitled,
    job_and_dispatch_never_end_differently,
    balance_is_the_sum,
    every_job_is_reserved_once_and_settled_once,
    every_burst_is_recorded_once,
    every_difference_is_in_the_outbox,
    every_dispatch_has_a_job,
    every_transition_has_one_event,
)
CHANGES: tuple[Change, ...] = (
    epoch_and_version_only_grow,
    ended_leases_never_change,
    terminal_states_absorb,
    no_lease_after_a_cancel,
    transactions_are_append_only,
)


# Queue 1 and across 2: once every fault is repaired, nothing is lost, duplicated or orphaned.


def outbox_is_empty(facts: Facts) -> Iterable[str]:
    if facts.entries:
        yield f"{len(facts.entries)} updates are not delivered"
    if facts.submitted:
        yield f"{len(facts.submitted)} jobs are not in the queue"


def every_job_agrees_with_its_dispatch(facts: Facts) -> Iterable[str]:
    dispatches = facts.dispatch_of()
    for job in facts.jobs:
        dispatch = dispatches.get(job.id)
        # A job with a reused output has no dispatch.
        if job.reused_from is not None:
            if dispatch is not None or job.status != JobStatus.COMPLETED or job.reserved_tokens:
                yield f"job {job.id} reuses an output, is {job.status} and costs {job.reserved_tokens}"
            continue
        # A job that could never be dispatched fails without a dispatch.
        if dispatch is None and job.status != JobStatus.FAILED:
            yield f"job {job.id} is {job.status} and has no dispatch"
        if dispatch is not None and JOB_STATUS_OF[DispatchStatus(dispatch.status)] != job.status:
            yield f"job {job.id} is {job.status}, its dispatch {dispatch.status}"
        if dispatch is not None and _costs(dispatch) != _costs(job):
            yield f"job {job.id} costs {_costs(job)}, its dispatch {_costs(dispatch)}"


def _costs(fact: DispatchFact | JobFact) -> tuple[int, int | None]:
    return fact.cost_micros, fact.expected_cost_micros


def attempts_mirror_leases(facts: Facts) -> Iterable[str]:
    dispatches = facts.dispatch_of()
    leases = facts.leases_of()
    attempts: dict[str, dict[int, str | None]] = defaultdict(dict)
    for attempt in facts.attempts:
        attempts[attempt.job_id][attempt.epoch] = attempt.outcome
    for job in facts.jobs:
        if job.id in dispatches:
            expected = {lease.epoch: lease.outcome for lease in leases[dispatches[job.id].id]}
            if attempts[job.id] != expected:
                yield f"job {job.id} has the attempts {attempts[job.id]}, its leases were {expected}"


QUIET: tuple[Rule, ...] = (outbox_is_empty, every_job_agrees_with_its_dispatch, attempts_mirror_leases)


def every_job_has_ended(facts: Facts) -> Iterable[str]:
    for job in facts.jobs:
        if job.status not in TERMINAL_JOB:
            yield f"job {job.id} is still {job.status}"


def find_violations(facts: Facts, rules: Iterable[Rule], *, seen: EarlierFacts | None = None) -> list[str]:
    """Return violations by invariant; with `seen`, also forbidden changes."""
    found = [f"{rule.__name__}: {text}" for rule in rules for text in rule(facts)]
    if seen is not None:
        found += [f"{rule.__name__}: {text}" for rule in CHANGES for text in rule(facts, seen)]
        seen.note(facts)
    return found


async def check_always(world: World, seen: EarlierFacts) -> Facts:
    """Check the invariants that hold at any time, even after a crash."""
    facts = await read_facts(world)
    _raise(find_violations(facts, ALWAYS, seen=seen))
    return facts


async def check_agreed(world: World) -> Facts:
    """Check the invariants that hold once the outbox is empty: databases agree, and the reconciler finds nothing."""
    facts = await read_facts(world)
    _raise(find_violations(facts, (*ALWAYS, *QUIET)))
    report = await world.engine.operations.reconciler.run()
    _raise([f"reconciler: {finding.kind}: {finding.text}" for finding in report.findings])
    return facts


async def check_quiet(world: World) -> Facts:
    """Check the invariants that hold once the queue is drained: in addition, every accepted job has ended."""
    facts = await check_agreed(world)
    _raise(find_violations(facts, [every_job_has_ended]))
    return facts


def _raise(found: Sequence[str]) -> None:
    if found:
        raise InvariantViolation("\n".join(found))


async def read_facts(world: World) -> Facts:
    return await read_facts_from(world.engine.databases)


async def read_facts_from(databases: Databases) -> Facts:
    """Read all databases in sequence; nothing else may run meanwhile."""
    facts = Facts()
    await _read_central_facts(databases.central, facts)
    jobs: list[JobFact] = []
    attempts: list[AttemptFact] = []
    transactions: list[TransactionFact] = []
    events: list[tuple[str, int]] = []
    submitted: list[str] = []
    wallets: dict[str, int] = {}
    for shard in databases.shards.values():
        async with shard.read() as tx:
            jobs += [JobFact(**row) for row in await _rows(tx, tenant.ai_jobs, JobFact)]
            attempts += [AttemptFact(**row) for row in await _rows(tx, tenant.job_attempts, AttemptFact)]
            transactions += [
                TransactionFact(**row) for row in await _rows(tx, tenant.token_transactions, TransactionFact)
            ]
            found = (await tx.execute(select(tenant.job_events.c.job_id, tenant.job_events.c.seq))).all()
            events += [(row.job_id, row.seq) for row in found]
            submitted += [id_ for row in await tx.execute(select(tenant.outbox.c.job_ids)) for id_ in row.job_ids]
            wallets |= {row.tenant_id: row.balance for row in await tx.execute(select(tenant.token_wallets))}
    facts.jobs, facts.attempts, facts.transactions, facts.events = jobs, attempts, transactions, events
    facts.submitted, facts.wallets = submitted, wallets
    return facts


async def _read_central_facts(database: Database, facts: Facts) -> None:
    async with database.read() as tx:
        facts.dispatches = [
            DispatchFact(**row) for row in await _rows(tx, central.queue.ai_job_dispatches, DispatchFact)
        ]
        facts.bursts = [BurstFact(**row) for row in await _rows(tx, central.autoscaling.bursts, BurstFact)]
        facts.leases = [LeaseFact(**row) for row in await _rows(tx, central.queue.dispatch_leases, LeaseFact)]
        entries = await tx.execute(select(central.queue.outbox.c.updates))
        facts.entries = [JobUpdate.from_json(update) for row in entries for update in row.updates]
        assigned: dict[str, set[int]] = defaultdict(set)
        for row in await tx.execute(select(central.workers.worker_workflows)):
            assigned[row.worker_id].add(row.workflow_id)
        workers = await tx.execute(select(central.workers.workers.c.worker_id, central.workers.workers.c.stage))
        facts.entitled = {row.worker_id: (row.stage, frozenset(assigned[row.worker_id])) for row in workers}


async def _rows(tx: Any, table: Table, fact: type[Any]) -> list[dict[str, Any]]:
    columns = [table.c[name] for name in fact.__dataclass_fields__]
    return [dict(row._mapping) for row in await tx.execute(select(*columns))]
