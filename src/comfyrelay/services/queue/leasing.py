"""Leasing: handing queued dispatches to the workers that ask, and building what each is to run."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import structlog

from comfyrelay.comfy.graphs.graph import Graph, replace_placeholders
from comfyrelay.domain import lifecycle
from comfyrelay.domain.failover import UNBLOCKED_EVENT, FailoverPolicy, is_blocked
from comfyrelay.domain.ids import new_lease_token, output_path
from comfyrelay.domain.lifecycle import Dispatch, Move
from comfyrelay.domain.payloads import Snapshot
from comfyrelay.domain.records.fleet import AuditEntry
from comfyrelay.domain.routing import Ask, Candidate, Entitlement, Grant, WarmPolicy, route
from comfyrelay.domain.states import JobEventType, JobStatus
from comfyrelay.domain.updates import JobUpdate
from comfyrelay.errors import (
    ComfyRelayError,
    Conflict,
    Forbidden,
    GraphError,
    NotFound,
    PoolUnavailable,
    Unauthorized,
)
from comfyrelay.services.catalogue.graphs import Graphs
from comfyrelay.services.databases import Databases
from comfyrelay.services.outbox.delivery import OutboxDelivery
from comfyrelay.services.queue import decisions
from comfyrelay.services.queue.decisions import Decision
from comfyrelay.services.steps import Step
from comfyrelay.store import outbox
from comfyrelay.store.central import audit, blocks, claims, demand, dispatches, leases
from comfyrelay.store.central.claims import WorkerFacts
from comfyrelay.store.central.demand import Prefetched, Queued
from comfyrelay.store.database import Tx
from comfyrelay.store.outbox import OutboxEntry
from comfyrelay.store.tenant import jobs

log = structlog.get_logger(__name__)

LONGEST_DEFERRAL = timedelta(minutes=5)
# So many of each kind are looked at; when they are gone, the next ones are.
QUEUED_AT_ONCE = 32
# A job that is about to begin where it is would only be moved.
RECALL_AFTER_SECONDS = 5.0


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
    # What the worker showed; one that is not its token any more gets nothing.
    token_hash: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LeasedJob:
    """A lease and all that its worker needs, but for the pre-signed URLs."""

    dispatch: Dispatch
    snapshot: Snapshot
    graph: Graph
    output_path: str

    @property
    def lease_token(self) -> str:
        assert self.dispatch.lease_token is not None
        return self.dispatch.lease_token

    @property
    def dispatch_id(self) -> int:
        return self.dispatch.id


@dataclass(kw_only=True, slots=True)
class _Leased:
    """What one leasing transaction gave out, by the position of the request."""

    dispatches: dict[int, list[Dispatch]] = field(default_factory=lambda: defaultdict(list))
    granted: list[Dispatch] = field(default_factory=list)
    refused: dict[int, ComfyRelayError] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    entries: list[OutboxEntry] = field(default_factory=list)


class Leasing:
    def __init__(
        self,
        databases: Databases,
        delivery: OutboxDelivery,
        graphs: Graphs,
        *,
        ttl: timedelta,
        failover: FailoverPolicy,
        warm: WarmPolicy,
        deferral: timedelta,
    ) -> None:
        self._databases = databases
        self._delivery = delivery
        self._graphs = graphs
        self._ttl = ttl
        self._failover = failover
        self._warm = warm
        self._deferral = deferral
        self._heard_of: set[str] = set()

    async def lease(self, request: LeaseRequest) -> list[LeasedJob]:
        answer = (await self.lease_many([request]))[0]
        if isinstance(answer, Exception):
            raise answer
        return answer or []

    async def lease_many(self, requests: Sequence[LeaseRequest]) -> list[list[LeasedJob] | ComfyRelayError | None]:
        """Serve many workers at once, in the order of their requests; a request id sent twice is one request.

        `None` is for a request id whose lease has ended: nothing will ever come of it, so nobody should wait.
        """
        distinct: dict[tuple[str, str | int], LeaseRequest] = {}
        keys = [(each.worker_id, each.request_id or index) for index, each in enumerate(requests)]
        for key, request in zip(keys, requests, strict=True):
            distinct.setdefault(key, request)
        self._heard_of.update(each.worker_id for each in requests)
        answers = dict(zip(distinct, await self._lease_distinct(list(distinct.values())), strict=True))
        return [answers[key] for key in keys]

    def heard_of(self) -> list[str]:
        """The workers that polled since the last time this was asked."""
        heard, self._heard_of = self._heard_of, set()
        return sorted(heard)

    async def queued(self) -> list[Queued]:
        """What could be leased now, the first of each kind. One statement, which locks nothing."""
        async with self._databases.central.read() as tx:
            return await demand.queued(tx, most=QUEUED_AT_ONCE, down_pools=self._databases.down())

    async def prefetched(self) -> list[Prefetched]:
        """What busy workers have held for a while without beginning it."""
        async with self._databases.central.read() as tx:
            return await demand.prefetched(tx, for_seconds=RECALL_AFTER_SECONDS, most=QUEUED_AT_ONCE)

    async def recall(self, prefetched: Sequence[Prefetched], idle: Sequence[LeaseRequest]) -> int:
        """Ask for prefetched jobs back that those who are idle could run now; returns for how many."""
        worker_ids = [each.worker_id for each in idle]
        async with self._databases.central.read() as tx:
            kinds = {(each.stage, each.workflow_id) for each in prefetched}
            free = {kind: await demand.able(tx, worker_ids, [kind]) for kind in kinds}
            blocked = await blocks.standing(tx, worker_ids)
        left = {each.worker_id: each for each in idle}
        wanted = []
        for each in prefetched:
            slots = free[each.stage, each.workflow_id]
            taker = next(
                (
                    worker_id
                    for worker_id, request in left.items()
                    if slots.get(worker_id, 0) > 0
                    and worker_id != each.worker_id
                    and each.provider in request.providers
                    and (worker_id, each.workflow_hash) not in blocked
                ),
                None,
            )
            if taker is not None:
                del left[taker]
                wanted.append(each.id)
        if not wanted:
            return 0
        which = dispatches.numbered(wanted)
        return len(await self._databases.central.run(Step.RECALL, lambda tx: dispatches.recall_prefetched(tx, which)))

    async def able(self, worker_ids: Sequence[str], queued: Sequence[Queued]) -> dict[str, int]:
        """Which of the workers may run some of it, and how many free slots each has. Leases look again, and lock."""
        async with self._databases.central.read() as tx:
            return await demand.able(tx, worker_ids, {(each.stage, each.workflow_id) for each in queued})

    async def _lease_distinct(self, requests: Sequence[LeaseRequest]) -> list[list[LeasedJob] | ComfyRelayError | None]:
        try:
            leased = await self._databases.central.run(Step.LEASE, lambda tx: self._lease(tx, requests))
        except Conflict:
            # The same request id was served by another server in between: now its lease is there to be found.
            leased = await self._databases.central.run(Step.LEASE, lambda tx: self._lease(tx, requests))
        self._delivery.deliver_later(leased.entries)
        every = [each for found in leased.dispatches.values() for each in found]
        built = await self._build(every) if every else {}
        return [
            leased.refused.get(index)
            or [built[each.id] for each in leased.dispatches.get(index, ()) if each.id in built]
            or (None if index in leased.ended else [])
            for index in range(len(requests))
        ]

    async def _lease(self, tx: Tx, requests: Sequence[LeaseRequest]) -> _Leased:
        leased = _Leased()
        answered = await self._answer_repeats(tx, requests, leased)
        facts = await claims.worker_facts(tx, sorted({each.worker_id for each in requests}))
        if not facts:
            await self._refuse(tx, requests, facts, leased)
            return leased
        now = next(iter(facts.values())).now
        await _end_expired_blocks(tx, facts, now=now)
        await self._refuse(tx, requests, facts, leased)
        asks = _asks(requests, facts, skip=answered | leased.refused.keys(), now=now)
        while asks:
            slots = _slots_by_entitlement(asks, lookahead=self._warm.lookahead_rows)
            candidates = await claims.pick(tx, slots, down_pools=self._databases.down())
            routing = route(asks, candidates, policy=self._warm, now=now)
            if routing.passed_over:
                await claims.note_passed_over(tx, sorted(routing.passed_over))
            if routing.grants:
                await self._grant(tx, requests, routing.grants, leased, now)
            asks = _outbid(asks, candidates, routing.grants)
        leased.entries = await _announce(tx, leased.granted)
        return leased

    async def _answer_repeats(self, tx: Tx, requests: Sequence[LeaseRequest], leased: _Leased) -> set[int]:
        """A request id that was served before gets the same lease while it lives, and nothing once it has ended."""
        named = {
            (each.worker_id, each.request_id): index
            for index, each in enumerate(requests)
            if each.request_id is not None
        }
        if not named:
            return set()
        past = await leases.by_request(tx, named)
        if not past:
            return set()
        alive, _ = await dispatches.lock(tx, [each.dispatch_id for each in past.values() if each.ended_at is None])
        for key, lease in past.items():
            dispatch = alive.get(lease.dispatch_id)
            if dispatch is not None and lifecycle.holds(dispatch, lease.lease_token):
                leased.dispatches[named[key]].append(dispatch)
            else:
                leased.ended.add(named[key])
        return {named[key] for key in past}

    async def _refuse(
        self, tx: Tx, requests: Sequence[LeaseRequest], facts: Mapping[str, WorkerFacts], leased: _Leased
    ) -> None:
        missing = {r.worker_id for r in requests} - facts.keys()
        # Not found may also mean that another server holds the row this moment; that is no reason to refuse.
        known = await claims.known_workers(tx, missing) if missing else set()
        for index, request in enumerate(requests):
            fact = facts.get(request.worker_id)
            if fact is None and request.worker_id not in known:
                gone = f"The worker {request.worker_id!r} is not registered."
                leased.refused[index] = Forbidden(gone) if request.token_hash is None else Unauthorized(gone)
            elif fact is not None and not fact.is_approved:
                leased.refused[index] = Forbidden(f"The worker {request.worker_id!r} is not approved.")
            elif fact is not None and request.token_hash not in {None, fact.token_hash}:
                leased.refused[index] = Unauthorized("This worker token is not valid any more: register again.")

    async def _grant(
        self, tx: Tx, requests: Sequence[LeaseRequest], grants: Sequence[Grant], leased: _Leased, now: datetime
    ) -> None:
        moves = []
        for each in grants:
            key = each.ask.key
            # A request id names one lease; a request for many gets its id on the first.
            request_id = requests[key].request_id if key not in leased.dispatches else None
            move = lifecycle.lease(
                each.dispatch,
                worker_id=each.ask.worker_id,
                lease_token=new_lease_token(),
                request_id=request_id,
                is_prefetch=each.is_prefetch,
                ttl=self._ttl,
                now=now,
            )
            moves.append(move)
            leased.dispatches[key].append(move.after)
        taken = [move.after for move in moves]
        await dispatches.write_leased(tx, taken)
        await leases.begin(tx, taken)
        await audit.record(
            tx, [AuditEntry(worker_id=each.worker_id or "", event="lease", dispatch_id=each.id) for each in taken]
        )
        leased.granted.extend(taken)

    async def _build(self, leased: Sequence[Dispatch]) -> dict[int, LeasedJob]:
        """Build what each lease is to run. One that cannot be built now goes back; one that never can be fails."""
        by_pool: dict[str, list[Dispatch]] = defaultdict(list)
        for each in leased:
            by_pool[each.db_pool].append(each)
        built: dict[int, LeasedJob] = {}
        hopeless: dict[int, str] = {}
        later: dict[int, str] = {}
        payloads = await asyncio.gather(*(self._payloads(pool, found) for pool, found in by_pool.items()))
        for (pool, found), known in zip(by_pool.items(), payloads, strict=True):
            for each in found:
                if known is None:
                    later[each.id] = f"The tenant pool {pool!r} cannot be read."
                elif each.tenant_job_id not in known:
                    hopeless[each.id] = "The job no longer exists."
                else:
                    try:
                        built[each.id] = await self._leased_job(each, Snapshot.from_json(known[each.tenant_job_id]))
                    except (NotFound, GraphError, KeyError, TypeError) as error:
                        hopeless[each.id] = f"The workflow cannot be built: {error}"
                    except OSError as error:
                        later[each.id] = f"The workflow cannot be read: {error}"
        if hopeless or later:
            await self._put_back({each.id: each for each in leased}, hopeless, later)
        return built

    async def _payloads(self, pool: str, found: Sequence[Dispatch]) -> dict[str, Any] | None:
        try:
            with self._databases.watched(pool):
                async with self._databases.pool(pool).read() as tx:
                    return await jobs.payloads(tx, [each.tenant_job_id for each in found])
        except PoolUnavailable:
            return None
        except Exception:
            # Whatever it is, the leases must not be left to expire: nobody knows of them yet.
            log.exception("lease.payloads_failed", pool=pool)
            return None

    async def _leased_job(self, dispatch: Dispatch, snapshot: Snapshot) -> LeasedJob:
        graph = await self._graphs.get(snapshot.graph_path)
        assert dispatch.lease_token is not None
        return LeasedJob(
            dispatch=dispatch,
            snapshot=snapshot,
            graph=replace_placeholders(graph, snapshot.values),
            output_path=output_path(
                tenant_id=dispatch.tenant_id,
                job_id=dispatch.tenant_job_id,
                lease_token=dispatch.lease_token,
                extension=snapshot.output_extension,
            ),
        )

    async def _put_back(
        self, leased: Mapping[int, Dispatch], hopeless: Mapping[int, str], later: Mapping[int, str]
    ) -> None:
        def decide(dispatch: Dispatch, now: datetime) -> Move | None:
            if not lifecycle.holds(dispatch, leased[dispatch.id].lease_token or ""):
                return None
            if dispatch.id in hopeless:
                return lifecycle.give_up(dispatch, error=hopeless[dispatch.id], now=now)
            return lifecycle.defer(
                dispatch, reason=later[dispatch.id], now=now, base=self._deferral, longest=LONGEST_DEFERRAL
            )

        async def work(tx: Tx) -> list[OutboxEntry]:
            found, now = await dispatches.lock(tx, sorted([*hopeless, *later]))
            moves = [move for each in found.values() if (move := decide(each, now)) is not None]
            decided = [Decision(move=each, by="build") for each in moves]
            return await decisions.write(tx, decided, now=now, policy=self._failover)

        log.warning("lease.not_built", hopeless=dict(hopeless), later=dict(later))
        await self._delivery.deliver(await self._databases.central.run(Step.DEFER, work))


async def _announce(tx: Tx, taken: Sequence[Dispatch]) -> list[OutboxEntry]:
    by_pool: dict[str, list[JobUpdate]] = defaultdict(list)
    for each in taken:
        by_pool[each.db_pool].append(_started(each))
    return await outbox.post(tx, by_pool)


def _started(dispatch: Dispatch) -> JobUpdate:
    assert dispatch.leased_at is not None
    return JobUpdate(
        tenant_id=dispatch.tenant_id,
        job_id=dispatch.tenant_job_id,
        version=dispatch.version,
        event_type=JobEventType.STARTED,
        status=JobStatus.PROCESSING,
        at=dispatch.leased_at,
        epoch=dispatch.epoch,
        attempts=dispatch.attempts,
        priority=dispatch.priority,
        attempt=dispatch.attempts,
        worker_id=dispatch.worker_id,
        started_at=dispatch.leased_at,
    )


async def _end_expired_blocks(tx: Tx, facts: Mapping[str, WorkerFacts], *, now: datetime) -> None:
    """As the cooldown passes, the pair is forgotten and free again, and that is recorded."""
    due = [
        each.worker_id
        for each in facts.values()
        if any(until is not None and not is_blocked(until, now=now) for until in each.blocks.values())
    ]
    if due:
        pairs = await blocks.clear_expired(tx, due)
        await audit.record(tx, [decisions.block_event(UNBLOCKED_EVENT, pair) for pair in pairs])


def _asks(
    requests: Sequence[LeaseRequest], facts: Mapping[str, WorkerFacts], *, skip: set[int], now: datetime
) -> list[Ask]:
    asks = []
    promised: dict[str, int] = {}
    for index, request in enumerate(requests):
        fact = facts.get(request.worker_id)
        if index in skip or fact is None or fact.is_draining or not fact.workflow_ids:
            continue
        most = min(fact.max_concurrency, request.max_concurrency or fact.max_concurrency)
        held = fact.leases + promised.get(fact.worker_id, 0)
        ask = Ask(
            key=index,
            worker_id=fact.worker_id,
            entitlement=_entitlement(request, fact, now=now),
            limit=request.limit,
            free_slots=max(0, most - held),
            prefetch_slots=max(0, min(request.prefetch, most + request.prefetch - held)),
            warm_hashes=request.warm_workflow_hashes,
        )
        if ask.slots > 0:
            promised[fact.worker_id] = promised.get(fact.worker_id, 0) + ask.slots
            asks.append(ask)
    return asks


def _entitlement(request: LeaseRequest, fact: WorkerFacts, *, now: datetime) -> Entitlement:
    blocked = tuple(sorted(h for h, until in fact.blocks.items() if is_blocked(until, now=now))) if fact.blocks else ()
    return Entitlement(fact.stage, tuple(sorted(set(request.providers))), fact.workflow_ids, blocked)


def _slots_by_entitlement(asks: Sequence[Ask], *, lookahead: int) -> dict[Entitlement, int]:
    """How many dispatches to pick for each group of workers; warm workers may look a little further ahead."""
    slots: dict[Entitlement, int] = defaultdict(int)
    for ask in asks:
        slots[ask.entitlement] += ask.slots
    for entitlement in {ask.entitlement for ask in asks if ask.warm_hashes}:
        slots[entitlement] += lookahead
    return dict(slots)


def _outbid(
    asks: Sequence[Ask], candidates: Mapping[Entitlement, Sequence[Candidate]], grants: Sequence[Grant]
) -> list[Ask]:
    """What is left of asks that were shown dispatches which others, with another entitlement, then got."""
    taker = {each.dispatch.id: each.ask.entitlement for each in grants}
    outbid = {
        entitlement
        for entitlement, shown in candidates.items()
        if any(taker.get(each.id, entitlement) != entitlement for each in shown)
    }
    got = Counter((each.ask.key, each.is_prefetch) for each in grants)
    left = [
        replace(
            ask,
            limit=ask.limit - got[ask.key, False] - got[ask.key, True],
            free_slots=ask.free_slots - got[ask.key, False],
            prefetch_slots=ask.prefetch_slots - got[ask.key, True],
        )
        for ask in asks
        if ask.entitlement in outbid
    ]
    return [ask for ask in left if ask.slots > 0]
