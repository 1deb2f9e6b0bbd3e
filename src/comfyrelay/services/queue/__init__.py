"""The dispatch queue: lease, extend, settle, stop and reap dispatches."""

from collections.abc import Callable, Sequence

from comfyrelay.domain.queue.dispatch import Dispatch
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
from comfyrelay.services.queue.pauses import QueuePauses
from comfyrelay.services.queue.polls import Polls
from comfyrelay.services.queue.posters import Posters
from comfyrelay.services.queue.previews import PreviewService
from comfyrelay.services.queue.reaper import Reaper
from comfyrelay.services.queue.settle import SettleService
from comfyrelay.services.queue.stop_requests import StopRequests
from comfyrelay.services.queue.wait_reasons import WaitReasons
from comfyrelay.settings import Settings

__all__ = ["Queue", "open_probes"]


class Queue:
    def __init__(
        self,
        context: ServiceContext,
        outbox: Outbox,
        graphs: Graphs,
        *,
        why_not_burst: Callable[[int], str | None],
        on_leased: Callable[[Sequence[Dispatch]], None],
        on_transition: Callable[[], None],
    ) -> None:
        settings, databases, delivery = context.settings, context.databases, outbox.delivery
        self.stop_requests = StopRequests(databases)
        self.previews = PreviewService(context.objects, context.notify_channel)
        self.decisions = Decisions(context, delivery, self.stop_requests, self.previews, on_transition=on_transition)
        self.leasing = Leasing(context, delivery, GraphBuilder(context, self.decisions, graphs), on_leased=on_leased)
        self.demand = Demand(context, self.decisions)
        self.settle = SettleService(context, self.decisions, delivery)
        self.lease_payloads = LeasePayloads(databases, context.objects, settings)
        self.polls = Polls(self.leasing, self.demand, self.settle, context.notify_channel)
        self.heartbeats = HeartbeatService(databases, self.decisions, ttl_seconds=settings.lease_ttl_seconds)
        self.posters = Posters(open_probes(settings), context.objects, seconds=settings.poster_seconds)
        self.outputs = Outputs(context, self.lease_payloads, self.settle, open_probes(settings), self.posters)
        self.control = JobControl(
            databases, self.decisions, outbox.recovery, are_own_runs_charged=settings.are_own_runs_charged
        )
        self.pauses = QueuePauses(context, self.decisions)
        self.reaper = Reaper(context, self.decisions, self.demand, waiting=self.polls.waiting)
        self.wait_reasons = WaitReasons(context, why_not_burst=why_not_burst)


def open_probes(settings: Settings) -> Probes:
    """Return processes that inspect media with the limits of this server."""
    limits = ProbeLimits(
        max_pixels=settings.probe_max_pixels,
        max_frames=settings.probe_max_frames,
        max_memory_bytes=settings.probe_memory_bytes,
        timeout_seconds=settings.probe_timeout_seconds,
        drawing_seconds=settings.poster_seconds,
    )
    return Probes(limits, processes=settings.probe_processes)
