"""Protect this instance from scale-in while it is running jobs."""

import asyncio

import structlog

from comfyrelay.retry import Backoff, Retries
from comfyrelay.wakeup import Wakeup
from comfyrelay.worker.host.scaling_group import ScalingGroup

log = structlog.get_logger(__name__)

# The instance may not yet be in service, or AWS may be throttling: retry in the background.
FIRST_PAUSE_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 60.0
# Protection remains on between two jobs, because each change is an API call, and calls are limited.
OFF_AFTER_SECONDS = 5.0
# How long a shutdown waits for AWS.
CLOSE_SECONDS = 6.0


class Protection:
    """Applies the last requested scale-in protection. AWS errors never affect jobs."""

    def __init__(
        self,
        group: ScalingGroup,
        *,
        off_after_seconds: float = OFF_AFTER_SECONDS,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
    ) -> None:
        self._group = group
        self._off_after_seconds = off_after_seconds
        self._first_pause_seconds = first_pause_seconds
        self._wanted: bool | None = None
        # The state at AWS is initially unknown, because an earlier process may have left protection on.
        self._is_on: bool | None = None
        self._is_closing = False
        self._news = Wakeup()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow())

    def want(self, protected: bool) -> None:
        """Request a state. The last request takes effect."""
        if protected != self._wanted:
            self._wanted = protected
            self._news.notify()

    async def close(self) -> None:
        """Try once to apply the last request."""
        if self._task is None:
            return
        self._is_closing = True
        self._news.notify()
        await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        logged: bool | None = None
        retries = Retries(Backoff(first_seconds=self._first_pause_seconds, max_seconds=LONGEST_PAUSE_SECONDS))
        while True:
            wanted = self._wanted
            if wanted is None or wanted == self._is_on:
                if self._is_closing:
                    return
                await self._news.wait()
                continue
            if self._is_on and not self._is_closing and await self._news.wait(self._off_after_seconds):
                continue
            try:
                await asyncio.to_thread(self._group.protect, wanted)
            except Exception as error:
                # AWS may have applied the change anyway.
                self._is_on = None
                if logged is not wanted:
                    logged = wanted
                    retries.reset()
                    log.warning("worker.protection_failed", protected=wanted, error=f"{type(error).__name__}: {error}")
                if self._is_closing:
                    return
                await self._news.wait(retries.next_delay())
            else:
                self._is_on, logged = wanted, None
                log.debug("worker.protection_set", protected=wanted)
