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

from comfyrelay.domain.messages import Message
from comfyrelay.domain.settlement import CANCELED_TEXT, JobState, Settled, apply_messages, video_status_of
from comfyrelay.domain.states import JobStatus, TransactionType
from comfyrelay.errors import PoolUnavailable
from comfyrelay.services.databases import Databases
from comfyrelay.services.steps import Step
from comfyrelay.store import outbox
from comfyrelay.store.database import Tx
from comfyrelay.store.outbox import Letter
from comfyrelay.store.tenant import deliveries, jobs, ledger, media, retention
from comfyrelay.store.tenant.retention import Stray

log = structlog.get_logger(__name__)

# Bounds the size of one tenant transaction.
MESSAGES_AT_ONCE = 1000
LETTERS_WAITING = 50
# How long a start may wait to be told together with the job's end. Nobody sees the difference.
LATER_SECONDS = 0.5
# How far apart the deliveries to one pool are while nobody waits for them, so that under load many share one commit.
PACE_SECONDS = 0.05
# How long letters that were applied may stay in the outbox, so that many leave it in one transaction.
FORGET_SECONDS = 0.1


class Courier:
    def __init__(
        self,
        databases: Databases,
        *,
        output_disk: str,
        told: Callable[[str, Sequence[Letter]], None] | None = None,
        ended: Callable[[Sequence[JobState]], None] | None = None,
    ) -> None:
        """`told` hears which letters have just been applied to which pool; `ended` which jobs have just ended, once
        for each."""
        self._databases = databases
        self._told = told
        self._ended = ended
        self._output_disk = output_disk
        self._waiting: dict[str, list[tuple[Letter, asyncio.Future[None]]]] = defaultdict(list)
        self._running: dict[str, asyncio.Task[None]] = {}
        # By pool and letter, what of letters that nobody waits for is still to be told.
        self._later: dict[str, dict[int, dict[str, Message]]] = defaultdict(dict)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._applied: list[int] = []
        self._forgetting: asyncio.Task[None] | None = None
        self._last_at: dict[str, float] = {}
        self._hurry = asyncio.Event()
        self._in_a_hurry = 0

    async def deliver(self, letters: Iterable[Letter]) -> None:
        """Deliver, and return when the pools have committed, or cannot be reached and must be told later."""
        with self._hurrying():
            await asyncio.gather(*self.send(letters).values())

    async def arrived(self, delivery: asyncio.Future[None]) -> None:
        """Wait for one that was begun."""
        with self._hurrying():
            await asyncio.shield(delivery)

    def send(self, letters: Iterable[Letter]) -> dict[str, asyncio.Future[None]]:
        """Begin to deliver; by pool, what to wait for. The letters are of one transaction: at most one a pool."""
        futures = {}
        for letter in letters:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.add_done_callback(_note_failure)
            futures[letter.db_pool] = future
            self._waiting[letter.db_pool].append((letter, future))
            self._start(letter.db_pool)
        return futures

    def deliver_later(self, letters: Iterable[Letter]) -> None:
        """Deliver in a moment, or with the next letter about the same job: one that is over at once is told of its
        start and its end in one transaction. A letter has one message a job here."""
        for letter in letters:
            pool = letter.db_pool
            self._later[pool][letter.id] = {each.job_id: each for each in letter.messages}
            if pool not in self._timers:
                timer = asyncio.get_running_loop().call_later(LATER_SECONDS, self._deliver_later_ones, pool)
                self._timers[pool] = timer

    @property
    def is_behind(self) -> bool:
        """Whether so much waits to be told that whoever adds to it should wait too."""
        return any(len(waiting) > LETTERS_WAITING for waiting in self._waiting.values())

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
            self.send([Letter(id=id_, db_pool=pool, messages=list(told.values()))])

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

    def _take(self, pool: str) -> list[tuple[Letter, asyncio.Future[None]]]:
        waiting = self._waiting[pool]
        size = taken = 0
        while taken < len(waiting) and size < MESSAGES_AT_ONCE:
            size += len(waiting[taken][0].messages)
            taken += 1
        self._waiting[pool] = waiting[taken:]
        return waiting[:taken]

    async def _deliver_batch(self, pool: str, batch: Sequence[tuple[Letter, asyncio.Future[None]]]) -> None:
        letters = [letter for letter, _ in batch]
        earlier = self._earlier(pool, letters)
        try:
            applied = await self.apply(pool, [*earlier, *letters])
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

    def _earlier(self, pool: str, letters: Sequence[Letter]) -> list[Letter]:
        """From the letters that can wait, the messages that come before those in these letters."""
        told = self._later[pool]
        job_ids = {message.job_id for letter in letters for message in letter.messages} if told else set()
        return [
            Letter(id=id_, db_pool=pool, messages=[messages[each] for each in messages.keys() & job_ids])
            for id_, messages in told.items()
            if not job_ids.isdisjoint(messages)
        ]

    def _forget_soon(self, pool: str, applied: Sequence[Letter]) -> None:
        """Nobody waits for a letter to leave the outbox, so deliveries of all pools, for a while, share one commit."""
        for letter in applied:
            left = self._later[pool].get(letter.id)
            if left is not None:
                for message in letter.messages:
                    left.pop(message.job_id, None)
                if left:
                    continue
                del self._later[pool][letter.id]
            self._applied.append(letter.id)
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

    async def apply(self, pool: str, letters: Sequence[Letter]) -> list[Letter]:
        """Apply what is next in line for each job; returns the letters of which nothing is left to apply."""

        async def work(tx: Tx) -> tuple[list[Letter], list[JobState]]:
            return await _apply(tx, letters, output_disk=self._output_disk)

        with self._databases.watched(pool):
            applied, ended = await self._databases.pool(pool).run(Step.DELIVER_APPLY, work)
        if self._told is not None:
            self._told(pool, letters)
        if self._ended is not None and ended:
            self._ended(ended)
        return applied

    async def forget(self, letters: Sequence[Letter]) -> None:
        if letters:
            await self._forget_ids([each.id for each in letters])

    async def _forget_ids(self, ids: Sequence[int]) -> None:
        await self._databases.central.run(Step.DELIVER_FORGET, lambda tx: outbox.remove_letters(tx, ids))


async def _apply(tx: Tx, letters: Sequence[Letter], *, output_disk: str) -> tuple[list[Letter], list[JobState]]:
    """Returns the letters of which nothing is left to apply, and the jobs that have ended with this."""
    messages: dict[str, list[Message]] = defaultdict(list)
    for letter in letters:
        for message in letter.messages:
            messages[message.job_id].append(message)
    states = await jobs.lock_states(tx, messages)
    settled = [each for state in states.values() if (each := apply_messages(state, messages[state.id])) is not None]
    if settled:
        await _write(tx, settled, output_disk=output_disk)
    versions = {job_id: state.dispatch_version for job_id, state in states.items()}
    versions.update({each.job.id: each.job.dispatch_version for each in settled})
    # A job that is gone has nothing left to be told.
    applied = [
        letter
        for letter in letters
        if all(message.version <= versions.get(message.job_id, message.version) for message in letter.messages)
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
