"""A worker serves Prometheus metrics."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from comfyrelay.errors import ConfigurationError
from comfyrelay.protocol.progress import Phase
from comfyrelay.worker.comfyui.packing import GpuStatus
from comfyrelay.worker.lease import Lease
from comfyrelay.worker.metrics import WorkerMetrics
from tests.support.console_program import lease


@dataclass
class Cache:
    hits: int = 3
    misses: int = 2
    bytes: int = 4096


@dataclass
class Control:
    is_up: bool = True


@dataclass
class Servers:
    names: dict[str, list[str]] = field(default_factory=lambda: {"self_hosted": ["a", "b"], "cloud": []})

    def online(self, provider: str) -> Sequence[str]:
        # this raises outside the event loop: only there may the names be read, because it changes them
        asyncio.get_running_loop()
        return self.names[provider]


class Worker:
    """The served metrics and their sources."""

    def __init__(self) -> None:
        self.metrics = WorkerMetrics()
        self.close = self.metrics.serve(0, "127.0.0.1")
        # the parts of the real objects that the metrics read
        self.cache: Any = Cache()
        self.control: Any = Control()
        self.servers: Any = Servers()
        self.held: list[Lease] = []

    def watch(self) -> None:
        self.metrics.watch(cache=self.cache, control=self.control, servers=self.servers, held=lambda: self.held)

    async def read(self) -> dict[str, float]:
        async with httpx.AsyncClient() as http:
            answer = await http.get(f"http://127.0.0.1:{self.metrics.port}/metrics")
        assert answer.is_success, answer.text
        return {
            sample.name + "".join(f"|{value}" for _, value in sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    worker = Worker()
    yield worker
    await asyncio.to_thread(worker.close)


async def test_metrics_are_served(worker: Worker) -> None:
    worker.metrics.count_job("completed")
    worker.metrics.count_job("completed")
    worker.metrics.count_job("failed")
    worker.metrics.observe_run(12)
    assert (await worker.read())["comfyrelay_worker_transferred_bytes_total|upload"] == 0
    worker.metrics.count_bytes("download", 1000)
    worker.metrics.count_bytes("download", 24)
    worker.metrics.count_bytes("upload", 7)
    figures = await worker.read()
    assert figures["comfyrelay_worker_jobs_total|completed"] == 2
    assert figures["comfyrelay_worker_jobs_total|failed"] == 1
    # outcomes that have not happened yet are 0, so the first one is an increase
    assert figures["comfyrelay_worker_jobs_total|requeued"] == 0
    assert figures["comfyrelay_worker_run_seconds_sum"] == 12
    assert figures["comfyrelay_worker_run_seconds_bucket|10.0"] == 0
    assert figures["comfyrelay_worker_run_seconds_bucket|20.0"] == 1
    assert figures["comfyrelay_worker_transferred_bytes_total|download"] == 1024
    assert figures["comfyrelay_worker_transferred_bytes_total|upload"] == 7


async def test_current_state_is_read_at_each_scrape(worker: Worker) -> None:
    worker.watch()
    worker.held = [lease(phase=Phase.RUNNING), lease(phase=Phase.FETCHING), lease(phase=Phase.FETCHING)]
    figures = await worker.read()
    assert figures["comfyrelay_worker_held|fetching"] == 2
    assert figures["comfyrelay_worker_held|running"] == 1
    assert figures["comfyrelay_worker_held|storing"] == 0
    assert figures["comfyrelay_worker_comfyui_online|self_hosted"] == 2
    assert figures["comfyrelay_worker_comfyui_online|cloud"] == 0
    assert figures["comfyrelay_worker_control_plane_up"] == 1
    assert figures["comfyrelay_worker_asset_cache_hits_total"] == 3
    assert figures["comfyrelay_worker_asset_cache_misses_total"] == 2
    assert figures["comfyrelay_worker_asset_cache_bytes"] == 4096
    worker.held.clear()
    worker.control.is_up = False
    worker.servers.names["self_hosted"].clear()
    figures = await worker.read()
    assert figures["comfyrelay_worker_held|fetching"] == 0
    assert figures["comfyrelay_worker_control_plane_up"] == 0
    assert figures["comfyrelay_worker_comfyui_online|self_hosted"] == 0


async def test_processes_per_gpu_and_their_reason_are_exposed(worker: Worker) -> None:
    gpus = {"GPU-1": GpuStatus(processes=2, reason="2 processes: no jobs are waiting.", changed="Trying 2 processes.")}
    worker.metrics.watch(
        cache=worker.cache, control=worker.control, servers=worker.servers, held=list, gpus=lambda: gpus
    )
    figures = await worker.read()
    assert figures["comfyrelay_worker_comfyui_on_gpu|GPU-1"] == 2
    assert figures["comfyrelay_worker_packing_info|GPU-1|Trying 2 processes."] == 1


async def test_metrics_are_served_before_the_worker_has_started(worker: Worker) -> None:
    figures = await worker.read()
    assert figures["comfyrelay_worker_control_plane_up"] == 0
    assert figures["comfyrelay_worker_held|running"] == 0


async def test_busy_seconds_grow_only_while_jobs_run(worker: Worker) -> None:
    name = "comfyrelay_worker_busy_seconds_total"
    loop = asyncio.get_running_loop()
    worker.watch()
    assert (await worker.read())[f"{name}|self_hosted"] == 0
    began = loop.time()
    worker.held = [lease(phase=Phase.RUNNING), lease(phase=Phase.RUNNING), lease(phase=Phase.STORING)]
    worker.metrics.update()
    running_at = loop.time()
    first = (await worker.read())[f"{name}|self_hosted"]
    second = (await worker.read())[f"{name}|self_hosted"]
    assert 0 < first < second
    worker.held.clear()
    least = 2 * (loop.time() - running_at)
    worker.metrics.update()
    most = 2 * (loop.time() - began)
    third = (await worker.read())[f"{name}|self_hosted"]
    # two jobs ran in parallel
    assert least <= third <= most
    assert (await worker.read())[f"{name}|self_hosted"] == third
    assert (await worker.read())[f"{name}|cloud"] == 0


async def test_port_in_use_is_a_configuration_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} .*--metrics-port"):
            WorkerMetrics().serve(port, "127.0.0.1")


async def test_closed_metrics_server_refuses_connections() -> None:
    worker = Worker()
    await worker.read()
    await asyncio.to_thread(worker.close)
    with pytest.raises(httpx.ConnectError):
        await worker.read()


async def test_metrics_contain_no_job_ids_or_tokens(worker: Worker) -> None:
    worker.watch()
    worker.held = [lease()]
    async with httpx.AsyncClient() as http:
        text = (await http.get(f"http://127.0.0.1:{worker.metrics.port}/metrics")).text
    assert "comfyrelay_worker_held" in text
    for private in (lease().job_id, lease().workflow_hash, lease().job.lease_token):
        assert private not in text


def test_every_metric_is_documented() -> None:
    page = Path("docs/howto/workers.md").read_text()
    names = {
        family.name for family in WorkerMetrics().registry.collect() if family.name.startswith("comfyrelay_worker_")
    }
    assert len(names) == 12
    assert [name for name in names if name not in page] == []


def test_stopped_worker_keeps_its_last_values() -> None:
    worker = Worker()

    async def live() -> None:
        worker.watch()
        await worker.read()

    asyncio.run(live())
    try:
        figures = asyncio.run(worker.read())
        assert figures["comfyrelay_worker_asset_cache_hits_total"] == 3
    finally:
        worker.close()
