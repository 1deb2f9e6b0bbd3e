"""Prometheus metrics of a worker. The port needs no authentication, so no metric names a tenant or a job."""

import asyncio
import platform
import time
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, Info, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from comfyrelay import __version__
from comfyrelay.errors import ConfigurationError
from comfyrelay.protocol.progress import Phase
from comfyrelay.worker.comfyui.packing import GpuStatus
from comfyrelay.worker.comfyui.servers import Servers
from comfyrelay.worker.control import ControlPlane
from comfyrelay.worker.files.assets import AssetCache
from comfyrelay.worker.lease import Lease
from comfyrelay.worker.settings import Provider

OUTCOMES = ("completed", "failed", "requeued", "lost")
DIRECTIONS = ("download", "upload")
PROVIDERS: tuple[str, ...] = get_args(Provider)
# Seconds, from an upscale to a long video.
BUCKETS = (1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0)
# How long a scrape waits for a busy event loop.
READ_SECONDS = 2.0


@dataclass
class _Snapshot:
    """The state of a worker at the last scrape."""

    held: Counts[str] = field(default_factory=Counts)
    online: dict[str, int] = field(default_factory=dict)
    is_up: bool = False
    cache_hits: int = 0
    cache_misses: int = 0
    cache_bytes: int = 0
    # The number of running ComfyUI processes on each GPU, and the reason for its last change.
    gpus: dict[str, tuple[int, str]] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PROVIDERS, 0.0))


class WorkerMetrics:
    """The metrics of one worker, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        # Set by `serve`.
        self.port: int | None = None
        ProcessCollector(registry=self.registry)
        info = Info("comfyrelay_build", "The version that is running.", registry=self.registry)
        info.info({"version": __version__, "python": platform.python_version()})
        self._jobs = Counter(
            "comfyrelay_worker_jobs", "Jobs by their outcome on this worker.", ["outcome"], registry=self.registry
        )
        self._run_seconds = Histogram(
            "comfyrelay_worker_run_seconds", "Duration of runs.", buckets=BUCKETS, registry=self.registry
        )
        self._bytes = Counter(
            "comfyrelay_worker_transferred_bytes",
            "Bytes to and from object storage.",
            ["direction"],
            registry=self.registry,
        )
        # Counters start at zero, so that the first event is an increase.
        for outcome in OUTCOMES:
            self._jobs.labels(outcome)
        for direction in DIRECTIONS:
            self._bytes.labels(direction)
        self._live = _LiveCollector()
        self.registry.register(self._live)

    def count_job(self, outcome: str) -> None:
        self._jobs.labels(outcome).inc()

    def observe_run(self, seconds: float) -> None:
        self._run_seconds.observe(seconds)

    def count_bytes(self, direction: str, count: int) -> None:
        self._bytes.labels(direction).inc(count)

    def watch(
        self,
        *,
        cache: AssetCache,
        control: ControlPlane,
        servers: Servers,
        held: Callable[[], Sequence[Lease]],
        gpus: Callable[[], Mapping[str, GpuStatus]] = dict,
    ) -> None:
        """Read these objects in the running event loop at each scrape."""

        def read(snapshot: _Snapshot) -> None:
            snapshot.held = Counts(lease.phase.value for lease in held())
            snapshot.online = {provider: len(servers.online(provider)) for provider in PROVIDERS}
            snapshot.is_up = control.is_up
            snapshot.gpus = {key: (status.processes, status.changed or "") for key, status in gpus().items()}
            snapshot.cache_hits, snapshot.cache_misses, snapshot.cache_bytes = cache.hits, cache.misses, cache.bytes

        self._live.watch(read, held)

    def update(self) -> None:
        """Update the metrics after a job changed."""
        self._live.update()

    def serve(self, port: int, host: str) -> Callable[[], None]:
        """Serve the metrics from a thread. Returns a function that stops it."""
        try:
            server, thread = start_http_server(port, host, registry=self.registry)
        except OSError as error:
            raise ConfigurationError(
                f"Cannot serve metrics at port {port} ({error.strerror}). Choose another with --metrics-port."
            ) from None
        self.port = server.server_port

        def close() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return close


class _LiveCollector(Collector):
    """Collects metrics at scrape time, in the worker's event loop."""

    def __init__(self) -> None:
        self._snapshot = _Snapshot()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._read: Callable[[_Snapshot], None] = lambda _snapshot: None
        self._held: Callable[[], Sequence[Lease]] = tuple
        self._running: Counts[str] = Counts()
        self._updated_at = 0.0

    def watch(self, read: Callable[[_Snapshot], None], held: Callable[[], Sequence[Lease]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._read, self._held = read, held
        self.update()

    def update(self) -> None:
        now = time.monotonic()
        for provider, runs in self._running.items():
            self._snapshot.busy[provider] += runs * (now - self._updated_at)
        self._running = Counts(lease.provider for lease in self._held() if lease.phase is Phase.RUNNING)
        self._updated_at = now

    def collect(self) -> Iterator[Metric]:
        snapshot = self._read_now()
        held = GaugeMetricFamily("comfyrelay_worker_held", "Jobs that are held, by phase.", labels=["phase"])
        for phase in Phase:
            held.add_metric([phase.value], snapshot.held[phase.value])
        yield held
        online = GaugeMetricFamily(
            "comfyrelay_worker_comfyui_online", "Servers that can be given a job.", labels=["provider"]
        )
        for provider, count in snapshot.online.items():
            online.add_metric([provider], count)
        yield online
        yield from _gpu_metrics(snapshot)
        busy = CounterMetricFamily(
            "comfyrelay_worker_busy_seconds", "Seconds of finished and current runs.", labels=["provider"]
        )
        for provider, seconds in snapshot.busy.items():
            busy.add_metric([provider], seconds)
        yield busy
        name = "comfyrelay_worker_control_plane_up"
        yield GaugeMetricFamily(name, "Whether the last call was answered.", value=snapshot.is_up)
        name = "comfyrelay_worker_asset_cache"
        yield CounterMetricFamily(f"{name}_hits", "Effect assets that were cached.", value=snapshot.cache_hits)
        yield CounterMetricFamily(f"{name}_misses", "Effect assets that were fetched.", value=snapshot.cache_misses)
        yield GaugeMetricFamily(f"{name}_bytes", "Bytes of cached effect assets.", value=snapshot.cache_bytes)

    def describe(self) -> Iterator[Metric]:
        """Return nothing, so that registering does not trigger a read."""
        return iter(())

    def _read_now(self) -> _Snapshot:
        done: Future[None] = Future()

        def read() -> None:
            try:
                self.update()
                self._read(self._snapshot)
            finally:
                done.set_result(None)

        if self._loop is not None:
            # If the loop is closed or busy, return the last values.
            with suppress(RuntimeError, TimeoutError):
                self._loop.call_soon_threadsafe(read)
                done.result(READ_SECONDS)
        return self._snapshot


def _gpu_metrics(snapshot: _Snapshot) -> Iterator[Metric]:
    name = "comfyrelay_worker_comfyui_on_gpu"
    counts = GaugeMetricFamily(name, "ComfyUI processes that are up on a GPU.", labels=["gpu"])
    reasons = InfoMetricFamily("comfyrelay_worker_packing", "Why the number last changed.", labels=["gpu"])
    for gpu, (count, why) in snapshot.gpus.items():
        counts.add_metric([gpu], count)
        if why:
            reasons.add_metric([gpu], {"reason": why})
    yield counts
    yield reasons
