"""Lease queued dispatches to polling workers."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain

from comfyrelay.domain.ids import new_lease_token
from comfyrelay.domain.queue import lifecycle
from comfyrelay.domain.queue.blocks import UNBLOCKED_EVENT, is_blocked
from comfyrelay.domain.queue.dispatch import Dispatch
from comfyrelay.domain.queue.routing import (
    Claim,
    Entitlement,
    Grant,
    WarmPolicy,
    count_left_over,
    free_slots,
    route,
    slots_by_entitlement,
    unserved_claims,
)
from comfyrelay.domain.queue.updates import JobUpdate, update_of_lease
from comfyrelay.domain.records.workers import NewAuditEntry
from comfyrelay.errors import ComfyRelayError, Conflict, Forbidden, Unauthorized
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.outbox.delivery import OutboxDelivery
from comfyrelay.services.queue.decisions import block_event
from comfyrelay.services.queue.graph_building import GraphBuilder, LeasedDispatch
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store import outbox
from comfyrelay.store.central import audit
from comfyrelay.store.central.queue import blocks, claims, dispatches, leases, memory
from comfyrelay.store.central.queue.claims import WorkerFacts
from comfyrelay.store.database import Tx
from comfyrelay.store.outbox import OutboxEntry


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseRequest:
    """A worker's poll."""

    worker_id: str
    providers: Sequence[str]
    limit: int = 1
    max_concurrency: int | None = None
    prefetch: int = 0
    request_id: str | None = None
    warm_workflow_hashes: frozenset[str] = frozenset()
    # Hash of the worker token in the request, which may be outdated.
    token_hash: str | None = None
    # Number of jobs that the worker reports as running, which may exceed the number of its leases.
    current_load: int = 0
    # The worker's fleet, which may be scaled.
    fleet_id: int | None = None

    def free_slots(self, max_concurrency: int, leases: int) -> int:
        return free_slots(
            max_concurrency=max_concurrency,
            reported=self.max_concurrency,
            leases=leases,
            current_load=self.current_load,
        )


@dataclass(kw_only=True, slots=True)
class _Leased:
    """The result of one leasing transaction. Integer keys are indexes of requests."""

    dispatches: dict[int, list[Dispatch]] = field(default_factory=lambda: defaultdict(list))
    granted: list[Dispatch] = field(default_factory=list)
    errors: dict[int, ComfyRelayError] = field(default_factory=dict)
    # Number of candidates that were granted to no worker.
    left_over: dict[int, int] = field(default_factory=dict)
    # Repeated requests whose lease has ended.
    ended: set[int] = field(default_factory=set)
    entries: list[OutboxEntry] = field(default_factory=list)
    # Workflows whose models stay loaded.
    pinned: frozenset[int] = frozenset()
    # Memory of the largest GPU that was too small, by workflow id and hash.
    ran_out: Mapping[memory.OversizedWorkflow, int] = field(default_factory=dict)


class Leasing:
    def __init__(
        self,
        context: ServiceContext,
        delivery: OutboxDelivery,
        builder: GraphBuilder,
        *,
        on_leased: Callable[[Sequence[Dispatch]], None],
    ) -> None:
        """`on_leased` is called with new leases. It must return quickly and not raise."""
        settings = context.settings
        self._databases = context.databases
        self._ttl = timedelta(seconds=settings.lease_ttl_seconds)
        self._warm = WarmPolicy(
            lookahead_rows=settings.warm_lookahead_rows, max_wait=timedelta(seconds=settings.warm_wait_seconds)
        )
        self._offline_seconds = settings.worker_offline_seconds
        self._delivery = delivery
        self._builder = builder
        self._on_leased = on_leased
        self._pollers: set[str] = set()

    async def lease(self, request: LeaseRequest) -> list[LeasedDispatch]:
        answer = (await self.lease_many([request]))[0]
        if isinstance(answer, Exception):
            raise answer
        return answer or []

    async def lease_many(self, requests: Sequence[LeaseRequest]) -> list[list[LeasedDispatch] | ComfyRelayError | None]:
        """Serve many workers in one transaction, in the order of their requests. Equal request ids count once.

        The answer is `None` if the lease of a request id has already ended, so that the worker does not wait for it.
        """
        distinct: dict[tuple[str, str | int], LeaseRequest] = {}
        keys = [(request.worker_id, request.request_id or index) for index, request in enumerate(requests)]
        for key, request in zip(keys, requests, strict=True):
            distinct.setdefault(key, request)
        self._pollers.update(request.worker_id for request in requests)
        answers = dict(zip(distinct, await self._lease_distinct(list(distinct.values())), strict=True))
        return [answers[key] for key in keys]

    def take_pollers(self) -> list[str]:
        """Return the workers that polled since the last call."""
        pollers, self._pollers = self._pollers, set()
        return sorted(pollers)

    async def _lease_distinct(
        self, requests: Sequence[LeaseRequest]
    ) -> list[list[LeasedDispatch] | ComfyRelayError | None]:
        try:
            leased = await self._databases.central.run(TransactionStep.LEASE, lambda tx: self._lease(tx, requests))
        except Conflict:
            # Another server has just served the same request id. The second attempt will find its lease.
            leased = await self._databases.central.run(TransactionStep.LEASE, lambda tx: self._lease(tx, requests))
        self._delivery.delay(leased.entries)
        if leased.granted:
            self._on_leased(leased.granted)
        found = list(chain.from_iterable(leased.dispatches.values()))
        built = await self._builder.build(found, pinned=leased.pinned, ran_out=leased.ran_out) if found else {}
        return [
            leased.errors.get(index)
            or [
                replace(built[dispatch.id], more_waiting=leased.left_over.get(index, 0))
                for dispatch in leased.dispatches.get(index, ())
                if dispatch.id in built
            ]
            or (None if index in leased.ended else [])
            for index in range(len(requests))
        ]

    async def _lease(self, tx: Tx, requests: Sequence[LeaseRequest]) -> _Leased:
        leased = _Leased()
        answered = await self._answer_repeats(tx, requests, leased)
        facts = await claims.worker_facts(
            tx, sorted({request.worker_id for request in requests}), offline_seconds=self._offline_seconds
        )
        if not facts:
            await self._refuse(tx, requests, facts, leased)
            return leased
        now = next(iter(facts.values())).now
        leased.pinned = frozenset(id_ for worker in facts.values() for id_ in worker.pinned_ids)
        await _end_expired_blocks(tx, facts, now=now)
        await self._refuse(tx, requests, facts, leased)
        open_claims = _claims(requests, facts, skip=answered | leased.errors.keys(), now=now)
        while open_claims:
            slots = slots_by_entitlement(open_claims, lookahead=self._warm.lookahead_rows)
            candidates = await claims.pick(tx, slots, down_shards=self._databases.down())
            routing = route(open_claims, candidates, policy=self._warm, now=now)
            if routing.passed_over:
                await claims.note_passed_over(tx, sorted(routing.passed_over))
            leased.left_over |= count_left_over(open_claims, candidates, routing.grants)
            if routing.grants:
                await self._grant(tx, requests, routing.grants, leased, now)
            open_claims = unserved_claims(open_claims, candidates, routing.grants)
        if leased.dispatches and any(fact.is_any_oversized for fact in facts.values()):
            workflow_ids = {dispatch.workflow_id for dispatch in chain.from_iterable(leased.dispatches.values())}
            leased.ran_out = await memory.out_of_memory_bytes(tx, workflow_ids)
        updates: dict[str, list[JobUpdate]] = defaultdict(list)
        for dispatch in leased.granted:
            updates[dispatch.shard].append(update_of_lease(dispatch))
        leased.entries = await outbox.post(tx, updates)
        return leased

    async def _answer_repeats(self, tx: Tx, requests: Sequence[LeaseRequest], leased: _Leased) -> set[int]:
        """Answer a repeated request id with the same lease, or with nothing if the lease has ended."""
        named = {
            (request.worker_id, request.request_id): index
            for index, request in enumerate(requests)
            if request.request_id is not None
        }
        if not named:
            return set()
        past = await leases.by_request(tx, named)
        if not past:
            return set()
        alive, _ = await dispatches.lock(tx, [lease.dispatch_id for lease in past.values() if lease.ended_at is None])
        for key, lease in past.items():
            dispatch = alive.get(lease.dispatch_id)
            if dispatch is not None and lifecycle.holds_lease(dispatch, lease.lease_token):
                leased.dispatches[named[key]].append(dispatch)
            else:
                leased.ended.add(named[key])
        return {named[key] for key in past}

    async def _refuse(
        self, tx: Tx, requests: Sequence[LeaseRequest], facts: Mapping[str, WorkerFacts], leased: _Leased
    ) -> None:
        missing = {request.worker_id for request in requests} - facts.keys()
        # A missing row may be locked by another server, so check whether the worker exists before refusing.
        known = await claims.known_workers(tx, missing) if missing else set()
        for index, request in enumerate(requests):
            fact = facts.get(request.worker_id)
            if fact is None and request.worker_id not in known:
                problem = f"The worker {request.worker_id!r} is not registered."
                leased.errors[index] = Forbidden(problem) if request.token_hash is None else Unauthorized(problem)
            elif fact is not None and not fact.is_approved:
                leased.errors[index] = Forbidden(f"The worker {request.worker_id!r} is not approved.")
            elif fact is not None and request.token_hash not in {None, fact.token_hash}:
                leased.errors[index] = Unauthorized("This worker token is no longer valid. Register again.")

    async def _grant(
        self, tx: Tx, requests: Sequence[LeaseRequest], grants: Sequence[Grant], leased: _Leased, now: datetime
    ) -> None:
        granted: list[Dispatch] = []
        for grant in grants:
            key = grant.claim.key
            # A request id identifies one lease: the first lease of the request.
            request_id = requests[key].request_id if key not in leased.dispatches else None
            transition = lifecycle.lease(
                grant.dispatch,
                worker_id=grant.claim.worker_id,
                lease_token=new_lease_token(),
                request_id=request_id,
                is_prefetch=grant.is_prefetch,
                ttl=self._ttl,
                now=now,
            )
            granted.append(transition.after)
            leased.dispatches[key].append(transition.after)
        # Bypass `Decisions`: the rows are already locked and checked, and each table needs only one statement.
        await dispatches.write_leased(tx, granted)
        await leases.begin(tx, granted)
        entries = [
            NewAuditEntry(worker_id=dispatch.worker_id or "", event="lease", dispatch_id=dispatch.id)
            for dispatch in granted
        ]
        await audit.record(tx, entries)
        leased.granted += granted


async def _end_expired_blocks(tx: Tx, facts: Mapping[str, WorkerFacts], *, now: datetime) -> None:
    """Delete blocks whose cooldown is over, and record their end."""
    due = [
        worker.worker_id
        for worker in facts.values()
        if any(until is not None and not is_blocked(until, now=now) for until in worker.blocks.values())
    ]
    if due:
        pairs = await blocks.clear_expired(tx, due)
        await audit.record(tx, [block_event(UNBLOCKED_EVENT, pair) for pair in pairs])


def _claims(
    requests: Sequence[LeaseRequest], facts: Mapping[str, WorkerFacts], *, skip: set[int], now: datetime
) -> list[Claim]:
    found = []
    promised: dict[str, int] = {}
    for index, request in enumerate(requests):
        fact = facts.get(request.worker_id)
        if index in skip or fact is None or fact.is_draining or not fact.workflow_ids:
            continue
        free = request.free_slots(fact.max_concurrency, fact.leases) - promised.get(fact.worker_id, 0)
        claim = Claim(
            key=index,
            worker_id=fact.worker_id,
            entitlement=_entitlement(request, fact, now=now),
            limit=request.limit,
            free_slots=max(0, free),
            prefetch_slots=max(0, min(request.prefetch, request.prefetch + free)),
            warm_hashes=request.warm_workflow_hashes,
        )
        if claim.slots > 0:
            promised[fact.worker_id] = promised.get(fact.worker_id, 0) + claim.slots
            found.append(claim)
    return found


def _entitlement(request: LeaseRequest, fact: WorkerFacts, *, now: datetime) -> Entitlement:
    blocked = tuple(sorted(h for h, until in fact.blocks.items() if is_blocked(until, now=now))) if fact.blocks else ()
    return Entitlement(
        fact.stage,
        tuple(sorted(set(request.providers))),
        fact.workflow_ids,
        blocked,
        fact.unmet_hashes,
        fact.oversized,
        fact.worker_id if fact.has_own_dispatch else None,
    )
