"""A `GpuInventory` of simulators, which share GPUs as real processes and are servers of a pool."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.pool import WorkflowPool
from comfyrelay.comfyui.processes.gpus import GpuProcesses
from comfyrelay.errors import NotStarted
from comfyrelay.simulator import SimulatedGpuOptions

KEY = "gpu-1"


class SimulatedGpus:
    def __init__(
        self,
        pool: WorkflowPool,
        gpus: SimulatedGpuOptions | Mapping[str, SimulatedGpuOptions],
        *,
        step_seconds: float = 0.0,
    ) -> None:
        self.most = 0
        self.added = 0
        # the reason why no further process can be started, if any
        self.refusal: str | None = None
        self._pool = pool
        self._gpus = {KEY: gpus} if isinstance(gpus, SimulatedGpuOptions) else gpus
        self._step_seconds = step_seconds
        self._processes: dict[str, dict[str, Process]] = {key: {} for key in self._gpus}

    def gpus(self) -> Sequence[GpuProcesses]:
        return [
            GpuProcesses(
                key=key, name="simulator", memory_bytes=gpu.memory_bytes, processes=tuple(self._processes[key])
            )
            for key, gpu in self._gpus.items()
        ]

    async def add(self, gpu_key: str) -> str:
        if self.refusal is not None:
            raise NotStarted(self.refusal)
        process, url = await self._start(gpu_key, port=0)
        self._processes[gpu_key][url] = process
        self.added += 1
        self.most = max(self.most, *map(len, self._processes.values()))
        self._pool.add_server(url, gpu=gpu_key)
        return url

    async def remove(self, gpu_key: str, url: str) -> None:
        await self._pool.remove_server(url, finish=True)
        await self._end(self._processes[gpu_key].pop(url))

    async def kill(self, gpu_key: str, url: str) -> None:
        """Crash a simulator; `start_again` restarts it."""
        process = self._processes[gpu_key][url]
        process.kill()
        await process.communicate()

    async def start_again(self, gpu_key: str, url: str) -> None:
        self._processes[gpu_key][url], _ = await self._start(gpu_key, port=int(url.rpartition(":")[2]))

    async def close(self) -> None:
        for processes in self._processes.values():
            for process in processes.values():
                await self._end(process)

    async def _start(self, gpu_key: str, *, port: int) -> tuple[Process, str]:
        options = self._gpus[gpu_key]
        gpu = options.model_dump_json()
        words = ["simulator", "--port", str(port), "--step-seconds", str(self._step_seconds), "--gpu", gpu]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "comfyrelay", *words, stdin=DEVNULL, stdout=PIPE
        )
        assert process.stdout is not None
        return process, (await process.stdout.readline()).decode().rpartition(" ")[2].strip()

    async def _end(self, process: Process) -> None:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


def picture(seed: int, *, steps: int = 2, **more: Any) -> Graph:
    """Return a graph that samples, so it uses memory and time of the GPU."""
    sampler = {"seed": seed, "steps": steps, "cfg": 7.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    links = {"model": ["1", 0], "positive": ["2", 0], "negative": ["2", 0], "latent_image": ["3", 0]}
    return {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "simulator.safetensors"}},
        "2": {"class_type": "CLIPTextEncode", "inputs": {"text": "a lighthouse", "clip": ["1", 1]}},
        "3": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, **more}},
        "4": {"class_type": "KSampler", "inputs": {**links, **sampler}},
        "5": {"class_type": "VAEDecode", "inputs": {"samples": ["4", 0], "vae": ["1", 2]}},
        "6": {"class_type": "SaveImage", "inputs": {"images": ["5", 0], "filename_prefix": "gpu"}},
    }
