"""The memory of a simulated GPU after its process was killed."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.simulator import SimulatedGpuOptions
from comfyrelay.simulator.gpu import GIB, SimulatedGpu

GRAPH = {
    "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "simulator.safetensors"}},
    "2": {"class_type": "CLIPTextEncode", "inputs": {"text": "a lighthouse", "clip": ["1", 1]}},
    "3": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
    "4": {
        "class_type": "KSampler",
        "inputs": {
            **{"model": ["1", 0], "positive": ["2", 0], "negative": ["2", 0], "latent_image": ["3", 0]},
            **{"seed": 1, "steps": 2, "cfg": 7.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0},
        },
    },
    "5": {"class_type": "VAEDecode", "inputs": {"samples": ["4", 0], "vae": ["1", 2]}},
    "6": {"class_type": "SaveImage", "inputs": {"images": ["5", 0], "filename_prefix": "gpu"}},
}


def options(folder: Path, **more: Any) -> SimulatedGpuOptions:
    given = {"memory_bytes": 8 * GIB, "context_bytes": 0, "model_bytes": 5 * GIB, "pixel_bytes": 0, **more}
    return SimulatedGpuOptions(folder=folder / "gpu", **given)


def opened(gpu: SimulatedGpuOptions) -> SimulatedGpu:
    process = SimulatedGpu(gpu)
    process.open()
    return process


async def test_memory_of_a_killed_process_is_free(tmp_path: Path) -> None:
    words = f'{{"folder": "{tmp_path / "gpu"}", "memory_bytes": {8 * GIB}, "model_bytes": {5 * GIB}}}'
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "comfyrelay", "simulator", "--port", "0", "--gpu", words, stdout=PIPE
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().rpartition(" ")[2].strip()
        async with ComfyClient(url) as client:
            await client.run(GRAPH)
        watcher = opened(options(tmp_path))
        assert watcher.free < 3 * GIB
    finally:
        process.kill()
        await process.communicate()
    assert watcher.free == 8 * GIB
    watcher.close()
