"""Simulators share a GPU: its memory can run out, its time is shared, and a killed process frees its memory."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.errors import InvalidInput, OutOfMemory
from comfyrelay.simulator import Simulator, read_gpu
from comfyrelay.simulator.gpu import GIB
from tests.support.gpu_pool import gpu_options, open_gpu, picture

GRAPH = picture(1, model="simulator.safetensors")


async def memory(client: ComfyClient) -> dict[str, int]:
    [device] = (await client.system_stats())["devices"]
    return {name: device[name] // GIB for name in ("vram_total", "vram_free", "torch_vram_total")}


async def test_memory_of_another_process_is_unavailable_until_released(tmp_path: Path) -> None:
    gpu = gpu_options(tmp_path)
    async with (
        Simulator(gpu=gpu) as one,
        Simulator(gpu=gpu) as two,
        ComfyClient(one.url) as a,
        ComfyClient(two.url) as b,
    ):
        await a.run(GRAPH)
        assert await memory(a) == {"vram_total": 8, "vram_free": 3, "torch_vram_total": 5}
        assert await memory(b) == {"vram_total": 8, "vram_free": 3, "torch_vram_total": 0}
        with pytest.raises(OutOfMemory) as failed:
            await b.run(GRAPH)
        assert "This error means you ran out of memory on your GPU." in (failed.value.raw or "")
        await a.free()
        assert await memory(a) == {"vram_total": 8, "vram_free": 8, "torch_vram_total": 0}
        await b.run(GRAPH)


async def test_stopped_process_releases_its_memory(tmp_path: Path) -> None:
    gpu = gpu_options(tmp_path)
    async with (
        Simulator(gpu=gpu) as one,
        Simulator(gpu=gpu) as two,
        ComfyClient(one.url) as a,
        ComfyClient(two.url) as b,
    ):
        await a.run(GRAPH)
        await one.stop()
        await b.run(GRAPH)


def test_older_model_is_unloaded_for_a_new_one(tmp_path: Path) -> None:
    gpu = open_gpu(gpu_options(tmp_path))
    assert gpu.load("a", pixels=0)
    assert gpu.load("b", pixels=0)
    assert not gpu.has("a")
    assert gpu.has("b")


def test_process_uses_memory_for_its_context_and_pixels(tmp_path: Path) -> None:
    gpu = open_gpu(gpu_options(tmp_path, context_bytes=GIB, pixel_bytes=1024))
    assert gpu.free == 7 * GIB
    assert gpu.load("a", pixels=1024**2)
    assert gpu.free == GIB
    assert not gpu.load("a", pixels=3 * 1024**2)
    # ComfyUI unloads everything after it ran out of memory
    assert gpu.free == 7 * GIB


def test_busy_counts_servers_that_are_sampling(tmp_path: Path) -> None:
    one, two = open_gpu(gpu_options(tmp_path)), open_gpu(gpu_options(tmp_path))
    with one.sampling():
        assert two.busy == 1
        with two.sampling():
            assert one.busy == 2
    assert one.busy == 0


async def test_model_remains_loaded_for_the_next_prompt(tmp_path: Path) -> None:
    """There is no memory for a second copy of the model."""
    async with Simulator(gpu=gpu_options(tmp_path)) as simulator, ComfyClient(simulator.url) as client:
        await client.run(GRAPH)
        await client.run(picture(2, model="simulator.safetensors"))
        assert (await memory(client))["torch_vram_total"] == 5


async def test_only_models_can_be_unloaded(tmp_path: Path) -> None:
    async with (
        Simulator(gpu=gpu_options(tmp_path)) as simulator,
        ComfyClient(simulator.url) as client,
        httpx.AsyncClient() as http,
    ):
        await client.run(GRAPH)
        await http.post(f"{simulator.url}/free", json={"unload_models": True})
        assert (await memory(client))["torch_vram_total"] == 0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "folder: Field required"),
        ({"folder": "/x", "size": 1}, "size: Extra inputs"),
        ({"folder": "/x", "memory_bytes": "?"}, "memory_b"),
    ],
)
def test_invalid_gpu_options_are_explained(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        read_gpu(fields)
