"""Shutdown notices: signals, Spot interruptions and Auto Scaling terminations."""

import asyncio
import json
import math
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog

from comfyrelay.clock import utc_now
from comfyrelay.system.signals import on_stop
from comfyrelay.worker.host.imds import Imds

log = structlog.get_logger(__name__)

# EC2 gives two minutes' notice, sometimes less.
SPOT_SECONDS = 120.0
# Off EC2, nothing responds, so polling stops after a few attempts. These are the pauses between them, in polling
# intervals.
RETRY_INTERVALS = (1, 12, 60)
ENDED_BY_GROUP = "asg_termination"
ENDING = frozenset({"Terminated", "Warmed:Terminated"})


@dataclass(frozen=True, kw_only=True)
class Notice:
    """A request to shut down.

    `seconds` is the time that was left when the request arrived; `None` means no limit: the current job may finish.
    `at_once` means that jobs are only requeued.
    """

    reason: str
    seconds: float | None
    at_once: bool = False
    came_at: float = field(default_factory=time.monotonic, compare=False)

    @property
    def seconds_left(self) -> float | None:
        return None if self.seconds is None else max(self._ends_at - time.monotonic(), 0.0)

    @property
    def _ends_at(self) -> float:
        return math.inf if self.seconds is None else self.came_at + self.seconds

    def is_more_urgent(self, than: "Notice | None") -> bool:
        if than is None or self.at_once != than.at_once:
            return than is None or self.at_once
        return self._ends_at < than._ends_at


class Notices:
    """Collects notices and holds the most urgent notice. A second signal is more urgent than any notice."""

    def __init__(
        self, *, imds: Imds | None, interval_seconds: float = 5.0, shutdown_seconds: float, asg_seconds: float
    ) -> None:
        self._imds = imds
        self._interval_seconds = interval_seconds
        self._shutdown_seconds = shutdown_seconds
        self._asg_seconds = asg_seconds
        self._changed = asyncio.Event()
        self._was_signaled = False
        # EC2 repeats its notices, so the last notice for each reason is stored.
        self._reported: dict[str, str] = {}
        self._watching: asyncio.Task[None] | None = None
        self._signals = ExitStack()
        self.current: Notice | None = None

    @property
    def is_ended_by_group(self) -> bool:
        """Whether the Auto Scaling group is terminating this instance, even if another notice is more urgent."""
        return self._reported.get(ENDED_BY_GROUP) in ENDING

    def handle_signals(self) -> None:
        self._signals.enter_context(on_stop(self._on_signal))

    def watch(self) -> None:
        """Start polling EC2 for notices, if available."""
        if self._imds is not None:
            self._watching = asyncio.create_task(self._poll(self._imds))

    async def close(self) -> None:
        self._signals.close()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    def add(self, notice: Notice) -> None:
        """Add a notice. Wake the waiters if it is now the most urgent."""
        if notice.is_more_urgent(self.current):
            self.current = notice
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def wait_newer(self, than: Notice | None) -> Notice:
        """Wait for a notice that is more urgent than this one."""
        while self.current is None or self.current is than:
            await self._changed.wait()
        return self.current

    def _on_signal(self, _number: int) -> None:
        at_once, self._was_signaled = self._was_signaled, True
        self.add(Notice(reason="shutdown", seconds=0.0 if at_once else self._shutdown_seconds, at_once=at_once))

    async def _poll(self, imds: Imds) -> None:
        retries = iter(RETRY_INTERVALS)
        while True:
            await self._poll_once(imds)
            intervals = 1 if imds.is_available else next(retries, None)
            if intervals is None:
                log.debug("worker.no_metadata")
                return
            await asyncio.sleep(self._interval_seconds * intervals)

    async def _poll_once(self, imds: Imds) -> None:
        for reason, path, read in (
            ("spot_interruption", "spot/instance-action", _read_spot),
            (ENDED_BY_GROUP, "autoscaling/target-lifecycle-state", self._read_state),
            ("spot_rebalance", "events/recommendations/rebalance", _read_rebalance),
        ):
            found = await imds.get(path)
            if found is None or found[0] == self._reported.get(reason):
                continue
            self._reported[reason] = found[0]
            if (notice := read(reason, *found)) is not None:
                self.add(notice)

    def _read_state(self, reason: str, text: str, _now: datetime | None) -> Notice | None:
        return Notice(reason=reason, seconds=self._asg_seconds) if text in ENDING else None


def _read_spot(reason: str, text: str, now: datetime | None) -> Notice | None:
    """Read a Spot notice. Its time is compared with EC2's clock if possible, because the local clock may be wrong."""
    action = _object_in(text)
    if "action" not in action:
        return None
    try:
        ends_at = datetime.fromisoformat(str(action.get("time")))
        seconds = (ends_at - (now or utc_now())).total_seconds()
    except (ValueError, TypeError):
        log.warning("worker.invalid_spot_notice", said=text[:200])
        # The instance terminates at an unknown time, so nothing new may start.
        seconds = 0.0
    return Notice(reason=reason, seconds=min(max(seconds, 0.0), SPOT_SECONDS))


def _read_rebalance(reason: str, text: str, _now: datetime | None) -> Notice | None:
    return Notice(reason=reason, seconds=None) if "noticeTime" in _object_in(text) else None


def _object_in(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
