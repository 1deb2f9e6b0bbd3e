"""Live previews of running jobs, sent only while a user watches.

Each process remembers for a few seconds which jobs are watched, and informs the others through the notify channel.
Workers upload preview images to object storage; no database stores them.
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
from comfyrelay.domain.queue.dispatch import Transition
from comfyrelay.errors import ComfyRelayError, NotFound
from comfyrelay.media.previews import MAX_BYTES, PREVIEWS, TYPE, is_preview, preview_path
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store.notify import NotifyChannel
from comfyrelay.wakeup import Wakeup, WakeupsByKey

T = TypeVar("T")
log = structlog.get_logger(__name__)

# A job counts as watched for this long after a request for its preview.
WATCHED_SECONDS = 10.0
# The interval at which this process informs the others that a job is still watched.
PUBLISH_SECONDS = 3.0
# Pages that watch the same job share one read from storage for this long.
SHARED_SECONDS = 0.4
# The lifetime of an upload URL. The URL is renewed after half of this time.
URL_SECONDS = 300.0
MAX_CACHED = 20_000
TOPIC = "watched:"


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewOffer:
    """The upload URL for a worker's previews, and the number of seconds for which the job remains watched."""

    url: str
    headers: Mapping[str, str]
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewImage:
    data: bytes
    tag: str


class PreviewService:
    def __init__(self, objects: ObjectStore, notify_channel: NotifyChannel) -> None:
        self._objects = objects
        self._notify_channel = notify_channel
        # By job: the time until which it is watched, and the time when this was last published.
        self._until: OrderedDict[str, float] = OrderedDict()
        self._published_at: dict[str, float] = {}
        self._waiting: WakeupsByKey[str] = WakeupsByKey()
        self._offers: OrderedDict[str, tuple[float, PreviewOffer]] = OrderedDict()
        # Jobs that have been watched, so that a preview may exist.
        self._watched: OrderedDict[str, None] = OrderedDict()
        self._read: dict[str, tuple[float, asyncio.Future[PreviewImage | None]]] = {}
        self._removing: set[asyncio.Task[None]] = set()
        notify_channel.on_message(self._on_message)

    def watch(self, job_id: str) -> None:
        """Note that a user is watching a job, and inform the process that serves its worker."""
        now = _now()
        if now - self._published_at.get(job_id, -inf) >= PUBLISH_SECONDS:
            self._published_at[job_id] = now
            self._notify_channel.publish(f"{TOPIC}{job_id}")
        else:
            self._mark_watched(job_id)

    def seconds_left(self, job_id: str) -> float:
        """Return the number of seconds for which the job remains watched."""
        return max(0.0, self._until.get(job_id, 0.0) - _now())

    def waking(self, job_id: str, wakeup: Wakeup) -> AbstractContextManager[None]:
        """Notify this wakeup when a user starts watching the job."""
        return self._waiting.waiting(job_id, wakeup)

    def patience(self, job_id: str, *, sends_for: float) -> float:
        """Return the time for which a heartbeat may wait before its worker needs a new offer.

        The worker's current offer is valid for `sends_for` more seconds.
        """
        if not self.seconds_left(job_id):
            return inf
        return max(1.0, sends_for / 2) if sends_for > 0 else 0.0

    async def offer(self, tenant_id: str, job_id: str, lease_token: str) -> PreviewOffer | None:
        """Return an offer for the worker of a lease to upload previews; `None` if no user is watching."""
        if not (left := self.seconds_left(job_id)):
            return None
        now = _now()
        signed_at, known = self._offers.get(lease_token, (-inf, None))
        if known is None or now - signed_at > URL_SECONDS / 2:
            upload = await self._objects.sign_upload(
                preview_path(tenant_id, job_id),
                content_type=TYPE,
                max_size=MAX_BYTES,
                ttl_seconds=URL_SECONDS,
                for_worker=True,
            )
            known = PreviewOffer(url=upload.url, headers=upload.headers, seconds=0.0)
            _cache(self._offers, lease_token, (now, known))
        return PreviewOffer(url=known.url, headers=known.headers, seconds=left)

    async def newest(self, tenant_id: str, job_id: str) -> PreviewImage | None:
        """Return the newest preview, or `None` if there is none or it is not a valid image."""
        now = _now()
        read_at, reading = self._read.get(job_id, (-inf, None))
        if reading is None or now - read_at > SHARED_SECONDS:
            reading = asyncio.ensure_future(self._newest(tenant_id, job_id))
            self._read = {key: read for key, read in self._read.items() if now - read[0] <= SHARED_SECONDS}
            self._read[job_id] = (now, reading)
        return await asyncio.shield(reading)

    async def _newest(self, tenant_id: str, job_id: str) -> PreviewImage | None:
        path = preview_path(tenant_id, job_id)
        try:
            # S3 does not limit the size of an upload, so limit the read.
            data = b"".join([piece async for piece in self._objects.stream(path, length=MAX_BYTES + 1)])
        except NotFound:
            return None
        return PreviewImage(data=data, tag=f'"{sha256(data).hexdigest()[:32]}"') if is_preview(data) else None

    def remove_ended(self, transitions: Iterable[Transition]) -> None:
        """Remove the previews of ended leases in the background."""
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
        """Wait for pending removals."""
        await asyncio.gather(*self._removing)

    async def sweep(self, *, older_than_seconds: float) -> int:
        """Remove previews that have not been replaced for this long, and return their number."""
        before = utc_now() - timedelta(seconds=older_than_seconds)
        old = [preview.path async for preview in self._objects.list(PREVIEWS) if preview.modified_at <= before]
        if old:
            await self._objects.remove_many(old)
        return len(old)

    async def _remove(self, path: str) -> None:
        try:
            await self._objects.remove(path)
        except ComfyRelayError as error:
            # Retention will remove it later.
            log.info("preview.removal_failed", why=error.detail)

    def _on_message(self, message: str) -> None:
        if message.startswith(TOPIC):
            self._mark_watched(message.removeprefix(TOPIC))

    def _mark_watched(self, job_id: str) -> None:
        now = _now()
        was_watched = self._until.get(job_id, 0.0) > now
        self._until[job_id] = now + WATCHED_SECONDS
        self._until.move_to_end(job_id)
        while (oldest := next(iter(self._until))) and self._until[oldest] <= now:
            del self._until[oldest]
            self._published_at.pop(oldest, None)
        _cache(self._watched, job_id, None)
        if not was_watched:
            self._waiting.notify(job_id)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _cache(cache: OrderedDict[str, T], key: str, value: T) -> None:
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > MAX_CACHED:
        cache.popitem(last=False)
