"""Long-poll for jobs while there is capacity."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

import structlog

from comfyrelay.errors import (
    ComfyRelayError,
    ControlPlaneUnreachable,
    Forbidden,
    TooManyRequests,
    Unauthorized,
)
from comfyrelay.protocol.worker import MIN_NEXT_PROTOCOL
from comfyrelay.retry import Backoff, Retries
from comfyrelay.worker.capacity import Capacity
from comfyrelay.worker.comfyui.capabilities import Capabilities
from comfyrelay.worker.comfyui.servers import Servers
from comfyrelay.worker.control import LONGEST_PAUSE_SECONDS, ControlPlane
from comfyrelay.worker.lease import Lease

log = structlog.get_logger(__name__)

# A poll that returns sooner without a job is followed by a pause, because this worker is draining or the server is
# stopping.
SOONEST_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NextPoll:
    """A poll that is sent with the completion of a lease. Call `answered` with the new lease, or `lost` without a
    response."""

    request: Mapping[str, Any]
    answered: Callable[[Lease | None], None]
    lost: Callable[[], None]


class Poller:
    """Polls for jobs. `capacity` returns the free capacity, not counting the given lease. Call `changed` when the
    capacity may have changed. `on_reported` is called when the control plane has received changed capabilities."""

    def __init__(
        self,
        control: ControlPlane,
        *,
        capacity: Callable[[Lease | None], Capacity | None],
        servers: Servers,
        capabilities: Capabilities,
        accept: Callable[[Lease], None],
        register: Callable[[str], Awaitable[None]],
        on_reported: Callable[[], None],
        wait_seconds: float,
    ) -> None:
        self._control = control
        self._capacity = capacity
        self._servers = servers
        self._capabilities = capabilities
        self._accept = accept
        self._register = register
        self._on_reported = on_reported
        self._wait_seconds = wait_seconds
        self._changed = asyncio.Event()
        # The ids of unanswered polls. They are sent again, so that the control plane repeats a lost response.
        self._unanswered: list[str] = []
        self._was_dropped = False
        self._paused_until = 0.0
        self._more_waiting = 0
        # The restarts of ComfyUI that have been reported to the control plane.
        self._sent_restarts: Mapping[str, int] = {}
        # The start of the pending poll.
        self._polling_since: float | None = None
        self._is_polling = False

    @property
    def more_waiting(self) -> int:
        """Number of jobs that were waiting for this worker at the last response."""
        since = self._polling_since
        # If a job were still waiting, the pending poll would have returned by now.
        is_parked = since is not None and asyncio.get_running_loop().time() - since > SOONEST_SECONDS
        return 0 if is_parked else self._more_waiting

    def changed(self) -> None:
        self._changed.set()

    def pause(self, seconds: float) -> None:
        """Stop polling for this time, and drop the pending poll."""
        loop = asyncio.get_running_loop()
        self._paused_until = loop.time() + seconds
        loop.call_later(seconds, self.changed)
        self.changed()

    def next_poll(self, ended: Lease) -> NextPoll | None:
        """Return a poll to send with the completion of this lease, if the poller would poll right after it.

        The poll does not wait for a job, because the response to the completion must not be delayed.
        """
        is_needed = not (self._is_polling or self._is_paused or self._unanswered) and self._capacity(None) is None
        if not is_needed or self._control.server_protocol < MIN_NEXT_PROTOCOL:
            return None
        # Changes are sent in one of the poller's own polls, which record that the changes were received.
        if self._has_restarted(self._servers.restarts()) or self._capabilities.changes is not None:
            return None
        if (capacity := self._capacity(ended)) is None:
            return None
        request_id = str(uuid4())
        return NextPoll(
            request=self._request(capacity, request_id, wait_seconds=0.0),
            answered=self._take,
            lost=lambda: self._unanswered.append(request_id),
        )

    async def run(self) -> None:
        """Poll until cancelled."""
        retries = Retries(Backoff(first_seconds=SOONEST_SECONDS, max_seconds=LONGEST_PAUSE_SECONDS))
        while True:
            pause = 0.0
            capacity = await self._wait_for_capacity()
            token = self._control.token
            try:
                if await self._poll(capacity):
                    retries.reset()
                else:
                    pause = retries.next_delay(at_least=SOONEST_SECONDS)
            except Unauthorized:
                log.warning("worker.token_refused")
                await self._register(token)
            except Forbidden as error:
                # The worker is revoked, but an administrator may restore it later.
                log.warning("worker.forbidden", why=error.detail)
                pause = LONGEST_PAUSE_SECONDS
            except TooManyRequests as error:
                pause = error.retry_after_seconds
            except ControlPlaneUnreachable as error:
                if not retries.failures:
                    log.warning("worker.control_plane_unreachable", why=error.detail)
                pause = retries.next_delay()
            except ComfyRelayError as error:
                log.error("worker.poll_refused", why=error.detail)
                pause = LONGEST_PAUSE_SECONDS
            except Exception:
                # An error here must not affect running jobs.
                log.exception("worker.poll_crashed")
                pause = LONGEST_PAUSE_SECONDS
            await asyncio.sleep(pause)

    @property
    def _is_paused(self) -> bool:
        return asyncio.get_running_loop().time() < self._paused_until

    async def _wait_for_capacity(self) -> Capacity:
        while True:
            self._changed.clear()
            if not self._is_paused and (capacity := self._capacity(None)) is not None:
                return capacity
            await self._changed.wait()

    async def _poll(self, capacity: Capacity) -> bool:
        """Poll once. Returns false if the response was empty and arrived too soon for a long poll."""
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        if not self._unanswered:
            self._unanswered.append(str(uuid4()))
        request_id = self._unanswered[0]
        changes = self._capabilities.changes
        # A long poll would delay the news that the changes were received.
        request = self._request(capacity, request_id, wait_seconds=self._wait_seconds if changes is None else 0.0)
        if changes is not None:
            request["capabilities"] = changes
        restarts = self._servers.restarts()
        if self._has_restarted(restarts):
            request["comfyui_restarted"] = True
        polling = asyncio.create_task(self._control.poll(request))
        self._polling_since = self._polling_since or asked_at
        self._is_polling = True
        try:
            if not await self._wait_for_answer(polling, capacity, changes or self._capabilities.sent):
                self._was_dropped = True
                return True
        finally:
            self._is_polling = False
            if not polling.done():
                polling.cancel()
                await asyncio.wait({polling})
        self._polling_since = None
        lease = polling.result()
        if changes is not None:
            self._capabilities.sent = changes
            self._on_reported()
        self._sent_restarts = restarts
        self._unanswered.remove(request_id)
        was_dropped, self._was_dropped = self._was_dropped, False
        self._take(lease)
        is_expected = lease is not None or was_dropped or changes is not None
        return is_expected or loop.time() - asked_at >= SOONEST_SECONDS

    def _request(self, capacity: Capacity, request_id: str, *, wait_seconds: float) -> dict[str, Any]:
        return {
            **asdict(capacity),
            "wait_seconds": wait_seconds,
            "request_id": request_id,
            "warm_workflow_hashes": self._servers.warm_hashes(),
        }

    def _has_restarted(self, restarts: Mapping[str, int]) -> bool:
        return any(count > self._sent_restarts.get(name, 0) for name, count in restarts.items())

    def _take(self, lease: Lease | None) -> None:
        self._more_waiting = lease.more_waiting if lease is not None else 0
        if lease is not None:
            self._accept(lease)

    async def _wait_for_answer(
        self, polling: "asyncio.Task[Lease | None]", capacity: Capacity, sent: Mapping[str, Any] | None
    ) -> bool:
        """Wait for the response. Returns false if the poll is outdated because capacity or capabilities have
        changed."""
        while not polling.done():
            waking = asyncio.create_task(self._changed.wait())
            await asyncio.wait({polling, waking}, return_when=asyncio.FIRST_COMPLETED)
            waking.cancel()
            self._changed.clear()
            if not polling.done() and (self._capabilities.has_changed_since(sent) or self._is_outdated(capacity)):
                return False
        return True

    def _is_outdated(self, capacity: Capacity) -> bool:
        """Whether the pending poll no longer matches the capacity. A temporary lack of capacity is no reason to drop
        the poll, which could requeue a lease needlessly."""
        if self._is_paused or any(not self._servers.slots(name) for name in capacity.providers):
            return True
        now = self._capacity(None)
        return now is not None and not set(now.providers) <= set(capacity.providers)
