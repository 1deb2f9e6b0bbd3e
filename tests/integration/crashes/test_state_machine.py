"""Any sequence of calls, crashes, restarts and clock jumps keeps the invariants.

Hypothesis generates the sequences and shortens the failing ones. Sequences that once failed are kept below as separate
tests.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from comfyrelay.domain.queue.ordering import MoveTo
from comfyrelay.domain.queue.states import PauseMode, Provider
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.catalogue import EffectRecord
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import ComfyRelayError, Conflict, Fault, InsufficientTokens, LeaseLost, TooManyActiveJobs
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.heartbeats import Heartbeat
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import tables as central
from comfyrelay.store.database import Boundary
from tests.support.crashes import CrashPoint, crash_at, drain
from tests.support.full import full_only
from tests.support.invariants import EarlierFacts, check_agreed, check_always, check_quiet
from tests.support.world import Crash, PostgresBackend, SqliteBackend, World, open_world, submit_batch

T = TypeVar("T")

COST = 10
RICH, POOR = 1000, 35
CONCURRENCY = 2
# Steps that the rules below do not reach.
OTHERS = {
    *(
        TransactionStep.TENANT,
        TransactionStep.CATALOGUE,
        TransactionStep.WORKER,
        TransactionStep.HOLD,
        TransactionStep.REPAIR,
        TransactionStep.DEFER,
        TransactionStep.REMOVE,
        TransactionStep.REMOVE_FORGET,
    ),
    *(
        TransactionStep.PAYMENT,
        TransactionStep.WEBHOOK_CLAIM,
        TransactionStep.WEBHOOK_NOTE,
        TransactionStep.MAIL_CLAIM,
        TransactionStep.MAIL_NOTE,
        TransactionStep.ERASE,
        TransactionStep.AUDIT,
        TransactionStep.RETENTION_MARK,
        TransactionStep.RETENTION_REMOVE,
    ),
}
STEPS = sorted(set(TransactionStep) - OTHERS)
PICK = st.integers(min_value=0, max_value=5)


@dataclass
class Call:
    """A call, the way to repeat it, and a check that the second answer fits the first."""

    name: str
    repeat: Callable[[], Awaitable[Any]]
    fits: Callable[[Any, Any], bool]
    # None if the process crashed before the answer.
    answer: Any = None


class RandomWalk(RuleBasedStateMachine):
    """Two tenants in two shards, two workflows, and three workers; one of them may run only the first workflow."""

    def __init__(self, backend: SqliteBackend | PostgresBackend, folder: Path) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.seen = EarlierFacts()
        self.users: list[User] = []
        self.effects: list[EffectRecord] = []
        self.workers: list[str] = []
        self.jobs: dict[str, JobRecord] = {}
        self.batches: list[tuple[str, str]] = []
        self.leases: list[LeasedDispatch] = []
        self.calls: list[Call] = []
        self.crash_point: CrashPoint | None = None
        self.restarts = False
        self.is_broken = False
        self.world: World = self.run(self.stack.enter_async_context(open_world(backend, folder)))
        self.run(self.set_up())

    async def set_up(self) -> None:
        first, second = [await self.world.workflow() for _ in range(2)]
        self.effects = [await self.world.effect(workflow, cost=COST) for workflow in (first, second)]
        both, narrow = await self.world.fleet(first, second), await self.world.fleet(first)
        self.workers = [await self.world.worker(fleet, concurrency=CONCURRENCY) for fleet in (both, both, narrow)]
        self.users = [await self.world.user(tokens=RICH, shard="a"), await self.world.user(tokens=POOR, shard="b")]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self.runner.run(work)
        except BaseException:
            self.is_broken = True
            raise

    def act(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Run the action of a rule; return None if the process crashed meanwhile.

        CrashPoint discards everything in memory.
        """
        return self.run(self._act(work))

    async def _act(self, work: Callable[[], Awaitable[T]]) -> T | None:
        answer: T | None = None
        try:
            answer = await work()
        except Crash:
            note("  crashed")
        await self.world.wait_for_deliveries()
        if self.crash_point is not None:
            if self.crash_point.happened and self.restarts:
                await self.world.restart()
            self.world.on_boundary(None)
            self.crash_point = None
        return answer

    def call(self, name: str, work: Callable[[], Awaitable[Any]], fits: Callable[[Any, Any], bool]) -> Any:
        call = Call(name=name, repeat=work, fits=fits)
        call.answer = self.act(work)
        self.calls.append(call)
        return call.answer

    @initialize(jobs=st.integers(1, 4), leases=st.integers(0, 3))
    def begin(self, jobs: int, leases: int) -> None:
        """Start each sequence with a job."""
        for number in range(jobs):
            self.submit(user=number % 2, effect=number // 2 % 2, priority=0)
        for number in range(leases):
            self.lease(worker=number, limit=1, prefetch=0, named=True)

    # faults

    @precondition(lambda self: self.crash_point is None)
    @rule(
        step=st.sampled_from(STEPS), boundary=st.sampled_from(Boundary), nth=st.integers(1, 2), restarts=st.booleans()
    )
    def arm(self, step: TransactionStep, boundary: Boundary, nth: int, restarts: bool) -> None:
        """Crash in the next rule that reaches this step. Without a restart, only a connection is lost."""
        if restarts:
            self.crash_point = crash_at(self.world, step, boundary, nth=nth)
        else:
            self.world.crash_on(step, boundary)
            self.crash_point = CrashPoint()
        self.restarts = restarts

    @precondition(lambda self: self.crash_point is None)
    @rule(
        step=st.sampled_from([TransactionStep.DELIVER_APPLY, TransactionStep.DELIVER_FORGET]),
        boundary=st.sampled_from(Boundary),
    )
    def arm_delivery(self, step: TransactionStep, boundary: Boundary) -> None:
        """Almost every rule ends in a delivery, and many failures happen there."""
        self.arm(step=step, boundary=boundary, nth=1, restarts=True)

    @rule(seconds=st.sampled_from([1, 30, 450, 901, 3600]))
    def advance(self, seconds: int) -> None:
        self.run(self.world.advance(seconds))

    @precondition(lambda self: bool(self.calls))
    @rule(pick=PICK)
    def repeat(self, pick: int) -> None:
        """Repeat an earlier call: the answer must fit the first one, and there must be no second effect."""
        past = self.calls[-1 - pick % len(self.calls)]
        answer = self.act(past.repeat)
        note(f"  {past.name}: first {past.answer}, then {answer}")
        if answer is not None and past.answer is not None:
            assert past.fits(past.answer, answer), f"{past.name}: first {past.answer}, then {answer}"
        past.answer = answer if past.answer is None else past.answer

    # submission

    @rule(user=st.integers(0, 1), effect=st.integers(0, 1), priority=st.integers(-1, 1))
    def submit(self, user: int, effect: int, priority: int) -> None:
        who, what, key = self.users[user], self.effects[effect], f"key-{self.world.number()}"

        async def work() -> str:
            balance = await self.world.balance(who)
            try:
                job = await self.world.submit(who, what, key=key, priority=priority)
            except InsufficientTokens:
                assert balance < COST
                return "refused"
            except ComfyRelayError as error:
                return type(error).__name__
            self.jobs[job.id] = job
            return job.id

        self.call("submit", work, lambda first, then: first == then or first not in self.jobs)

    @rule(user=st.integers(0, 1), items=st.integers(1, 3))
    def submit_batch(self, user: int, items: int) -> None:
        who, key = self.users[user], f"key-{self.world.number()}"

        async def work() -> str:
            try:
                batch = await submit_batch(self.world, who, self.effects[0], items, key=key)
            except ComfyRelayError as error:
                return type(error).__name__
            if (who.tenant_id, batch.id) not in self.batches:
                self.batches.append((who.tenant_id, batch.id))
            return batch.id

        def fits(first: str, then: str) -> bool:
            return first == then or all(first != batch for _, batch in self.batches)

        self.call("submit_batch", work, fits)

    # worker actions

    @rule(worker=st.integers(0, 2), limit=st.integers(1, 3), prefetch=st.integers(0, 1), named=st.booleans())
    def lease(self, worker: int, limit: int, prefetch: int, named: bool) -> None:
        request = LeaseRequest(
            worker_id=self.workers[worker],
            providers=[Provider.SELF_HOSTED],
            limit=limit,
            prefetch=prefetch,
            request_id=f"request-{self.world.number()}" if named else None,
        )

        async def work() -> frozenset[str]:
            found = await self.world.engine.queue.leasing.lease(request)
            known = {lease.lease_token for lease in self.leases}
            self.leases += [lease for lease in found if lease.lease_token not in known]
            return frozenset(lease.lease_token for lease in found)

        if named:
            # A repeated request gets the same lease while that lease lives; a request without a lease may get one now.
            self.call("lease", work, lambda first, then: not first or then <= first)
        else:
            self.act(work)

    @precondition(lambda self: bool(self.leases))
    @rule(pick=PICK, logs=st.booleans())
    def heartbeat(self, pick: int, logs: bool) -> None:
        leased = self.picked_lease(pick)
        beat = Heartbeat(
            dispatch_id=leased.dispatch_id,
            lease_token=leased.lease_token,
            progress={"value": self.world.number()},
            logs=["a line"] if logs else [],
        )

        async def work() -> str:
            await self.world.engine.queue.heartbeats.beat(beat)
            return "extended"

        self.report("heartbeat", leased, work, lambda first, then: then in {first, "LeaseLost"})

    @precondition(lambda self: bool(self.leases))
    @rule(pick=PICK, verb=st.sampled_from([*Fault, "complete", "requeue"]), wait=st.sampled_from([0.0, 60.0]))
    def end(self, pick: int, verb: str, wait: float) -> None:
        """Complete or requeue the job, or fail it with the given fault."""
        leased = self.picked_lease(pick)
        if verb == "complete":
            self.report(verb, leased, lambda: self.world.complete(leased), lambda first, then: first == then)
        elif verb == "requeue":
            self.report(verb, leased, lambda: self.world.requeue(leased), lambda _, then: then == "LeaseLost")
        else:
            self.report(
                f"fail ({verb})",
                leased,
                lambda: self.world.fail(leased, fault=Fault(verb), retry_after_seconds=wait),
                lambda first, then: first == then,
            )

    # user actions

    @precondition(lambda self: bool(self.jobs))
    @rule(pick=PICK, verb=st.sampled_from(["cancel", "pause", "pause now", "resume", "retry", "first", "top", "down"]))
    def control(self, pick: int, verb: str) -> None:
        tenant, job = self.picked_job(pick).tenant_id, self.picked_job(pick).id
        work: dict[str, Callable[[], Awaitable[Any]]] = {
            "cancel": lambda: self.world.engine.queue.control.cancel(tenant, job),
            "pause": lambda: self.world.engine.queue.control.pause(tenant, job),
            "pause now": lambda: self.world.engine.queue.control.pause(tenant, job, mode=PauseMode.NOW),
            "resume": lambda: self.world.engine.queue.control.resume(tenant, job),
            "retry": lambda: self.retry(tenant, job),
            "first": lambda: self.world.engine.queue.control.set_priority(tenant, job, 2),
            "top": lambda: self.world.engine.queue.control.move(tenant, job, MoveTo.TOP),
            "down": lambda: self.world.engine.queue.control.move(tenant, job, MoveTo.DOWN),
        }
        self.act(lambda: suppress_refusal(work[verb]))

    async def retry(self, tenant: str, job_id: str) -> None:
        job = await self.world.engine.jobs.submit.retry(tenant, job_id)
        self.jobs[job.id] = job

    @precondition(lambda self: bool(self.batches))
    @rule(pick=PICK, verb=st.sampled_from(["cancel", "pause", "resume", "retry"]))
    def control_batch(self, pick: int, verb: str) -> None:
        tenant, batch = self.batches[-1 - pick % len(self.batches)]
        work: dict[str, Callable[[], Awaitable[Any]]] = {
            "cancel": lambda: self.world.engine.queue.control.cancel_batch(tenant, batch),
            "pause": lambda: self.world.engine.queue.control.pause_batch(tenant, batch, mode=PauseMode.NOW),
            "resume": lambda: self.world.engine.queue.control.resume_batch(tenant, batch),
            "retry": lambda: self.world.engine.jobs.batches.retry_failed(tenant, batch),
        }
        self.act(lambda: suppress_refusal(work[verb]))

    # operators and loops

    @rule(
        verb=st.sampled_from(["reap", "relay", "release", "recall", "credit", "restart"]),
        number=st.integers(0, 2),
    )
    def run_loop(self, verb: str, number: int) -> None:
        worker, tenant = self.workers[number], self.users[number % 2].tenant_id
        work: dict[str, Callable[[], Awaitable[Any]]] = {
            "reap": self.world.engine.queue.reaper.run_once,
            "relay": self.world.relay,
            "release": lambda: self.world.engine.workers.workers.release(worker, reason="drain"),
            "recall": lambda: self.world.engine.workers.workers.recall_prefetched(worker),
            "credit": lambda: self.world.engine.accounts.ledger.credit(tenant, COST, reference=f"payment-{number}"),
            "restart": self.world.restart,
        }
        self.act(work[verb])

    # helpers

    def picked_job(self, pick: int) -> JobRecord:
        """Return a job by its age, counted from the newest."""
        return list(self.jobs.values())[-1 - pick % len(self.jobs)]

    def picked_lease(self, pick: int) -> LeasedDispatch:
        """Return a lease by its age, counted from the newest; most older leases are lost."""
        return self.leases[-1 - pick % len(self.leases)]

    def report(
        self,
        name: str,
        leased: LeasedDispatch,
        work: Callable[[], Awaitable[str]],
        fits: Callable[[Any, Any], bool],
    ) -> None:
        """Report with a lease; a report with a lease that is not current must change nothing."""

        async def report() -> str:
            try:
                return await work()
            except LeaseLost:
                return "LeaseLost"

        before = self.run(self.dispatch(leased.dispatch_id))
        answer = self.call(name, report, fits)
        if before.lease_token != leased.lease_token:
            assert self.run(self.dispatch(leased.dispatch_id)) == before, f"a stale {name} changed something"
        elif answer is not None:
            assert answer != "LeaseLost", f"the holder of the lease was refused: {name}"

    async def dispatch(self, dispatch_id: int) -> Any:
        d = central.queue.ai_job_dispatches
        async with self.world.engine.databases.central.read() as tx:
            return (await tx.execute(d.select().where(d.c.id == dispatch_id))).one()

    # invariants

    @invariant()
    def invariants_hold(self) -> None:
        self.run(self.check())

    async def check(self) -> None:
        facts = await check_always(self.world, self.seen)
        held = [dispatch.worker_id for dispatch in facts.dispatches if dispatch.worker_id is not None]
        for worker in self.workers:
            assert held.count(worker) <= CONCURRENCY + 1, f"{worker} holds {held.count(worker)} leases"

    def teardown(self) -> None:
        try:
            if not self.is_broken:
                self.run(self.recover())
        finally:
            self.runner.run(self.stack.aclose())
            self.runner.close()

    async def recover(self) -> None:
        """Without faults, each accepted job reaches one outcome and is charged at most once, and all databases
        agree."""
        await self.world.restart()
        await self.world.relay()
        await self.check()
        await check_agreed(self.world)
        await drain(self.world)
        await self.check()
        facts = await check_quiet(self.world)
        assert self.jobs.keys() <= {job.id for job in facts.jobs}, "an accepted job is missing"
        for user in self.users:
            credited = sum(
                transaction.amount
                for transaction in facts.transactions
                if transaction.type == "PAYMENT_CREDIT" and transaction.tenant_id == user.tenant_id
            )
            completed = sum(job.tenant_id == user.tenant_id and job.status == "completed" for job in facts.jobs)
            assert facts.wallets[user.tenant_id] == credited - COST * completed


async def suppress_refusal(work: Callable[[], Awaitable[Any]]) -> None:
    with suppress(Conflict, InsufficientTokens, TooManyActiveJobs):
        await work()


def profile(examples: int) -> settings:
    return settings(
        # Run the same walks each time, so that failures are due to a change; RANDOM_WALKS=1 searches for new ones.
        derandomize="RANDOM_WALKS" not in os.environ,
        max_examples=examples,
        stateful_step_count=30,
        deadline=None,
        print_blob=True,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


def walk_on(backend: SqliteBackend | PostgresBackend, folder: Path) -> type[RandomWalk]:
    class BackendWalk(RandomWalk):
        def __init__(self) -> None:
            super().__init__(backend, folder)

    return BackendWalk


@pytest.mark.parametrize("examples", [3, *full_only(200)])
def test_random_calls_keep_the_invariants_on_sqlite(
    sqlite_backend: SqliteBackend, tmp_path: Path, examples: int
) -> None:
    run_state_machine_as_test(walk_on(sqlite_backend, tmp_path), settings=profile(examples))


@pytest.mark.parametrize("examples", [2, *full_only(60)])
def test_random_calls_keep_the_invariants_on_postgresql(
    postgres_backend: PostgresBackend, tmp_path: Path, examples: int
) -> None:
    run_state_machine_as_test(walk_on(postgres_backend, tmp_path), settings=profile(examples))


# Sequences that once failed.


async def test_stale_heartbeat_does_not_change_the_new_lease(world: World) -> None:
    desk = await world.desk()
    job, old = await desk.submit_and_lease()
    await world.requeue(old)
    assert await world.lease(desk.worker) is not None
    before = await world.dispatch(job)
    await world.advance(30)
    beat = Heartbeat(dispatch_id=old.dispatch_id, lease_token=old.lease_token, progress={"value": 1})
    with pytest.raises(LeaseLost):
        await world.engine.queue.heartbeats.beat(beat)
    assert await world.dispatch(job) == before
