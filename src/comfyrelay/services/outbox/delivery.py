"""Telling tenant pools what the queue decided.

Letters are in the central outbox before they come here. One delivery runs per pool at a time and takes everything that
has come in since the last, so that under load many settlements share one commit. What cannot be delivered stays in the
outbox for the relay.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import structlog

from comfyrelay.domain.settlement import CANCELED_TEXT, JobState, Settled, apply_updates, video_status_of
from comfyrelay.domain.states import JobStatus, TransactionType
from comfyrelay.domain.updates import JobUpdate
from comfyrelay.errors import PoolUnavailable
from comfyrelay.services.databases import Databases
from comfyrelay.services.steps import Step
from comfyrelay.store import outbox
from comfyrelay.store.database import Tx
from comfyrelay.store.outbox import OutboxEntry
from comfyrelay.store.tenant import deliveries, jobs, ledger, media, retention
from comfyrelay.store.tenant.retention import Stray

log = structlog.get_logger(__name__)

# Bounds the size of one tenant transaction.
UPDATES_AT_ONCE = 1000
ENTRIES_WAITING = 50
# How long a start may wait to be told together with the job's end. Nobody sees the difference.
LATER_SECONDS = 0.5
# How far apart the deliveries to one pool are while nobody waits for them, so that under load many share one commit.
PACE_SECONDS = 0.05
# How long entries that were applied may stay in the outbox, so that many leave it in one transaction.
FORGET_SECONDS = 0.1


class OutboxDelivery:
    def __init__(
        self,
        databases: Databases,
        *,
        output_disk: str,
        told: Callable[[str, Sequence[OutboxEntry]], None] | None = None,
        ended: Callable[[Sequence[JobState]], None] | None = None,
    ) -> None:
        """`told` hears which entries have just been applied to which pool; `ended` which jobs have just ended, once
        for each."""
        self._databases = databases
        self._told = told
        self._ended = ended
        self._output_disk = output_disk
        self._waiting: dict[str, list[tuple[OutboxEntry, asyncio.Future[None]]]] = defaultdict(list)
        self._running: dict[str, asyncio.Task[None]] = {}
        # By pool and entry, what of entries that nobody waits for is still to be told.
        self._later: dict[str, dict[int, dict[str, JobUpdate]]] = defaultdict(dict)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._applied: list[int] = []
        self._forgetting: asyncio.Task[None] | None = None
        self._last_at: dict[str, float] = {}
        self._hurry = asyncio.Event()
        self._in_a_hurry = 0

    async def deliver(self, entries: Iterable[OutboxEntry]) -> None:
        """Deliver, and return when the pools have committed, or cannot be reached and must be told later."""
        with self._hurrying():
            await asyncio.gather(*self.send(entries).values())

    async def arrived(self, delivery: asyncio.Future[None]) -> None:
        """Wait for one that was begun."""
        with self._hurrying():
            await asyncio.shield(delivery)

    def send(self, entries: Iterable[OutboxEntry]) -> dict[str, asyncio.Future[None]]:
        """Begin to deliver; by pool, what to wait for. The entries are of one transaction: at most one a pool."""
        futures = {}
        for entry in entries:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.add_done_callback(_note_failure)
            futures[entry.db_pool] = future
            self._waiting[entry.db_pool].append((entry, future))
            self._start(entry.db_pool)
        return futures

    def deliver_later(self, entries: Iterable[OutboxEntry]) -> None:
        """Deliver in a moment, or with the next entry about the same job: one that is over at once is told of its
        start and its end in one transaction. A entry has one update a job here."""
        for entry in entries:
            pool = entry.db_pool
            self._later[pool][entry.id] = {each.job_id: each for each in entry.updates}
            if pool not in self._timers:
                timer = asyncio.get_running_loop().call_later(LATER_SECONDS, self._deliver_later_ones, pool)
                self._timers[pool] = timer

    @property
    def is_behind(self) -> bool:
        """Whether so much waits to be told that whoever adds to it should wait too."""
        return any(len(waiting) > ENTRIES_WAITING for waiting in self._waiting.values())

    async def idle(self) -> None:
        """Deliver everything, and return when nothing is under way."""
        for pool in list(self._timers):
            self._deliver_later_ones(pool)
        with self._hurrying():
            while self._running or self._forgetting is not None:
                under_way = [*self._running.values(), *([self._forgetting] if self._forgetting else [])]
                await asyncio.gather(*under_way, return_exceptions=True)

    @contextlib.contextmanager
    def _hurrying(self) -> Iterator[None]:
        """While somebody waits, nothing is put off."""
        self._in_a_hurry += 1
        self._hurry.set()
        try:
            yield
        finally:
            self._in_a_hurry -= 1
            if not self._in_a_hurry:
                self._hurry.clear()

    async def _put_off(self, seconds: float) -> None:
        if seconds > 0 and not self._in_a_hurry:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), seconds)

    def _deliver_later_ones(self, pool: str) -> None:
        self._timers.pop(pool).cancel()
        for id_, told in self._later.pop(pool, {}).items():
            self.send([OutboxEntry(id=id_, db_pool=pool, updates=list(told.values()))])

    def _start(self, pool: str) -> None:
        if pool not in self._running:
            self._running[pool] = asyncio.get_running_loop().create_task(self._run(pool))

    async def _run(self, pool: str) -> None:
        try:
            while self._waiting[pool]:
                await self._put_off(self._last_at.get(pool, 0.0) + PACE_SECONDS - _now())
                self._last_at[pool] = _now()
                await self._deliver_batch(pool, self._take(pool))
        finally:
            del self._running[pool]

    def _take(self, pool: str) -> list[tuple[OutboxEntry, asyncio.Future[None]]]:
        waiting = self._waiting[pool]
        size = taken = 0
        while taken < len(waiting) and size < UPDATES_AT_ONCE:
            size += len(waiting[taken][0].updates)
            taken += 1
        self._waiting[pool] = waiting[taken:]
        return waiting[:taken]

    async def _deliver_batch(self, pool: str, batch: Sequence[tuple[OutboxEntry, asyncio.Future[None]]]) -> None:
        entries = [entry for entry, _ in batch]
        earlier = self._earlier(pool, entries)
        try:
            applied = await self.apply(pool, [*earlier, *entries])
        except PoolUnavailable:
            applied = []
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
                raise
            return
        for _, future in batch:
            if not future.done():
                future.set_result(None)
        self._forget_soon(pool, applied)

    def _earlier(self, pool: str, entries: Sequence[OutboxEntry]) -> list[OutboxEntry]:
        """From the entries that can wait, the updates that come before those in these entries."""
        told = self._later[pool]
        job_ids = {update.job_id for entry in entries for update in entry.updates} if told else set()
        return [
            OutboxEntry(id=id_, db_pool=pool, updates=[updates[each] for each in updates.keys() & job_ids])
            for id_, updates in told.items()
            if not job_ids.isdisjoint(updates)
        ]

    def _forget_soon(self, pool: str, applied: Sequence[OutboxEntry]) -> None:
        """Nobody waits for a entry to leave the outbox, so deliveries of all pools, for a while, share one commit."""
        for entry in applied:
            left = self._later[pool].get(entry.id)
            if left is not None:
                for update in entry.updates:
                    left.pop(update.job_id, None)
                if left:
                    continue
                del self._later[pool][entry.id]
            self._applied.append(entry.id)
        if self._applied and self._forgetting is None:
            self._forgetting = asyncio.get_running_loop().create_task(self._forget_applied())

    async def _forget_applied(self) -> None:
        try:
            while self._applied:
                await self._put_off(FORGET_SECONDS)
                applied, self._applied = self._applied, []
                await self._forget_ids(applied)
        except Exception:
            # They are applied; the relay finds them in the outbox, finds that out, and removes them.
            log.warning("deliver.not_forgotten", exc_info=True)
        finally:
            self._forgetting = None

    async def apply(self, pool: str, entries: Sequence[OutboxEntry]) -> list[OutboxEntry]:
        """Apply what is next in line for each job; returns the entries of which nothing is left to apply."""

        async def work(tx: Tx) -> tuple[list[OutboxEntry], list[JobState]]:
            return await _apply(tx, entries, output_disk=self._output_disk)

        with self._databases.watched(pool):
            applied, ended = await self._databases.pool(pool).run(Step.DELIVER_APPLY, work)
        if self._told is not None:
            self._told(pool, entries)
        if self._ended is not None and ended:
            self._ended(ended)
        return applied

    async def forget(self, entries: Sequence[OutboxEntry]) -> None:
        if entries:
            await self._forget_ids([each.id for each in entries])

    async def _forget_ids(self, ids: Sequence[int]) -> None:
        await self._databases.central.run(Step.DELIVER_FORGET, lambda tx: outbox.remove_entries(tx, ids))


async def _apply(
    tx: Tx, entries: Sequence[OutboxEntry], *, output_disk: str
) -> tuple[list[OutboxEntry], list[JobState]]:
    """Returns the entries of which nothing is left to apply, and the jobs that have ended with this."""
    updates: dict[str, list[JobUpdate]] = defaultdict(list)
    for entry in entries:
        for update in entry.updates:
            updates[update.job_id].append(update)
    states = await jobs.lock_states(tx, updates)
    settled = [each for state in states.values() if (each := apply_updates(state, updates[state.id])) is not None]
    if settled:
        await _write(tx, settled, output_disk=output_disk)
    versions = {job_id: state.dispatch_version for job_id, state in states.items()}
    versions.update({each.job.id: each.job.dispatch_version for each in settled})
    # A job that is gone has nothing left to be told.
    applied = [
        entry
        for entry in entries
        if all(update.version <= versions.get(update.job_id, update.version) for update in entry.updates)
    ]
    return applied, [each.job for each in settled if each.settlement is not None]


async def _write(tx: Tx, settled: Sequence[Settled], *, output_disk: str) -> None:
    entries = [_token_entry(each) for each in settled if each.settlement is not None]
    refunded = {each.tenant_id for each in entries if each.amount}
    if refunded:
        # Before the videos, as everywhere: whoever submits holds the wallet when it comes to the video.
        await ledger.lock_wallets(tx, refunded)
    outputs = [each for each in settled if each.output is not None]
    if outputs:
        await media.write_outputs(tx, [_output_row(each, output_disk) for each in outputs])
    await jobs.write_settled(tx, settled)
    await jobs.write_attempts(tx, [attempt for each in settled for attempt in each.attempts.values()])
    await jobs.write_events(tx, [event for each in settled for event in each.events])
    videos = [_video_change(each) for each in settled if each.job.video_id is not None]
    if videos:
        await media.change_videos(tx, videos)
    ended = [each for each in settled if each.settlement is not None]
    if ended:
        await deliveries.write_due(tx, [each.job.id for each in ended])
    strays = [Stray(job_id=each.job.id, tenant_id=each.job.tenant_id) for each in ended if each.has_lost_leases]
    if strays:
        await retention.write_stray(tx, strays)
    if entries:
        await ledger.append(tx, entries)


def _token_entry(settled: Settled) -> ledger.Entry:
    assert settled.settlement is not None
    is_refund = settled.settlement is TransactionType.JOB_REFUND
    return ledger.Entry(
        tenant_id=settled.job.tenant_id,
        type=settled.settlement,
        amount=settled.job.reserved_tokens if is_refund else 0,
        job_id=settled.job.id,
    )


def _output_row(settled: Settled, disk: str) -> dict[str, object]:
    output = settled.output
    assert output is not None
    return {
        "id": output.file_id,
        "tenant_id": settled.job.tenant_id,
        "user_id": settled.job.user_id,
        "disk": disk,
        "path": output.path,
        "mime_type": output.mime_type,
        "size": output.size,
        "content_hash": output.sha256,
        "metadata": output.metadata,
    }


def _video_change(settled: Settled) -> media.VideoChange:
    job = settled.job
    details: dict[str, object] | None = None
    if job.status == JobStatus.FAILED:
        details = {"error": job.error_message}
    elif job.status == JobStatus.CANCELED:
        details = {"error": CANCELED_TEXT}
    elif job.status == JobStatus.COMPLETED and job.started_at and job.completed_at:
        details = {"processing_seconds": (job.completed_at - job.started_at).total_seconds()}
    assert job.video_id is not None
    return media.VideoChange(
        id=job.video_id,
        job_id=job.id,
        status=video_status_of(job.status),
        processed_file_id=job.output_file_id if job.status == JobStatus.COMPLETED else None,
        processing_details=details,
    )


def _now() -> float:
    return asyncio.get_running_loop().time()


def _note_failure(future: asyncio.Future[None]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.info("deliver.failed", error=repr(error))
