"""GPUs behind this worker's ComfyUI servers: memory from ComfyUI, load from NVML."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import structlog

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.comfyui.processes.gpus import name_of, query_nvidia_gpus
from comfyrelay.errors import ComfyError
from comfyrelay.http_client import is_loopback
from comfyrelay.protocol.base import checked
from comfyrelay.protocol.worker import Device
from comfyrelay.wakeup import Wakeup
from comfyrelay.worker.comfyui.servers import Servers

log = structlog.get_logger(__name__)

# How often devices are read while jobs run, and how many times less often while idle.
BUSY_SECONDS = 5.0
IDLE_TURNS = 6
ANSWER_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverGpu:
    """A GPU as its driver reports it."""

    name: str
    memory_used: int
    load: float


class Devices:
    """`current` is sent with each heartbeat and poll; it is empty before the first refresh."""

    def __init__(
        self,
        servers: Servers,
        *,
        is_busy: Callable[[], bool],
        gpus: Callable[[], Sequence[DriverGpu]] | None = None,
        why_so_many: Callable[[str], str | None] = lambda _gpu: None,
    ) -> None:
        """`why_so_many` explains, by GPU, the number of ComfyUI processes on it, if GPU sharing decides it."""
        self._servers = servers
        self._is_busy = is_busy
        self._gpus = gpus or gpus_here
        self._why_so_many = why_so_many
        self.current: list[Device] = []
        self._changed = Wakeup()

    def refresh_soon(self) -> None:
        """Refresh because servers were added or removed."""
        self._changed.notify()

    async def keep(self) -> None:
        """Refresh periodically, until cancelled."""
        while True:
            try:
                await self.refresh()
            except Exception:
                log.warning("worker.devices_failed", exc_info=True)
            for _ in range(IDLE_TURNS):
                if await self._changed.wait(BUSY_SECONDS) or self._is_busy():
                    break

    async def refresh(self) -> None:
        gpus = await asyncio.to_thread(self._gpus)
        own = self._servers.named
        found = await asyncio.gather(*(self._device(name, each, gpus) for name, each in own.items()))
        slots = self._servers.cloud_slots
        cloud = [checked(Device, server=name, name="Comfy Cloud", slots=count) for name, count in slots]
        self.current = [*found, *cloud]

    async def _device(self, name: str, client: ComfyClient, gpus: Sequence[DriverGpu]) -> Device:
        away = self._servers.unavailable_reason(name)
        if away is not None:
            return checked(Device, server=name, away=away[:1000])
        stats: Mapping[str, Any] = {}
        # a server that loads a model may not answer now
        with suppress(ComfyError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                stats = await client.system_stats()
        if not stats:
            before = (each for each in self.current if each.server == name and each.away is None)
            return next(before, checked(Device, server=name))
        is_here = is_loopback(urlsplit(client.url).hostname or "")
        return checked(Device, server=name, **described(stats, gpus if is_here else ()), **self._shared(name))

    def _shared(self, name: str) -> dict[str, Any]:
        gpus = self._servers.gpus
        if (gpu := gpus.get(name)) is None:
            return {}
        why = self._why_so_many(gpu)
        return {"on_gpu": list(gpus.values()).count(gpu), **({"packing": why[:1000]} if why else {})}


def described(stats: Mapping[str, Any], gpus: Sequence[DriverGpu]) -> dict[str, Any]:
    """Describe the first device of a ComfyUI, which is the one it uses."""
    match stats.get("devices"):
        case [{"name": str() as name, "vram_total": int() as total, "vram_free": int() as free, **more}, *_]:
            found: dict[str, Any] = {
                "name": readable(name),
                "memory_total": max(total, 0),
                "memory_used": max(total - free, 0),
            }
            # memory that torch caches is free for ComfyUI, but not for the driver
            kept = more.get("torch_vram_free")
            taken = total - free + (kept if isinstance(kept, int) else 0)
            if (gpu := _same(found["name"], taken, gpus)) is not None:
                found["load"] = gpu.load
            return found
    return {}


def readable(name: str) -> str:
    """Strip what ComfyUI adds: `cuda:0 NVIDIA GeForce RTX 4090 : cudaMallocAsync`."""
    words = name.split(" : ", maxsplit=1)[0].split(" ", 1)
    return (words[1] if ":" in words[0] and len(words) > 1 else " ".join(words)).strip()[:200]


def _same(name: str, memory_taken: int, gpus: Sequence[DriverGpu]) -> DriverGpu | None:
    """Find the driver's GPU for a ComfyUI device.

    A process may see only some GPUs under other numbers, so among equal models the one with the closest memory use is
    chosen.
    """
    alike = [each for each in gpus if each.name == name]
    return min(alike, key=lambda each: abs(each.memory_used - memory_taken), default=None)


def gpus_here() -> list[DriverGpu]:
    """GPUs that NVML lists."""
    return query_nvidia_gpus(_gpu)


def _gpu(nvml: Any, handle: Any) -> DriverGpu:
    return DriverGpu(
        name=name_of(nvml, handle),
        memory_used=int(nvml.nvmlDeviceGetMemoryInfo(handle).used),
        load=min(max(nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100, 0.0), 1.0),
    )
