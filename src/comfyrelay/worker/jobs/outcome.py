"""Report the outcome of a lease to the control plane."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import structlog

from comfyrelay.error_text import user_sentence
from comfyrelay.errors import ComfyRelayError, Fault, LeaseLost
from comfyrelay.protocol.base import checked
from comfyrelay.protocol.progress import Phase
from comfyrelay.protocol.worker import RunReport
from comfyrelay.worker.control import retry_until_reachable
from comfyrelay.worker.files.outputs import CollectedOutput
from comfyrelay.worker.jobs.heartbeats import HeartbeatLoop
from comfyrelay.worker.jobs.tools import JobTools
from comfyrelay.worker.lease import Lease, LeaseStop
from comfyrelay.worker.poller import NextPoll

log = structlog.get_logger(__name__)

T = TypeVar("T")

# After this time without a response to a heartbeat, the control plane counts as unreachable.
UNREACHABLE_SECONDS = 90.0
LOG_SECONDS = 60.0
MAX_REASON = 500


class OutcomeReporter:
    """Settles one lease. `outcome` is `lost` until the control plane has accepted a report."""

    def __init__(
        self, lease: Lease, tools: JobTools, heartbeats: HeartbeatLoop, *, running_seconds: Callable[[], float]
    ) -> None:
        self.outcome = "lost"
        self._lease = lease
        self._tools = tools
        self._heartbeats = heartbeats
        self._running_seconds = running_seconds

    async def complete(self, collected: CollectedOutput, *, provider_job_id: str) -> None:
        """Complete the lease, and poll for the next job with it if there will be capacity.

        Raises `InvalidInput` if the control plane cannot read the output.
        """
        poll: NextPoll | None = None

        async def report() -> Lease | None:
            nonlocal poll
            # A repeated report contains the same poll and gets the same lease.
            poll = poll or self._tools.next_poll(self._lease)
            return await self._tools.control.complete(
                self._lease,
                self._report(),
                output=collected.as_output,
                more_outputs=[output.as_more_output for output in collected.more],
                provider_job_id=provider_job_id,
                next_poll=poll.request if poll is not None else None,
            )

        try:
            leased = await self._settle(report)
        except BaseException:
            if poll is not None:
                poll.lost()
            raise
        self._end("completed")
        if poll is not None:
            poll.answered(leased)

    async def fail(
        self,
        error: str,
        fault: Fault,
        *,
        retry_after_seconds: float = 0.0,
        code: str | None = None,
        gpu_memory_bytes: int | None = None,
    ) -> bool:
        """Fail the lease. Returns whether this worker is now blocked for the workflow, because it ran out of memory."""
        self._heartbeats.log(f"Failed: {user_sentence(error)}")
        is_blocked = await self._settle(
            lambda: self._tools.control.fail(
                self._lease,
                self._report(),
                error=error,
                fault=fault,
                retry_after_seconds=retry_after_seconds,
                code=code,
                gpu_memory_bytes=gpu_memory_bytes,
            )
        )
        self._end("failed", fault=fault.value, error=user_sentence(error))
        return is_blocked

    async def requeue(self, reason: str) -> None:
        await self._settle(lambda: self._tools.control.requeue(self._lease, self._report(), reason=reason[:MAX_REASON]))
        self._end("requeued", reason=reason)

    async def _settle(self, report: Callable[[], Awaitable[T]]) -> T:
        """Send the report until the control plane responds. An unreachable control plane is retried without limit,
        because only the control plane knows whether the lease is valid. A control plane that accepts heartbeats but
        returns an error for each report would keep the job leased forever, so after some time, the lease is left to
        expire."""
        self._lease.phase = Phase.SETTLING
        self._tools.on_change()
        await self._heartbeats.flush()
        loop = asyncio.get_running_loop()
        since, next_log = loop.time(), 0.0

        def on_pause(error: ComfyRelayError, _seconds: float) -> None:
            nonlocal since, next_log
            now = loop.time()
            if self._lease.stop is LeaseStop.LOST:
                raise LeaseLost
            if now - self._heartbeats.answered_at > UNREACHABLE_SECONDS:
                since = now
            # Only a heartbeat that was sent after this time shows that the control plane is reachable.
            if self._heartbeats.sent_at - since >= self._tools.settings.report_timeout_seconds:
                raise LeaseLost("The control plane accepts heartbeats, but not the report of the job's outcome.")
            if now >= next_log:
                next_log = now + LOG_SECONDS
                log.warning("worker.report_retried", **self._lease.log_fields, why=error.detail)

        return await retry_until_reachable(report, on_pause=on_pause)

    def _end(self, outcome: str, **more: Any) -> None:
        self.outcome = outcome
        seconds = round(self._running_seconds(), 2)
        log.info(f"worker.job_{outcome}", **self._lease.log_fields, seconds=seconds, **more)

    def _report(self) -> RunReport:
        lease = self._lease
        return checked(
            RunReport,
            seed=_seed_of(lease.graph, lease.about),
            began_after_seconds=lease.began_after_seconds,
            about={name: value for name, value in lease.about.items() if not name.startswith("_")} or None,
        )


def _seed_of(graph: Mapping[str, Any], about: Mapping[str, Any]) -> int | None:
    """Return the seed that the run reported, or the seed in the graph."""
    if isinstance(seed := about.get("seed"), int):
        return seed
    # A sampler that adds no noise ignores its seed.
    samplers = [node for node in graph.values() if node["inputs"].get("add_noise") not in ("disable", False)]
    for node in samplers or graph.values():
        for name in ("seed", "noise_seed"):
            value = node["inputs"].get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
    return None
