"""Prometheus metrics of a worker. The port needs no authentication, so no metric names a tenant or a job."""

import asyncio
import platform
import time
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, Info, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from comfyrelay import __version__
from comfyrelay.errors import ConfigurationError
from comfyrelay.protocol.progress import Phase
from comfyrelay.worker.lease import Lease
from comfyrelay.worker.settings import Provider

OUTCOMES = ("completed", "failed", "requeued", "lost")
DIRECTIONS = ("download", "upload")
PROVIDERS: tuple[str, ...] = get_args(Provider)
# From an upscale to a long video.
BUCKETS = (1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0)
# How long a scrape waits for a busy event loop.
READ_SECONDS = 2.0


class _Cache(Protocol):
    hits: int
    misses: int

    @property
    def bytes(self) -> int: ...


class _ControlPlane(Protocol):
    is_up: bool


class _Servers(Protocol):
    def online(self, provider: str) -> Sequence[str]: ...


class _GpuStatus(Protocol):
    @property
    def processes(self) -> int: ...

    @property
    def changed(self) -> str | None: ...


@dataclass
class _Figures:
    """State of a worker when it was last read."""

    held: Counts[str] = field(default_factory=Counts)
    online: dict[str, int] = field(default_factory=dict)
    is_up: bool = False
    cache_hits: int = 0
    cache_misses: int = 0
    cache_bytes: int = 0
    # by GPU: the number of running ComfyUI processes, and why it last changed
    gpus: dict[str, tuple[int, str]] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PROVIDERS, 0.0))


class WorkerMetrics:
    """The metrics of one worker, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        # port of `serve`
        self.port: int | None = None
        ProcessCollector(registry=self.registry)
        info = Info("comfyrelay_build", "The version that is running.", registry=self.registry)
        info.info({"version": __version__, "python": platform.python_version()})
        self._jobs = Counter(
            "comfyrelay_worker_jobs", "Jobs by what became of them here.", ["outcome"], registry=self.registry
        )
        self._run_seconds = Histogram(
            "comfyrelay_worker_run_seconds", "Time that runs took.", buckets=BUCKETS, registry=self.registry
        )
        self._bytes = Counter(
            "comfyrelay_worker_transferred_bytes",
            "Bytes to and from object storage.",
            ["direction"],
            registry=self.registry,
        )
        # initialised, so that the first event is an increase
        for outcome in OUTCOMES:
            self._jobs.labels(outcome)
        for direction in DIRECTIONS:
            self._bytes.labels(direction)
        self._live = _Live()
        self.registry.register(self._live)

    def ended(self, outcome: str) -> None:
        self._jobs.labels(outcome).inc()

    def ran(self, seconds: float) -> None:
        """Count a finished run."""
        self._run_seconds.observe(seconds)

    def transferred(self, direction: str, count: int) -> None:
        self._bytes.labels(direction).inc(count)

    def watch(
        self,
        *,
        cache: _Cache,
        control: _ControlPlane,
        servers: _Servers,
        held: Callable[[], Sequence[Lease]],
        gpus: Callable[[], Mapping[str, _GpuStatus]] = dict,
    ) -> None:
        """Read these in the running event loop at each scrape."""

        def read(figures: _Figures) -> None:
            figures.held = Counts(lease.phase.value for lease in held())
            figures.online = {provider: len(servers.online(provider)) for provider in PROVIDERS}
            figures.is_up = control.is_up
            figures.gpus = {key: (each.processes, each.changed or "") for key, each in gpus().items()}
            figures.cache_hits, figures.cache_misses, figures.cache_bytes = cache.hits, cache.misses, cache.bytes

        self._live.watch(read, held)

    def changed(self) -> None:
        """Update the metrics after a job changed."""
        self._live.changed()

    def serve(self, port: int, host: str = "0.0.0.0") -> Callable[[], None]:
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


class _Live(Collector):
    """Metrics that are read at scrape time, in the worker's event loop."""

    def __init__(self) -> None:
        self._figures = _Figures()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._read: Callable[[_Figures], None] = lambda _figures: None
        self._held: Callable[[], Sequence[Lease]] = tuple
        self._running: Counts[str] = Counts()
        self._changed_at = 0.0

    def watch(self, read: Callable[[_Figures], None], held: Callable[[], Sequence[Lease]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._read, self._held = read, held
        self.changed()

    def changed(self) -> None:
        now = time.monotonic()
        for provider, runs in self._running.items():
            self._figures.busy[provider] += runs * (now - self._changed_at)
        self._running = Counts(lease.provider for lease in self._held() if lease.phase is Phase.RUNNING)
        self._changed_at = now

    def collect(self) -> Iterator[Metric]:
        figures = self._read_now()
        held = GaugeMetricFamily("comfyrelay_worker_held", "Jobs that are held, by phase.", labels=["phase"])
        for phase in Phase:
            held.add_metric([phase.value], figures.held[phase.value])
        yield held
        online = GaugeMetricFamily(
            "comfyrelay_worker_comfyui_online", "Servers that can be given a job.", labels=["provider"]
        )
        for provider, count in figures.online.items():
            online.add_metric([provider], count)
        yield online
        yield from _about_gpus(figures)
        busy = CounterMetricFamily(
            "comfyrelay_worker_busy_seconds", "Seconds that runs took, with those under way.", labels=["provider"]
        )
        for provider, seconds in figures.busy.items():
            busy.add_metric([provider], seconds)
        yield busy
        name = "comfyrelay_worker_control_plane_up"
        yield GaugeMetricFamily(name, "Whether the last call was answered.", value=figures.is_up)
        name = "comfyrelay_worker_asset_cache"
        yield CounterMetricFamily(f"{name}_hits", "Effect assets that were there.", value=figures.cache_hits)
        yield CounterMetricFamily(f"{name}_misses", "Effect assets that had to be fetched.", value=figures.cache_misses)
        yield GaugeMetricFamily(f"{name}_bytes", "Bytes of effect assets that are kept.", value=figures.cache_bytes)

    def describe(self) -> Iterator[Metric]:
        """Empty, so that registering does not trigger a read."""
        return iter(())

    def _read_now(self) -> _Figures:
        done: Future[None] = Future()

        def read() -> None:
            try:
                self.changed()
                self._read(self._figures)
            finally:
                done.set_result(None)

        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(read)
                done.result(READ_SECONDS)
            except (RuntimeError, TimeoutError):
                # the loop is closed or busy: return the last values
                pass
        return self._figures


def _about_gpus(figures: _Figures) -> Iterator[Metric]:
    name = "comfyrelay_worker_comfyui_on_gpu"
    counts = GaugeMetricFamily(name, "ComfyUI that are up on a GPU.", labels=["gpu"])
    reasons = InfoMetricFamily("comfyrelay_worker_packing", "Why that was last changed.", labels=["gpu"])
    for gpu, (count, why) in figures.gpus.items():
        counts.add_metric([gpu], count)
        if why:
            reasons.add_metric([gpu], {"reason": why})
    yield counts
    yield reasons
