"""A worker reports its GPUs."""

import asyncio
from typing import Any

import pytest

from comfyrelay.comfyui.processes import gpus
from comfyrelay.simulator import Simulator
from comfyrelay.worker.comfyui import devices
from comfyrelay.worker.comfyui.devices import Devices, DriverGpu, describe, local_gpus, readable
from comfyrelay.worker.comfyui.servers import Servers
from comfyrelay.worker.settings import WorkerSettings
from tests.support.world import PATIENCE_SECONDS

GIB = 1024**3


def stats(name: str = "cuda:0 NVIDIA RTX : cudaMallocAsync", *, total: int = 24 * GIB, free: int = 20 * GIB) -> Any:
    return {"devices": [{"name": name, "vram_total": total, "vram_free": free, "torch_vram_free": GIB}]}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("cuda:0 NVIDIA GeForce RTX 4090 : cudaMallocAsync", "NVIDIA GeForce RTX 4090"),
        ("cuda:1 NVIDIA H200 : native", "NVIDIA H200"),
        ("cpu", "cpu"),
        ("Apple M3", "Apple M3"),
        ("mps", "mps"),
    ],
)
def test_gpu_name_is_reduced_to_its_model(name: str, shown: str) -> None:
    assert readable(name) == shown


def test_used_memory_is_total_minus_free() -> None:
    expected = {"name": "NVIDIA RTX", "memory_total": 24 * GIB, "memory_used": 4 * GIB}
    assert describe(stats(), []) == expected
    # A server that splits work over several GPUs is measured by its first GPU.
    both = {"devices": [*stats()["devices"], *stats("cuda:1 NVIDIA RTX", free=GIB)["devices"]]}
    assert describe(both, []) == expected


def test_load_among_identical_gpus_is_matched_by_memory_use() -> None:
    gpus = [
        DriverGpu(name="NVIDIA RTX", memory_used=1 * GIB, load=0.1),
        DriverGpu(name="NVIDIA RTX", memory_used=5 * GIB, load=0.9),
        DriverGpu(name="NVIDIA OTHER", memory_used=5 * GIB, load=0.5),
    ]
    assert describe(stats(), gpus)["load"] == 0.9
    assert "load" not in describe(stats("cuda:0 NVIDIA H200"), gpus)


@pytest.mark.parametrize("stats_answer", [{}, {"devices": []}, {"devices": [{"name": 1}]}, {"devices": "x"}])
def test_server_without_usable_stats_has_no_device_details(stats_answer: Any) -> None:
    assert describe(stats_answer, []) == {}


def test_load_is_unknown_without_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> Any:
        raise ImportError

    monkeypatch.setattr(gpus, "import_module", missing)
    assert local_gpus() == []


async def test_every_server_is_listed_and_unreachable_ones_have_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Simulator(vram_bytes=20 * GIB) as simulator:
        changed = asyncio.Event()
        settings = WorkerSettings(comfyui_base_url=[simulator.url, "http://127.0.0.1:1"])
        servers = Servers(settings, on_change=lambda: changed.set() if servers.unavailable_reasons else None)
        await servers.open()
        try:
            await asyncio.wait_for(changed.wait(), PATIENCE_SECONDS)
            gpus = [DriverGpu(name="simulator", memory_used=0, load=0.5)]
            found = Devices(servers, is_busy=lambda: False, gpus=lambda: gpus)
            await found.refresh()
            here, unreachable = found.current
            assert here.model_dump(exclude_unset=True) == {
                "server": "comfyui-1",
                "name": "simulator",
                "memory_total": 20 * GIB,
                "memory_used": 1 * GIB,
                "load": 0.5,
            }
            assert unreachable.model_dump(exclude_unset=True) == {
                "server": "comfyui-2",
                "unavailable_reason": unreachable.unavailable_reason,
            }
            assert "127.0.0.1:1" in (unreachable.unavailable_reason or "")
            # One of the servers can be used.
            assert found.unavailable is None
            # the control plane would silently drop an unknown field
            monkeypatch.setattr(devices, "describe", lambda *_: {"memory_totl": 1})
            with pytest.raises(TypeError, match="Device has no field memory_totl"):
                await found.refresh()
        finally:
            await servers.close()
