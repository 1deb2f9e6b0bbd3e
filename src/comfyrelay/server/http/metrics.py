"""Prometheus metrics. The endpoint is public, so no label names a tenant, user, job or worker."""

import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from comfyrelay import __version__
from comfyrelay.domain.deliveries import DeliveryStatus
from comfyrelay.domain.queue.states import TERMINAL_JOB
from comfyrelay.services.autoscaling.fleet_metrics import FleetMetrics
from comfyrelay.services.autoscaling.loop_state import LoopState
from comfyrelay.services.engine import Engine
from comfyrelay.services.operations.metrics import Metrics
from comfyrelay.services.operations.repair import SAFE
from comfyrelay.services.timed_cache import TimedCache

# From the time of a cached response to that of a parked poll.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
NO_ROUTE = "(none)"
CACHE_SECONDS = 1.0

# Attribute of a fleet's metrics → metric name and help text.
FLEET_METRICS = {
    "queue_depth": ("queue_depth", "Jobs of the fleet's workflows that are queued or leased."),
    "backlog_per_instance": (
        "backlog_per_instance",
        "Queue depth per active worker; without workers, the whole queue.",
    ),
    "active_workers": ("active_workers", "Workers with a request in the last five minutes."),
    "available_capacity": ("available_capacity", "Jobs that the active workers could lease now."),
    "job_processing_p50": ("job_processing_p50_seconds", "Median run time of jobs completed in the last ten minutes."),
    "error_rate": ("error_rate", "Share of failed jobs among all that ended in the last five minutes."),
    "lease_expired_count": ("leases_expired", "Leases that expired in the last five minutes."),
    "spot_interruption_count": ("spot_interruptions", "Jobs requeued by Spot interruptions in the last five minutes."),
}

# Attribute of an autoscaled fleet → help text.
SCALING_METRICS = {
    "desired": "Number of machines that the last decision requested.",
    "failed_rounds": "Consecutive rounds of launches that produced no worker.",
    "is_launching_paused": "Whether launching is paused after failed launches.",
}


class ServerMetrics:
    """The metrics of one application, in its own registry."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        info = Info("comfyrelay_build", "The version that is running.", registry=self.registry)
        info.info({"version": __version__, "python": platform.python_version()})
        self.requests = Histogram(
            "comfyrelay_request_seconds",
            "Time until a response starts, by route and status.",
            ["method", "route", "status"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._depth = self._gauge("queue_depth", "Jobs waiting to be leased.", "workflow", "stage")
        self._age = self._gauge("queue_oldest_seconds", "Age of the oldest waiting job.", "workflow", "stage")
        self._leases = self._gauge("leases", "Jobs leased by a worker.", "workflow", "stage")
        self._parked = self._gauge("pollers_parked", "Polls waiting for a job in this process.")
        self._suspects = self._gauge(
            "workflows_blocked_on_several_workers", "Workflows for which at least two workers are blocked."
        )
        self._outbox = self._gauge("outbox_oldest_seconds", "Age of the oldest outbox entry.", "shard", "direction")
        self._webhooks = self._gauge("webhooks_undelivered", "Webhooks that have not been delivered.", "shard")
        self._up = self._gauge("database_up", "Whether the database is reachable.", "database")
        self._fleets = {
            figure: self._gauge(f"fleet_{name}", about, "fleet", "stage")
            for figure, (name, about) in FLEET_METRICS.items()
        }
        self._machines = self._gauge("fleet_machines", "Machines of the fleet by state.", "fleet", "stage", "state")
        self._scaled = {
            name: self._gauge(f"fleet_{name}", about, "fleet", "stage") for name, about in SCALING_METRICS.items()
        }
        self._leader = self._gauge("autoscaling_has_leader", "Whether any process scales the fleets.")
        self._is_leader = self._gauge("autoscaling_is_leader", "Whether this process scales the fleets.")
        self.registry.register(_Counts(engine))
        self._cache = TimedCache(self._render)

    async def render(self) -> bytes:
        """Return all metrics in the text format, at most a second old; values from the databases may be older. They are
        cached because the endpoint is public and rendering blocks the event loop for milliseconds."""
        return await self._cache.get(seconds=CACHE_SECONDS)

    async def _render(self) -> bytes:
        metrics = await self._engine.operations.metrics.read()
        fleets = await self._engine.autoscaling.metrics.recent()
        loop = await self._engine.autoscaling.monitor.recent()
        # There is no await from here on: concurrent calls must not interleave.
        self._set(metrics)
        self._set_fleets(fleets)
        self._set_loop(loop)
        return generate_latest(self.registry)

    def _set(self, metrics: Metrics) -> None:
        self._parked.set(self._engine.queue.polls.parked)
        self._suspects.set(metrics.suspects)
        _set_all(self._depth, {(queue.workflow, queue.stage): queue.depth for queue in metrics.queues})
        _set_all(self._age, {(queue.workflow, queue.stage): queue.oldest_seconds for queue in metrics.queues})
        _set_all(self._leases, {(queue.workflow, queue.stage): queue.leases for queue in metrics.leased})
        _set_all(self._up, {(name,): is_up for name, is_up in metrics.up.items()})
        _set_all(self._webhooks, {(name,): shard.undelivered_webhooks for name, shard in metrics.shards.items()})
        ages: dict[tuple[str, ...], float] = {
            (name, "to_queue"): shard.submission_seconds for name, shard in metrics.shards.items()
        }
        if metrics.up[self._engine.databases.central.name]:
            ages |= {
                (name, "to_shard"): metrics.outbox_seconds.get(name, 0.0) for name in self._engine.databases.shards
            }
        _set_all(self._outbox, ages)

    def _set_fleets(self, fleets: Sequence[FleetMetrics]) -> None:
        for figure, gauge in self._fleets.items():
            found = {(row.fleet, row.stage): getattr(row, figure) for row in fleets}
            _set_all(gauge, {labels: value for labels, value in found.items() if value is not None})

    def _set_loop(self, loop: LoopState | None) -> None:
        fleets = loop.fleets if loop is not None else ()
        by_state: dict[tuple[str, ...], float] = {
            (fleet.fleet, fleet.stage, str(state)): count for fleet in fleets for state, count in fleet.machines.items()
        }
        _set_all(self._machines, by_state)
        for name, gauge in self._scaled.items():
            found = {(fleet.fleet, fleet.stage): getattr(fleet, name) for fleet in fleets}
            _set_all(gauge, {labels: value for labels, value in found.items() if value is not None})
        # Without an autoscaled fleet, no process is the leader.
        self._leader.set(loop is not None and loop.has_leader)
        self._is_leader.set(loop is not None and loop.is_leader)

    def _gauge(self, name: str, about: str, *labels: str) -> Gauge:
        return Gauge(f"comfyrelay_{name}", about, labels, registry=self.registry)


class _Counts(Collector):
    """Counters of the services, read on collection."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        operations, usage = self._engine.operations, self._engine.autoscaling.usage
        counts = self._engine.autoscaling.monitor.counts
        ended = [([status], operations.metrics.ended[status]) for status in sorted(TERMINAL_JOB)]
        yield _counter("jobs_ended", "Ended jobs by final status.", ["status"], ended)
        repaired = [([kind], operations.auto_repair.repaired[kind]) for kind in sorted(SAFE)]
        yield _counter("repaired", "Inconsistencies repaired automatically.", ["kind"], repaired)
        attempts = [([status], self._engine.webhooks.deliveries.attempts[status]) for status in DeliveryStatus]
        about = "Attempts to deliver a webhook by status. Pending deliveries are retried."
        yield _counter("webhook_attempts", about, ["status"], attempts)
        about = "Seconds of machine slots by use, as counted by this process."
        yield _counter("fleet_gpu_seconds", about, ["fleet", "stage", "kind"], sorted(usage.gpu_seconds.items()))
        about = "Cost of machine slots, in the currency of the prices."
        yield _counter("fleet_cost", about, ["fleet", "stage"], sorted(usage.cost.items()))
        about = "Launches that a provider refused, by kind, as counted by the leader."
        yield _counter("fleet_launches_refused", about, ["fleet", "stage", "kind"], sorted(counts.refusals.items()))
        about = "Failed calls to a provider, as counted by the leader."
        yield _counter(
            "fleet_provider_errors", about, ["fleet", "stage", "call"], sorted(counts.provider_errors.items())
        )
        about = "Jobs that this process moved to or from the cloud."
        yield _counter("bursts", about, ["stage", "to"], sorted(counts.bursts.items()))


def _counter(name: str, about: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]) -> Metric:
    counter = CounterMetricFamily(f"comfyrelay_{name}", about, labels=labels)
    for label_values, value in values:
        counter.add_metric([*label_values], value)
    return counter


class Latencies:
    """Measures each request until its response starts, because streams and downloads may last long."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._requests = metrics.requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_at = time.perf_counter()
        is_answered = False

        async def send_and_measure(message: Message) -> None:
            nonlocal is_answered
            if message["type"] == "http.response.start" and not is_answered:
                is_answered = True
                self._observe(scope, message["status"], started_at)
            await send(message)

        try:
            await self._app(scope, receive, send_and_measure)
        except Exception:
            if not is_answered:
                self._observe(scope, 500, started_at)
            raise

    def _observe(self, scope: Scope, status: int, started_at: float) -> None:
        # The label is the route template: paths contain ids and are unbounded.
        route = getattr(scope.get("route"), "path", NO_ROUTE)
        method = scope["method"] if route != NO_ROUTE else NO_ROUTE
        self._requests.labels(method, route, str(status)).observe(time.perf_counter() - started_at)


def _set_all(gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
    """Replace all values of a gauge."""
    gauge.clear()
    for labels, value in values.items():
        gauge.labels(*labels).set(value)
