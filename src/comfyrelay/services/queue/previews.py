"""Previews of jobs that run: who is watched, where a worker puts its pictures, and the newest of each job.

That somebody looks is a mark in the memory of each process: said once here, it goes to the others by the wake-up
channel, and is forgotten by itself. The pictures go to object storage, and no database knows of them.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from math import inf
from typing import TypeVar

import structlog

from comfyrelay.clock import utc_now
from comfyrelay.domain.queue.lifecycle import Transition
from comfyrelay.errors import ComfyRelayError, NotFound
from comfyrelay.media.previews import MOST_BYTES, PREVIEWS, TYPE, is_preview, preview_path
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store.notify import NotifyChannel
from comfyrelay.wakeup import Wakeup, WakeupsByKey

T = TypeVar("T")
log = structlog.get_logger(__name__)

# Whoever asks for a picture watches for so long.
WATCHED_SECONDS = 10.0
# Who goes on asking is told of again after so long: the others must not forget it meanwhile.
TELL_SECONDS = 3.0
# Several pages that look at one job make one request to storage.
SHARED_SECONDS = 0.4
# How long a URL works, and after which part of that another is made.
URL_SECONDS = 300.0
MOST_REMEMBERED = 20_000
WORD = "watched:"


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewOffer:
    """Where a worker may put previews, and for how long somebody is known to look."""

    url: str
    headers: Mapping[str, str]
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    data: bytes
    tag: str


class PreviewService:
    def __init__(self, objects: ObjectStore, notify_channel: NotifyChannel) -> None:
        self._objects = objects
        self._notify_channel = notify_channel
        # by job, until when somebody watches; and when the others were told
        self._until: OrderedDict[str, float] = OrderedDict()
        self._told_at: dict[str, float] = {}
        self._waiting: WakeupsByKey[str] = WakeupsByKey()
        self._offers: OrderedDict[str, tuple[float, PreviewOffer]] = OrderedDict()
        # jobs that were watched, so that a picture may be there
        self._watched: OrderedDict[str, None] = OrderedDict()
        self._read: dict[str, tuple[float, asyncio.Future[Picture | None]]] = {}
        self._removing: set[asyncio.Task[None]] = set()
        notify_channel.on_word(self._on_word)

    def watch(self, job_id: str) -> None:
        """Somebody looks at a job: whoever has it is to hear of it."""
        now = _now()
        if now - self._told_at.get(job_id, -inf) >= TELL_SECONDS:
            self._told_at[job_id] = now
            self._notify_channel.publish(f"{WORD}{job_id}")
        else:
            self._mark(job_id)

    def seconds_left(self, job_id: str) -> float:
        """For how long somebody is known to look at it."""
        return max(0.0, self._until.get(job_id, 0.0) - _now())

    def waking(self, job_id: str, wakeup: Wakeup) -> AbstractContextManager[None]:
        """Give this wakeup when somebody begins to look at a job."""
        return self._waiting.waiting(job_id, wakeup)

    def patience(self, job_id: str, *, sends_for: float) -> float:
        """How long a heartbeat may wait until its worker must hear of previews, if it goes on to send them so long."""
        if not self.seconds_left(job_id):
            return inf
        return max(1.0, sends_for / 2) if sends_for > 0 else 0.0

    async def offer(self, tenant_id: str, job_id: str, lease_token: str) -> PreviewOffer | None:
        """Where the holder of a lease puts previews, if somebody watches."""
        if not (left := self.seconds_left(job_id)):
            return None
        now = _now()
        signed_at, known = self._offers.get(lease_token, (-inf, None))
        if known is None or now - signed_at > URL_SECONDS / 2:
            upload = await self._objects.sign_upload(
                preview_path(tenant_id, job_id), content_type=TYPE, max_size=MOST_BYTES, ttl_seconds=URL_SECONDS
            )
            known = PreviewOffer(url=upload.url, headers=upload.headers, seconds=0.0)
            _remember(self._offers, lease_token, (now, known))
        return PreviewOffer(url=known.url, headers=known.headers, seconds=left)

    async def newest(self, tenant_id: str, job_id: str) -> Picture | None:
        """The newest picture; `None` when there is none, or when what is there is none."""
        now = _now()
        read_at, reading = self._read.get(job_id, (-inf, None))
        if reading is None or now - read_at > SHARED_SECONDS:
            reading = asyncio.ensure_future(self._newest(tenant_id, job_id))
            self._read = {key: each for key, each in self._read.items() if now - each[0] <= SHARED_SECONDS}
            self._read[job_id] = (now, reading)
        return await asyncio.shield(reading)

    async def _newest(self, tenant_id: str, job_id: str) -> Picture | None:
        path = preview_path(tenant_id, job_id)
        try:
            # S3 takes what it is given, so no more than this is looked at
            data = b"".join([each async for each in self._objects.stream(path, length=MOST_BYTES + 1)])
        except NotFound:
            return None
        return Picture(data=data, tag=f'"{sha256(data).hexdigest()[:32]}"') if is_preview(data) else None

    def ended(self, transitions: Iterable[Transition]) -> None:
        """Leases have ended: what was seen of them is of no use any more."""
        for transition in transitions:
            job_id = transition.before.tenant_job_id
            if transition.lease_outcome is None or job_id not in self._watched:
                continue
            if transition.after.is_terminal:
                del self._watched[job_id]
            task = asyncio.create_task(self._remove(preview_path(transition.before.tenant_id, job_id)))
            self._removing.add(task)
            task.add_done_callback(self._removing.discard)

    async def idle(self) -> None:
        """Wait until nothing is being removed."""
        await asyncio.gather(*self._removing)

    async def sweep(self, *, older_than_seconds: float) -> int:
        """Remove the pictures that nobody has replaced for so long: their worker is gone, or nobody looks."""
        before = utc_now() - timedelta(seconds=older_than_seconds)
        old = [each.path async for each in self._objects.list(PREVIEWS) if each.modified_at <= before]
        if old:
            await self._objects.remove_many(old)
        return len(old)

    async def _remove(self, path: str) -> None:
        try:
            await self._objects.remove(path)
        except ComfyRelayError as error:
            # it is found by retention
            log.info("previews.not_removed", why=error.detail)

    def _on_word(self, word: str) -> None:
        if word.startswith(WORD):
            self._mark(word.removeprefix(WORD))

    def _mark(self, job_id: str) -> None:
        now = _now()
        was_watched = self._until.get(job_id, 0.0) > now
        self._until[job_id] = now + WATCHED_SECONDS
        self._until.move_to_end(job_id)
        while (oldest := next(iter(self._until))) and self._until[oldest] <= now:
            del self._until[oldest]
            self._told_at.pop(oldest, None)
        _remember(self._watched, job_id, None)
        if not was_watched:
            self._waiting.notify(job_id)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _remember(kept: OrderedDict[str, T], key: str, value: T) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > MOST_REMEMBERED:
        kept.popitem(last=False)
