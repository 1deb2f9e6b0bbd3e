"""The maximum run time of a job: the limit of its effect, or the time for which its tenant has reserved tokens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from comfyrelay.errors import Fault, RunTimedOut


class RunLimit:
    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._timeout: asyncio.Timeout | None = None

    @asynccontextmanager
    async def enforced(self) -> AsyncIterator[None]:
        """Stop the run in this block when its time is over. The job itself is at fault, so it is not retried."""
        timeout = self._timeout = asyncio.timeout(None)
        try:
            async with timeout:
                yield
        except TimeoutError:
            if not timeout.expired():
                raise
            text = f"The run was stopped after {self._seconds:g} s, which is the limit for this job."
            raise RunTimedOut(text, fault=Fault.JOB) from None
        finally:
            # An ended timeout cannot be changed, but the job may wait for another run.
            self._timeout = None

    def start(self) -> None:
        """Start counting, because the run has begun."""
        if self._timeout is not None and self._seconds is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._seconds)

    def reset(self) -> None:
        """Stop counting, because the job waits for another run."""
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(None)
