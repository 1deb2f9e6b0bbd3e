"""The dispatch queue: lease, extend, settle, stop and reap dispatches."""

from collections.abc import Callable, Sequence
from datetime import timedelta

from comfyrelay.domain.queue.lifecycle import Dispatch
from comfyrelay.domain.queue.routing import WarmPolicy
from comfyrelay.media.inspection import ProbeLimits, Probes
from comfyrelay.services.catalogue.graphs import Graphs
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.outbox import Outbox
from comfyrelay.services.queue.control import JobControl
from comfyrelay.services.queue.decisions import Decisions
from comfyrelay.services.queue.demand import Demand
from comfyrelay.services.queue.graph_building import GraphBuilder
from comfyrelay.services.queue.heartbeats import HeartbeatService
from comfyrelay.services.queue.lease_payload import LeasePayloads
from comfyrelay.services.queue.leasing import Leasing
from comfyrelay.services.queue.outputs import Outputs
from comfyrelay.services.queue.polls import Polls
from comfyrelay.services.queue.posters import Posters
from comfyrelay.services.queue.previews import PreviewService
from comfyrelay.services.queue.reaper import Reaper
from comfyrelay.services.queue.settle import SettleService
from comfyrelay.services.queue.stop_requests import StopRequests
from comfyrelay.services.queue.wait_reasons import WaitReasons
from comfyrelay.services.queue.worker_logs import WorkerLogService
from comfyrelay.settings import Settings

__all__ = ["Queue"]


class Queue:
    def __init__(
        self,
        context: ServiceContext,
        outbox: Outbox,
        graphs: Graphs,
        *,
        comfyui_unreachable: Callable[[str], Sequence[str]],
        is_worker_starting: Callable[[str], bool],
        why_here: Callable[[int], str | None],
        on_leased: Callable[[Sequence[Dispatch]], None],
        on_transition: Callable[[], None],
    ) -> None:
        settings, databases, delivery = context.settings, context.databases, outbox.delivery
        ttl = timedelta(seconds=settings.lease_ttl_seconds)
        self.stop_requests = StopRequests(databases)
        self.previews = PreviewService(context.objects, context.notify_channel)
        self.decisions = Decisions(
            databases,
            delivery,
            context.notify_channel,
            self.stop_requests,
            self.previews,
            policy=context.failover,
            on_transition=on_transition,
        )
        self.leasing = Leasing(
            databases,
            delivery,
            GraphBuilder(databases, self.decisions, graphs, deferral=timedelta(seconds=settings.retry_backoff_seconds)),
            ttl=ttl,
            warm=_warm_policy(settings),
            worker_stale_seconds=settings.worker_stale_seconds,
            on_leased=on_leased,
        )
        self.demand = Demand(databases, self.decisions, worker_stale_seconds=settings.worker_stale_seconds)
        self.settle = SettleService(
            databases, self.decisions, delivery, worker_stale_seconds=settings.worker_stale_seconds
        )
        self.lease_payloads = _lease_payloads(context)
        self.polls = Polls(self.leasing, self.demand, self.settle, context.notify_channel)
        self.worker_logs = WorkerLogService(databases, context.notify_channel, on_request=self.polls.release_poll)
        self.heartbeats = HeartbeatService(databases, ttl=ttl)
        self.posters = Posters(_probes(settings), context.objects, seconds=settings.poster_seconds)
        self.outputs = Outputs(
            databases,
            self.lease_payloads,
            self.settle,
            context.objects,
            _probes(settings),
            posters=self.posters,
            validation=settings.output_validation,
            max_bytes=settings.max_output_bytes,
        )
        self.control = JobControl(databases, self.decisions, outbox.recovery)
        self.reaper = Reaper(
            databases,
            self.decisions,
            self.demand,
            waiting=self.polls.waiting,
            grace=timedelta(seconds=settings.late_seconds),
        )
        self.wait_reasons = WaitReasons(
            databases,
            worker_stale_seconds=settings.worker_stale_seconds,
            comfyui_unreachable=comfyui_unreachable,
            is_worker_starting=is_worker_starting,
            why_here=why_here,
        )


def _warm_policy(settings: Settings) -> WarmPolicy:
    longest_wait = timedelta(seconds=settings.warm_wait_seconds)
    return WarmPolicy(lookahead_rows=settings.warm_lookahead_rows, longest_wait=longest_wait)


def _lease_payloads(context: ServiceContext) -> LeasePayloads:
    return LeasePayloads(
        context.databases,
        context.objects,
        ttl_seconds=context.settings.lease_url_ttl_seconds,
        max_output_bytes=context.settings.max_output_bytes,
        max_output_files=context.settings.max_output_files,
    )


def _probes(settings: Settings) -> Probes:
    limits = ProbeLimits(
        max_pixels=settings.probe_max_pixels,
        max_frames=settings.probe_max_frames,
        max_memory_bytes=settings.probe_memory_bytes,
        timeout_seconds=settings.probe_timeout_seconds,
        drawing_seconds=settings.poster_seconds,
    )
    return Probes(limits, processes=settings.probe_processes)
