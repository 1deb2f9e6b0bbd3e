"""Simulators on simulated GPUs, a graph that samples on them, and pools of such simulators."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.pool import ClientState, ClientStateChanged, SmartFailover, WorkflowPool
from comfyrelay.simulator import SimulatedGpuOptions, Simulator
from comfyrelay.simulator.gpu import GIB, SimulatedGpu
from tests.support.pool import QUICK, until

SMALL, LARGE = "small.safetensors", "large.safetensors"


def picture(seed: int, *, model: str = SMALL, side: int = 64) -> Graph:
    """Return a graph that samples, which takes the memory per pixel that the GPU defines."""
    return {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": model}},
        "2": {"class_type": "CLIPTextEncode", "inputs": {"text": "a lighthouse", "clip": ["1", 1]}},
        "3": {"class_type": "EmptyLatentImage", "inputs": {"width": side, "height": side, "batch_size": 1}},
        "4": {
            "class_type": "KSampler",
            "inputs": {
                **{"model": ["1", 0], "positive": ["2", 0], "negative": ["2", 0], "latent_image": ["3", 0]},
                **{"seed": seed, "steps": 2, "cfg": 7.0, "sampler_name": "euler", "scheduler": "normal"},
                "denoise": 1.0,
            },
        },
        "5": {"class_type": "VAEDecode", "inputs": {"samples": ["4", 0], "vae": ["1", 2]}},
        "6": {"class_type": "SaveImage", "inputs": {"images": ["5", 0], "filename_prefix": "gpu"}},
    }


@asynccontextmanager
async def shared_gpu(
    folder: Path, count: int, *, ahead_seconds: float = 0.0, **gpu: Any
) -> AsyncIterator[tuple[WorkflowPool, list[Simulator], SimulatedGpuOptions]]:
    """Open a pool of simulators on one GPU of 24 GiB, on which a model takes 9 GiB."""
    fields = {"memory_bytes": 24 * GIB, "context_bytes": 0, "model_bytes": 9 * GIB, "pixel_bytes": 0, **gpu}
    options = SimulatedGpuOptions(folder=folder / "gpu", **fields)
    async with AsyncExitStack() as stack:
        models = {"checkpoints": [SMALL, LARGE]}
        simulators = [await stack.enter_async_context(Simulator(gpu=options, models=models)) for _ in range(count)]
        failover = SmartFailover(cooldown_seconds=0)
        pool = await stack.enter_async_context(
            WorkflowPool([], timings=QUICK, failover=failover, ahead_seconds=ahead_seconds)
        )
        changes = pool.events(ClientStateChanged)
        for name, simulator in zip("abcd", simulators, strict=False):
            pool.add_server(simulator.url, name=name, gpu="gpu-0")
        for _ in simulators:
            await until(changes, ClientStateChanged, lambda event: event.state is ClientState.ONLINE)
        yield pool, simulators, options


@asynccontextmanager
async def gpus(
    folder: Path, *sizes: int, per_gpu: int = 1, cooldown_seconds: float = 0.0
) -> AsyncIterator[tuple[WorkflowPool, list[Simulator]]]:
    """Open a pool with this many simulators on each of these GPUs, on which a model takes 9 GiB."""
    async with AsyncExitStack() as stack:
        failover = SmartFailover(cooldown_seconds=cooldown_seconds)
        simulators = []
        for number, gib in enumerate(sizes):
            gpu = SimulatedGpuOptions(
                folder=folder / f"gpu-{number}",
                memory_bytes=gib * GIB,
                context_bytes=0,
                model_bytes=9 * GIB,
                pixel_bytes=0,
            )
            models = {"checkpoints": [SMALL, LARGE]}
            simulators += [await stack.enter_async_context(Simulator(gpu=gpu, models=models)) for _ in range(per_gpu)]
        pool = await stack.enter_async_context(WorkflowPool([], timings=QUICK, failover=failover))
        changes = pool.events(ClientStateChanged)
        for number, (name, simulator) in enumerate(zip("abcd", simulators, strict=False)):
            pool.add_server(simulator.url, name=name, gpu=f"gpu-{number // per_gpu}")
        for _ in simulators:
            await until(changes, ClientStateChanged, lambda event: event.state is ClientState.ONLINE)
        yield pool, simulators


def gpu_options(folder: Path, **more: Any) -> SimulatedGpuOptions:
    """Return options for a GPU of 8 GiB, on which a model takes 5 GiB."""
    fields = {"memory_bytes": 8 * GIB, "context_bytes": 0, "model_bytes": 5 * GIB, "pixel_bytes": 0, **more}
    return SimulatedGpuOptions(folder=folder / "gpu", **fields)


def open_gpu(options: SimulatedGpuOptions) -> SimulatedGpu:
    """Use the GPU as another process would."""
    gpu = SimulatedGpu(options)
    gpu.open()
    return gpu
