"""The dispatch queue: leases are taken, kept alive, settled, stopped and reaped here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from comfyrelay.domain.routing import WarmPolicy
from comfyrelay.services.catalogue.graphs import Graphs
from comfyrelay.services.ground import Ground
from comfyrelay.services.outbox import Outbox
from comfyrelay.services.queue.building import Building
from comfyrelay.services.queue.control import Control
from comfyrelay.services.queue.decisions import Decisions
from comfyrelay.services.queue.demand import Demand
from comfyrelay.services.queue.handover import Handover
from comfyrelay.services.queue.heartbeats import Heartbeats
from comfyrelay.services.queue.leasing import Leasing
from comfyrelay.services.queue.outputs import Outputs
from comfyrelay.services.queue.polls import Polls
from comfyrelay.services.queue.reaper import Reaper
from comfyrelay.services.queue.settle import Settle
from comfyrelay.services.queue.stops import Stops
from comfyrelay.services.queue.waiting import WhyWaiting

__all__ = ["Queue"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Queue:
    decisions: Decisions
    leasing: Leasing
    demand: Demand
    polls: Polls
    handover: Handover
    heartbeats: Heartbeats
    stops: Stops
    outputs: Outputs
    settle: Settle
    control: Control
    reaper: Reaper
    waiting: WhyWaiting

    @classmethod
    def over(cls, ground: Ground, outbox: Outbox, graphs: Graphs, *, comfyui_away: Callable[[], Sequence[str]]) -> Self:
        settings, databases, delivery = ground.settings, ground.databases, outbox.delivery
        ttl = timedelta(seconds=settings.lease_ttl_seconds)
        stops = Stops(databases)
        decisions = Decisions(databases, delivery, ground.wakeup, stops, policy=ground.failover)
        leasing = Leasing(
            databases,
            delivery,
            Building(databases, decisions, graphs, deferral=timedelta(seconds=settings.retry_backoff_seconds)),
            ttl=ttl,
            warm=WarmPolicy(
                lookahead_rows=settings.warm_lookahead_rows,
                longest_wait=timedelta(seconds=settings.warm_wait_seconds),
            ),
        )
        demand = Demand(databases, decisions)
        settle = Settle(databases, decisions, delivery)
        handover = Handover(databases, ground.objects, ttl_seconds=settings.presigned_ttl_seconds)
        return cls(
            decisions=decisions,
            leasing=leasing,
            demand=demand,
            polls=Polls(leasing, demand, settle, ground.wakeup),
            handover=handover,
            heartbeats=Heartbeats(databases, ttl=ttl),
            stops=stops,
            outputs=Outputs(databases, handover, ground.objects, validation=settings.output_validation),
            settle=settle,
            control=Control(databases, decisions, outbox.recovery),
            reaper=Reaper(databases, decisions),
            waiting=WhyWaiting(
                databases, worker_stale_seconds=settings.worker_stale_seconds, comfyui_away=comfyui_away
            ),
        )
