"""Worker lifecycle: registered through a fleet, drained, deregistered."""

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comfyrelay.domain.queue import lifecycle
from comfyrelay.domain.queue.states import RegistrationSource, Stage
from comfyrelay.domain.records.workers import FleetRecord, NewAuditEntry, Worker
from comfyrelay.errors import Forbidden, InvalidInput, NotFound
from comfyrelay.services.accounts.sign_in import hash_secret
from comfyrelay.services.catalogue.availability import compare_with_requirements, write_missing
from comfyrelay.services.databases import Databases
from comfyrelay.services.queue.decisions import Decided, Decisions, Judge
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.services.workers.identity import Identities, Identity
from comfyrelay.store.central import audit, catalogue
from comfyrelay.store.central.autoscaling import machines, members
from comfyrelay.store.central.queue import dispatches, missing_requirements
from comfyrelay.store.central.workers import fleets, node_definitions, workers
from comfyrelay.store.database import Tx

# Actor of drains by autoscaling.
SCALING = "scaling"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerRegistered:
    """A worker, the slugs of its workflows, and how many leases it already has."""

    worker: Worker
    workflows: Sequence[str]
    leases: int


class Workers:
    def __init__(
        self,
        databases: Databases,
        decisions: Decisions,
        identities: Identities,
        *,
        max_fleet_workers: int,
        max_workers: int | None = None,
        stale_seconds: float,
        desk_workers: Collection[str] = (),
        default_fleet: tuple[Stage, str] | None = None,
    ) -> None:
        """`desk_workers` are the workers of a desk's process.

        `default_fleet` runs every new workflow, so its workers may register before the first one: they provide its node
        definitions.
        """
        self._databases = databases
        self._decisions = decisions
        self._identities = identities
        self._max_fleet_workers = max_fleet_workers
        self._max_workers = max_workers
        self._stale_seconds = stale_seconds
        self._desk_workers = frozenset(desk_workers)
        self._default_fleet = default_fleet

    async def register(
        self,
        *,
        worker_id: str,
        fleet_slug: str,
        stage: Stage = Stage.PRODUCTION,
        max_concurrency: int = 1,
        capabilities: Mapping[str, Any] | None = None,
        workflow_slugs: Sequence[str] | None = None,
        token_hash: str | None = None,
        display_name: str | None = None,
        capacity_type: str | None = None,
        instance_type: str | None = None,
        key: str | None = None,
        protocol: int = 1,
        version: str | None = None,
        identity: Identity | None = None,
    ) -> WorkerRegistered:
        """Register a worker in its fleet. A registered worker that presents its `key` gets a new token and keeps its
        leases: the answer to its first call was lost."""
        if max_concurrency < 1:
            raise InvalidInput(errors={"max_concurrency": "This must be at least 1."})
        key_hash = hash_secret(key) if key is not None else None
        held = await compare_with_requirements(self._databases, capabilities or {})

        async def work(tx: Tx) -> WorkerRegistered:
            # First: submissions wait for this lock, and must not hold a worker that is removed here.
            await missing_requirements.lock(tx)
            # Locked first: a repeated call waits for the pending one and finds its worker.
            await catalogue.fleet(tx, stage=stage, slug=fleet_slug, lock=True)
            if identity is not None:
                await self._identities.claim(tx, identity, key_hash=key_hash)
            known = await workers.get(tx, worker_id, lock=True)
            is_same = known is not None and key_hash is not None and known.registration_key_hash == key_hash
            if known is not None and is_same and not known.is_approved:
                raise Forbidden("This worker is not approved.")
            # With the fleet's secret a worker may take over a name whose token was lost, once it is stale.
            if not is_same and await workers.remove_if_gone(tx, worker_id, stale_seconds=self._stale_seconds):
                await audit.record(tx, [NewAuditEntry(worker_id=worker_id, event="replaced")])
            fleet = await self._fleet_with_room(tx, stage, fleet_slug, member=known if is_same else None)
            values = {
                "fleet_id": fleet.id,
                "stage": stage,
                "registration_source": self._source_of(worker_id),
                "max_concurrency": max_concurrency,
                "capabilities": dict(capabilities or {}),
                "narrowed_to": list(workflow_slugs) if workflow_slugs is not None else None,
                "token_hash": token_hash,
                "registration_key_hash": key_hash,
                "protocol": protocol,
                "version": version,
                "display_name": display_name,
                "capacity_type": capacity_type,
                "instance_type": instance_type,
            }
            again = await workers.renew(tx, worker_id, **values) if is_same else None
            worker = again or await workers.create(tx, worker_id=worker_id, **values)
            assigned = await workers.assign(tx, worker)
            if not assigned and not self._may_be_early(stage, fleet_slug, workflow_slugs):
                raise _nothing_to_run(fleet_slug)
            await write_missing(tx, worker_id, worker.capabilities, held)
            data = {**_place(worker, fleet_slug), "workflows": assigned, "protocol": protocol}
            await audit.record(tx, [NewAuditEntry(worker_id=worker_id, event=members.REGISTERED, data=data)])
            worker = await self._drain_if_ending(tx, worker)
            leases = await workers.lease_count(tx, worker_id) if again else 0
            return WorkerRegistered(worker=worker, workflows=assigned, leases=leases)

        return await self._databases.central.run(TransactionStep.WORKER, work)

    async def _drain_if_ending(self, tx: Tx, worker: Worker) -> Worker:
        """After a late or repeated registration of a machine that is being terminated, its work would be lost."""
        is_ending = await machines.is_ending(tx, worker.fleet_id, worker.worker_id)
        return await self._drain(tx, worker, by=SCALING) if is_ending else worker

    async def try_to_register(
        self, *, worker_id: str, fleet_slug: str, stage: Stage, workflow_slugs: Sequence[str] | None = None
    ) -> list[str]:
        """Check what `register` would assign, or why it would refuse, without writing.

        An already registered worker may check, too.
        """
        async with self._databases.central.read() as tx:
            known = await workers.get(tx, worker_id)
            fleet = await self._fleet_with_room(tx, stage, fleet_slug, member=known)
            source = self._source_of(worker_id)
            rows = await workers.mapped_to(tx, fleet.id, narrowed_to=workflow_slugs, source=source)
        assigned = [row.slug for row in rows if row.is_active]
        if not assigned and not self._may_be_early(stage, fleet_slug, workflow_slugs):
            raise _nothing_to_run(fleet_slug)
        return assigned

    def _may_be_early(self, stage: Stage, fleet_slug: str, workflow_slugs: Sequence[str] | None) -> bool:
        return workflow_slugs is None and (stage, fleet_slug) == self._default_fleet

    async def by_token(self, token_hash: str) -> Worker | None:
        async with self._databases.central.read() as tx:
            return await workers.by_token(tx, token_hash)

    async def note_capabilities(self, worker: Worker, capabilities: Mapping[str, Any]) -> None:
        """Update a worker's capabilities from a poll; usually unchanged."""
        async with self._databases.central.read() as tx:
            known = await workers.get(tx, worker.worker_id)
        if known is None or known.capabilities == capabilities:
            return
        held = await compare_with_requirements(self._databases, capabilities)

        async def work(tx: Tx) -> None:
            await missing_requirements.lock(tx)
            if await workers.change(tx, worker.worker_id, capabilities=dict(capabilities)) is not None:
                await write_missing(tx, worker.worker_id, capabilities, held)

        await self._databases.central.run(TransactionStep.WORKER, work)

    async def note_slots(self, worker_id: str, slots: int) -> None:
        """Update a worker's concurrency after its ComfyUI servers changed."""
        await self._databases.central.run(
            TransactionStep.WORKER, lambda tx: workers.change(tx, worker_id, max_concurrency=slots)
        )

    async def set_draining(self, worker_id: str, *, is_draining: bool, by: str | None = None) -> Worker:
        """Drain: running jobs are finished, prefetched ones requeued. `by` is the user, for the audit log."""
        worker = await self._change(worker_id, "drain" if is_draining else "undrain", by=by, is_draining=is_draining)
        if is_draining:
            await self.recall_prefetched(worker_id)
        return worker

    async def drain_if_idle(self, tx: Tx, worker_id: str, *, fleet_id: int) -> bool:
        """Drain a worker without leases because its machine ends, in the caller's transaction.

        Returns whether it cannot take another job. Waits for a concurrent lease.
        """
        worker = await workers.get(tx, worker_id, lock=True)
        if worker is None or worker.fleet_id != fleet_id:
            return True
        if await workers.lease_count(tx, worker_id):
            return False
        await self._drain(tx, worker, by=SCALING)
        return True

    async def drain_in(self, tx: Tx, worker_id: str, *, fleet_id: int) -> int:
        """The same for a worker that may hold leases, whose machine is gone or ending. Returns the number of leases."""
        worker = await workers.get(tx, worker_id, lock=True)
        if worker is None or worker.fleet_id != fleet_id:
            return 0
        await self._drain(tx, worker, by=SCALING)
        return await workers.lease_count(tx, worker_id)

    async def _drain(self, tx: Tx, worker: Worker, *, by: str) -> Worker:
        if worker.is_draining:
            return worker
        await audit.record(tx, [NewAuditEntry(worker_id=worker.worker_id, event="drain", data={"by": by})])
        return await workers.change(tx, worker.worker_id, is_draining=True) or worker

    async def set_approved(self, worker_id: str, *, is_approved: bool, by: str | None = None) -> Worker:
        """Revoke a worker and requeue its leases: an untrusted worker must not settle jobs."""
        worker = await self._change(worker_id, "approve" if is_approved else "revoke", by=by, is_approved=is_approved)
        if not is_approved:
            await self.release(worker_id, reason="revoked")
        return worker

    async def rotate_token(self, worker_id: str, *, by: str | None = None) -> str:
        """Replace a worker's token; the old one becomes invalid."""
        token = secrets.token_hex(32)
        await self._change(worker_id, "rotate_token", by=by, token_hash=hash_secret(token))
        return token

    async def record_seen(self, worker_ids: Sequence[str]) -> None:
        if worker_ids:
            await self._databases.central.run(TransactionStep.WORKER, lambda tx: workers.record_seen(tx, worker_ids))

    async def release(self, worker_id: str, *, reason: str) -> int:
        """Requeue every lease of the worker without penalty. Returns their number."""
        which = dispatches.leased_by(worker_id)
        return len(
            (await self._decisions.decide(TransactionStep.RELEASE, which, _requeue(reason), by="release")).transitions
        )

    async def deregister(self, worker_id: str, *, reason: str = "shutdown") -> int:
        """Remove the worker; remaining leases are requeued."""

        async def work(tx: Tx) -> Decided:
            worker = await workers.get(tx, worker_id)
            if worker is None:
                raise NotFound(f"There is no worker {worker_id!r}.")
            place = _place(worker, await fleets.slug_of(tx, worker.fleet_id))
            # Removed first, so that no lease starts after its leases were found.
            await workers.remove(tx, worker_id)
            which = dispatches.leased_by(worker_id)
            decided = await self._decisions.decide_in(tx, which, _requeue(reason), by="release")
            entry = NewAuditEntry(worker_id=worker_id, event=members.LEFT, data={**place, "reason": reason})
            await audit.record(tx, [entry])
            return decided

        decided = await self._databases.central.run(TransactionStep.RELEASE, work)
        await self._decisions.announce(decided)
        return len(decided.transitions)

    async def remove_stale(self, seconds: float) -> int:
        """Remove silent workers. Returns their number. One with a lease stays until the reaper has ended it."""

        async def work(tx: Tx) -> int:
            gone = await workers.remove_stale(tx, seconds=seconds)
            slugs = {fleet_id: await fleets.slug_of(tx, fleet_id) for fleet_id in {worker.fleet_id for worker in gone}}
            entries = [
                NewAuditEntry(worker_id=each.worker_id, event=members.REMOVED, data=_place(each, slugs[each.fleet_id]))
                for each in gone
            ]
            await audit.record(tx, entries)
            return len(gone)

        return await self._databases.central.run(TransactionStep.WORKER, work)

    async def recall_prefetched(self, worker_id: str) -> int:
        """Ask a worker to requeue its prefetched jobs. Returns their number."""
        return await self._decisions.recall(dispatches.leased_by(worker_id))

    def _source_of(self, worker_id: str) -> RegistrationSource:
        return RegistrationSource.DESK if worker_id in self._desk_workers else RegistrationSource.FLEET

    async def _fleet_with_room(self, tx: Tx, stage: Stage, slug: str, *, member: Worker | None = None) -> FleetRecord:
        fleet = await catalogue.fleet(tx, stage=stage, slug=slug)
        if fleet is None:
            raise NotFound(f"There is no {stage} fleet {slug!r}.")
        most = fleet.max_workers if fleet.max_workers is not None else self._max_fleet_workers
        is_in = member is not None and member.fleet_id == fleet.id
        if not is_in and await workers.count_of_fleet(tx, fleet.id) >= most:
            raise Forbidden(f"The fleet {slug!r} is full: it has {most} workers.")
        # Registrations are serialised, so no two take the last place.
        most_of_all = self._max_workers
        if member is None and most_of_all is not None and await workers.count_of_fleets(tx) >= most_of_all:
            raise Forbidden(f"All fleets together are full: they have {most_of_all} workers (max_workers).")
        return fleet

    async def _change(self, worker_id: str, event: str, *, by: str | None, **values: Any) -> Worker:
        async def work(tx: Tx) -> Worker:
            worker = await workers.change(tx, worker_id, **values)
            if worker is None:
                raise NotFound(f"There is no worker {worker_id!r}.")
            if values.get("is_approved") is False:
                await node_definitions.disown(tx, worker_id)
            data = None if by is None else {"by": by}
            await audit.record(tx, [NewAuditEntry(worker_id=worker_id, event=event, data=data)])
            return worker

        return await self._databases.central.run(TransactionStep.WORKER, work)


def _requeue(reason: str) -> Judge:
    return lambda dispatch, now: lifecycle.requeue_abandoned(dispatch, reason=reason, now=now)


def _place(worker: Worker, fleet_slug: str) -> dict[str, Any]:
    """Fleet and stage for the audit log: the worker may be removed later."""
    about = {"instance_type": worker.instance_type, "slots": worker.max_concurrency}
    return {"fleet": fleet_slug, "stage": worker.stage, **about}


def _nothing_to_run(fleet_slug: str) -> InvalidInput:
    why = (
        f"The fleet {fleet_slug!r} has no active workflow for this worker: map one to it, or let it be the server's "
        "COMFYRELAY_DEFAULT_FLEET, which runs every workflow."
    )
    return InvalidInput(errors={"fleet_slug": why})
