"""The lifecycle of workers: register in a fleet, drain, deregister."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comfyrelay.domain.queue import lifecycle
from comfyrelay.domain.queue.blocks import UNBLOCKED_EVENT
from comfyrelay.domain.queue.slots import why_unavailable
from comfyrelay.domain.queue.states import RegistrationSource, Stage
from comfyrelay.domain.records.workers import FleetRecord, NewAuditEntry, Worker
from comfyrelay.errors import Forbidden, InvalidInput, NotFound
from comfyrelay.services.accounts.sign_in import hash_secret
from comfyrelay.services.catalogue.availability import compare_with_requirements, write_missing
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.queue.decisions import Decided, Decisions, Judge, block_event
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.services.workers.identity import Identities, Identity
from comfyrelay.store.central import audit, catalogue
from comfyrelay.store.central.autoscaling import machines, members
from comfyrelay.store.central.queue import blocks, dispatches, missing_requirements
from comfyrelay.store.central.workers import fleets, node_definitions, workers
from comfyrelay.store.database import Tx

# The actor of drains by autoscaling in the audit log.
AUTOSCALING = "autoscaling"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerRegistered:
    """A registered worker, the slugs of its workflows, and the number of its leases."""

    worker: Worker
    workflows: Sequence[str]
    leases: int


class Workers:
    def __init__(self, context: ServiceContext, decisions: Decisions, identities: Identities) -> None:
        self._settings = context.settings
        self._databases = context.databases
        self._desk_workers = frozenset(context.hooks.desk_workers)
        self._default_fleet = context.default_fleet
        self._decisions = decisions
        self._identities = identities
        # Workers that sent a request, but are not recorded as seen yet.
        self._seen: set[str] = set()

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
        devices: Sequence[Mapping[str, Any]] | None = None,
    ) -> WorkerRegistered:
        """Register a worker in its fleet. `devices` may say that none of its ComfyUI servers can be used yet.

        A registered worker that presents its `key` gets a new token and keeps its leases, because it did not receive
        the response to its first call.
        """
        if max_concurrency < 1:
            raise InvalidInput(errors={"max_concurrency": "This must be at least 1."})
        key_hash = hash_secret(key) if key is not None else None
        held = await compare_with_requirements(self._databases, capabilities or {})

        async def work(tx: Tx) -> WorkerRegistered:
            # Take this lock first: submissions wait for it, and must not hold a lock on a worker that is removed here.
            await missing_requirements.lock(tx)
            # Then lock the fleet, so that a repeated call waits for the pending one and finds its worker.
            await catalogue.fleet(tx, stage=stage, slug=fleet_slug, lock=True)
            if identity is not None:
                await self._identities.claim(tx, identity, key_hash=key_hash)
            known = await self._find_returning(tx, worker_id, key_hash)
            fleet = await self._fleet_with_room(tx, stage, fleet_slug, member=known)
            values = {
                "fleet_id": fleet.id,
                "stage": stage,
                "registration_source": self._registration_source(worker_id),
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
                "devices": list(devices) if devices is not None else None,
                "unavailable_reason": why_unavailable(devices),
            }
            renewed = await workers.renew(tx, worker_id, **values) if known is not None else None
            worker = renewed or await workers.create(tx, worker_id=worker_id, **values)
            assigned = await workers.assign(tx, worker)
            self._require_workflows(assigned, stage, fleet_slug, workflow_slugs)
            await write_missing(tx, worker_id, worker.capabilities, held)
            data = {**_place(worker, fleet_slug), "workflows": assigned, "protocol": protocol}
            await audit.record(tx, [NewAuditEntry(worker_id=worker_id, event=members.REGISTERED, data=data)])
            # A worker that registers late on a machine that is being terminated would lose its work.
            if await machines.is_ending(tx, worker.fleet_id, worker_id):
                worker = await self._drain(tx, worker, by=AUTOSCALING)
            leases = await workers.lease_count(tx, worker_id) if renewed else 0
            return WorkerRegistered(worker=worker, workflows=assigned, leases=leases)

        return await self._databases.central.run(TransactionStep.WORKER, work)

    async def _find_returning(self, tx: Tx, worker_id: str, key_hash: str | None) -> Worker | None:
        """Return the registered worker if the call has its key. Otherwise, remove an offline worker of that name."""
        known = await workers.get(tx, worker_id, lock=True)
        if known is not None and key_hash is not None and known.registration_key_hash == key_hash:
            if not known.is_approved:
                raise Forbidden("This worker is not approved.")
            return known
        # With the fleet secret, a worker may take over the name of an offline worker whose token was lost.
        if await workers.remove_if_offline(tx, worker_id, offline_seconds=self._settings.worker_offline_seconds):
            await audit.record(tx, [NewAuditEntry(worker_id=worker_id, event="replaced")])
        return None

    async def try_to_register(
        self, *, worker_id: str, fleet_slug: str, stage: Stage, workflow_slugs: Sequence[str] | None = None
    ) -> list[str]:
        """Return the result of `register`, or raise its error, without writing.

        Registered workers may also call this.
        """
        async with self._databases.central.read() as tx:
            known = await workers.get(tx, worker_id)
            fleet = await self._fleet_with_room(tx, stage, fleet_slug, member=known)
            source = self._registration_source(worker_id)
            rows = await workers.mapped_to(tx, fleet.id, narrowed_to=workflow_slugs, source=source)
        assigned = [row.slug for row in rows if row.is_active]
        self._require_workflows(assigned, stage, fleet_slug, workflow_slugs)
        return assigned

    def _require_workflows(
        self, assigned: Sequence[str], stage: Stage, fleet_slug: str, workflow_slugs: Sequence[str] | None
    ) -> None:
        """Raise `InvalidInput` if the worker has nothing to run.

        The default fleet runs every new workflow. Its workers may register before the first workflow exists, because
        they provide the node definitions.
        """
        is_default = workflow_slugs is None and (stage, fleet_slug) == self._default_fleet
        if not assigned and not is_default:
            problem = (
                f"The fleet {fleet_slug!r} has no active workflow for this worker. Map a workflow to it, or make it "
                "the server's COMFYRELAY_DEFAULT_FLEET, which runs every workflow."
            )
            raise InvalidInput(errors={"fleet_slug": problem})

    async def by_token(self, token_hash: str) -> Worker | None:
        async with self._databases.central.read() as tx:
            return await workers.by_token(tx, token_hash)

    async def note_capabilities(self, worker: Worker, capabilities: Mapping[str, Any]) -> None:
        """Update a worker's capabilities from a poll. Usually, they have not changed."""
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
        """Drain a worker or stop draining it. A draining worker finishes its running jobs and requeues prefetched ones.

        `by` is the user, for the audit log.
        """
        worker = await self._change(worker_id, "drain" if is_draining else "undrain", by=by, is_draining=is_draining)
        if is_draining:
            await self.recall_prefetched(worker_id)
        return worker

    async def drain_if_idle(self, tx: Tx, worker_id: str, *, fleet_id: int) -> bool:
        """Drain a worker without leases in the caller's transaction, because its machine will end.

        Waits for a concurrent lease. Returns whether the worker can no longer take a job.
        """
        worker = await workers.get(tx, worker_id, lock=True)
        if worker is None or worker.fleet_id != fleet_id:
            return True
        if await workers.lease_count(tx, worker_id):
            return False
        await self._drain(tx, worker, by=AUTOSCALING)
        return True

    async def remove_lost(self, tx: Tx, worker_id: str, *, fleet_id: int) -> Decided:
        """Remove a worker whose machine no longer exists, and end its leases. The caller announces the result.

        Revoked workers are kept, so that they cannot register again.
        """
        worker = await workers.get(tx, worker_id, lock=True)
        if worker is None or worker.fleet_id != fleet_id or not worker.is_approved:
            return Decided()
        place = _place(worker, await fleets.slug_of(tx, fleet_id))
        # Remove the worker first, so that no lease starts after its leases were found.
        await workers.remove(tx, worker_id)
        which = dispatches.leased_by(worker_id)
        decided = await self._decisions.decide_in(
            tx, which, lambda dispatch, now: lifecycle.expire_lost(dispatch, now=now), by="reap"
        )
        entry = NewAuditEntry(worker_id=worker_id, event=members.LEFT, data={**place, "reason": "machine_gone"})
        await audit.record(tx, [entry])
        return decided

    async def announce_lost(self, decided: Decided) -> None:
        await self._decisions.announce(decided)

    async def drain_in(self, tx: Tx, worker_id: str, *, fleet_id: int) -> int:
        """Drain a worker whose machine will end, even if it has leases, and return the number of leases."""
        worker = await workers.get(tx, worker_id, lock=True)
        if worker is None or worker.fleet_id != fleet_id:
            return 0
        await self._drain(tx, worker, by=AUTOSCALING)
        return await workers.lease_count(tx, worker_id)

    async def _drain(self, tx: Tx, worker: Worker, *, by: str) -> Worker:
        if worker.is_draining:
            return worker
        await audit.record(tx, [NewAuditEntry(worker_id=worker.worker_id, event="drain", data={"by": by})])
        return await workers.change(tx, worker.worker_id, is_draining=True) or worker

    async def set_approved(self, worker_id: str, *, is_approved: bool, by: str | None = None) -> Worker:
        """Approve a worker, or revoke it and requeue its leases, because an untrusted worker must not settle jobs."""
        worker = await self._change(worker_id, "approve" if is_approved else "revoke", by=by, is_approved=is_approved)
        if not is_approved:
            await self.release(worker_id, reason="revoked")
        return worker

    async def rotate_token(self, worker_id: str, *, by: str | None = None) -> str:
        """Replace a worker's token. The old token becomes invalid."""
        token = secrets.token_hex(32)
        await self._change(worker_id, "rotate_token", by=by, token_hash=hash_secret(token))
        return token

    def note_seen(self, worker_id: str) -> None:
        """Note that a worker sent a request. Notes are recorded in batches."""
        self._seen.add(worker_id)

    def take_seen(self) -> set[str]:
        """Return the workers noted since the last call."""
        seen, self._seen = self._seen, set()
        return seen

    async def unblock(
        self,
        worker_id: str,
        *,
        workflow_hash: str | None = None,
        only_out_of_memory: bool = False,
        by: str | None = None,
    ) -> int:
        """End a worker's blocks of one workflow or of all workflows, and return their number. `by` is the user, for the
        audit log."""

        async def work(tx: Tx) -> int:
            if by is not None and await workers.get(tx, worker_id) is None:
                raise NotFound(f"There is no worker {worker_id!r}.")
            pairs = await blocks.clear_of_workers(
                tx, [worker_id], workflow_hash=workflow_hash, only_out_of_memory=only_out_of_memory
            )
            await audit.record(tx, [block_event(UNBLOCKED_EVENT, pair, by=by) for pair in pairs])
            return len(pairs)

        return await self._databases.central.run(TransactionStep.WORKER, work)

    async def record_seen(self, worker_ids: Sequence[str]) -> None:
        if worker_ids:
            await self._databases.central.run(TransactionStep.WORKER, lambda tx: workers.record_seen(tx, worker_ids))

    async def release(self, worker_id: str, *, reason: str) -> int:
        """Requeue all leases of the worker without penalty, and return their number."""
        which = dispatches.leased_by(worker_id)
        decided = await self._decisions.decide(TransactionStep.RELEASE, which, _requeue(reason), by="release")
        return len(decided.transitions)

    async def deregister(self, worker_id: str, *, reason: str = "shutdown") -> int:
        """Remove the worker, requeue its leases, and return their number."""

        async def work(tx: Tx) -> Decided:
            worker = await workers.get(tx, worker_id)
            if worker is None:
                raise NotFound(f"There is no worker {worker_id!r}.")
            place = _place(worker, await fleets.slug_of(tx, worker.fleet_id))
            # Remove the worker first, so that no lease starts after its leases were found.
            await workers.remove(tx, worker_id)
            which = dispatches.leased_by(worker_id)
            decided = await self._decisions.decide_in(tx, which, _requeue(reason), by="release")
            entry = NewAuditEntry(worker_id=worker_id, event=members.LEFT, data={**place, "reason": reason})
            await audit.record(tx, [entry])
            return decided

        decided = await self._databases.central.run(TransactionStep.RELEASE, work)
        await self._decisions.announce(decided)
        return len(decided.transitions)

    async def remove_offline(self, seconds: float) -> int:
        """Remove workers without a request for `seconds`, except workers with leases. Returns the number of removed
        workers."""

        async def work(tx: Tx) -> int:
            removed = await workers.remove_offline(tx, seconds=seconds)
            fleet_ids = {worker.fleet_id for worker in removed}
            slugs = {fleet_id: await fleets.slug_of(tx, fleet_id) for fleet_id in fleet_ids}
            entries = [
                NewAuditEntry(
                    worker_id=worker.worker_id, event=members.REMOVED, data=_place(worker, slugs[worker.fleet_id])
                )
                for worker in removed
            ]
            await audit.record(tx, entries)
            return len(removed)

        return await self._databases.central.run(TransactionStep.WORKER, work)

    async def recall_prefetched(self, worker_id: str) -> int:
        """Ask a worker to requeue its prefetched jobs, and return their number."""
        return await self._decisions.recall(dispatches.leased_by(worker_id))

    def _registration_source(self, worker_id: str) -> RegistrationSource:
        return RegistrationSource.DESK if worker_id in self._desk_workers else RegistrationSource.FLEET

    async def _fleet_with_room(self, tx: Tx, stage: Stage, slug: str, *, member: Worker | None = None) -> FleetRecord:
        fleet = await catalogue.fleet(tx, stage=stage, slug=slug)
        if fleet is None:
            raise NotFound(f"There is no {stage} fleet {slug!r}.")
        fleet_limit = fleet.max_workers if fleet.max_workers is not None else self._settings.max_fleet_workers
        is_member = member is not None and member.fleet_id == fleet.id
        offline_seconds = self._settings.worker_offline_seconds
        if not is_member and await workers.count_of_fleet(tx, fleet.id, offline_seconds=offline_seconds) >= fleet_limit:
            raise Forbidden(f"The fleet {slug!r} is full: it has {fleet_limit} workers.")
        # Registrations are serialised, so that two workers cannot take the last place.
        limit = self._settings.max_workers
        if limit is None or member is not None:
            return fleet
        if await workers.count_of_fleets(tx, offline_seconds=offline_seconds) >= limit:
            raise Forbidden(f"All fleets together are full: they have {limit} workers (max_workers).")
        return fleet

    async def _change(self, worker_id: str, event: str, *, by: str | None, **values: Any) -> Worker:
        async def work(tx: Tx) -> Worker:
            worker = await workers.change(tx, worker_id, **values)
            if worker is None:
                raise NotFound(f"There is no worker {worker_id!r}.")
            if values.get("is_approved") is False:
                await node_definitions.replace_revoked(tx, worker_id)
            data = None if by is None else {"by": by}
            await audit.record(tx, [NewAuditEntry(worker_id=worker_id, event=event, data=data)])
            return worker

        return await self._databases.central.run(TransactionStep.WORKER, work)


def _requeue(reason: str) -> Judge:
    return lambda dispatch, now: lifecycle.requeue_abandoned(dispatch, reason=reason, now=now)


def _place(worker: Worker, fleet_slug: str) -> dict[str, Any]:
    """Describe the worker in the audit log, because it may be removed later."""
    return {
        "fleet": fleet_slug,
        "stage": worker.stage,
        "instance_type": worker.instance_type,
        "slots": worker.max_concurrency,
    }
