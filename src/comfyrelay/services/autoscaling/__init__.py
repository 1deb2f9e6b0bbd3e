"""Autoscaling: observations, decisions, machines, bursts and usage."""

from comfyrelay.services.autoscaling.burst import Bursting
from comfyrelay.services.autoscaling.durations import Durations
from comfyrelay.services.autoscaling.fleet_metrics import FleetMetricsService
from comfyrelay.services.autoscaling.fleet_observation import WorkerLimits
from comfyrelay.services.autoscaling.history import History
from comfyrelay.services.autoscaling.leadership import Leadership
from comfyrelay.services.autoscaling.loop_state import LoopMonitor
from comfyrelay.services.autoscaling.machines import Machines
from comfyrelay.services.autoscaling.observations import Observations
from comfyrelay.services.autoscaling.usage import UsageService
from comfyrelay.services.autoscaling.views import ScalingViews
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.outbox import Outbox
from comfyrelay.services.queue import Queue
from comfyrelay.services.workers import WorkerServices

__all__ = ["Autoscaling"]

LEADER = "autoscaling"


class Autoscaling:
    def __init__(self, context: ServiceContext, workers: WorkerServices, outbox: Outbox, queue: Queue) -> None:
        databases, offline_seconds = context.databases, context.settings.worker_offline_seconds
        worker_limits = WorkerLimits(
            of_fleet=context.settings.max_fleet_workers,
            of_all=context.settings.max_workers,
            default_fleet=context.default_fleet,
        )
        # Notified when a job arrives or ends, because there may be something to decide.
        self.wakeup = context.notify_channel.subscribe()
        self.leadership = Leadership(databases, LEADER)
        self.snapshots = Observations(databases, offline_seconds=offline_seconds, worker_limits=worker_limits)
        self.machines = Machines(databases, self.leadership, workers.workers, offline_seconds=offline_seconds)
        self.durations = Durations(databases)
        self.history = History(databases)
        self.views = ScalingViews(databases, self.snapshots, self.leadership, workers.fleets, wakeup=self.wakeup)
        self.metrics = FleetMetricsService(databases)
        self.monitor = LoopMonitor(
            databases, self.leadership, offline_seconds=offline_seconds, worker_limits=worker_limits
        )
        self.usage = UsageService(databases)
        self.bursting = Bursting(
            databases,
            queue.decisions,
            wakeup=outbox.recovery.burst_wakeup,
            limit_micros_per_hour=context.settings.burst_micros_per_hour,
            worker_offline_seconds=offline_seconds,
            worker_limits=worker_limits,
            counts=self.monitor.counts,
        )
