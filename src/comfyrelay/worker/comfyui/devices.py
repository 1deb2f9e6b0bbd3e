"""The GPUs of this worker's ComfyUI servers, with memory from ComfyUI and load from NVML."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import structlog

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.comfyui.processes.gpus import name_of, query_nvidia_gpus
from comfyrelay.comfyui.processes.log import LAST_LINES_MARK, explain_exit
from comfyrelay.errors import ComfyError, ComfyRelayError
from comfyrelay.http_client import is_loopback
from comfyrelay.protocol.base import checked
from comfyrelay.protocol.worker import Device
from comfyrelay.text import storable
from comfyrelay.wakeup import Wakeup
from comfyrelay.worker.comfyui.servers import Servers

log = structlog.get_logger(__name__)

# Interval for reading the devices while jobs run, and the factor for an idle worker.
BUSY_SECONDS = 5.0
IDLE_FACTOR = 6
ANSWER_SECONDS = 5.0
# Number of log lines that are reported when a ComfyUI has died.
MAX_LINES = 10
MAX_REASON_LENGTH = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverGpu:
    """A GPU as reported by its driver."""

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
        packing_reason: Callable[[str], str | None] = lambda _gpu: None,
        report_unavailable: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`packing_reason` explains the number of ComfyUI processes on a GPU, if GPU sharing decides it.

        `report_unavailable` is called after each refresh while no ComfyUI can be used and no job runs. Otherwise, the
        control plane would not be informed, because such a worker sends no polls or heartbeats.
        """
        self._servers = servers
        self._is_busy = is_busy
        self._gpus = gpus or local_gpus
        self._packing_reason = packing_reason
        self._report_unavailable = report_unavailable
        # The last log lines of each server, as of the last refresh.
        self._lines: dict[str, list[str]] = {}
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
                if self._report_unavailable is not None and self.unavailable and not self._is_busy():
                    await self._report_unavailable()
            except ComfyRelayError as error:
                log.debug("worker.devices_not_reported", why=error.detail)
            except Exception:
                log.warning("worker.devices_failed", exc_info=True)
            for _ in range(IDLE_FACTOR):
                if await self._changed.wait(BUSY_SECONDS) or self._is_busy():
                    break

    @property
    def unavailable(self) -> list[Device] | None:
        """The devices if none of them can be used, otherwise `None`."""
        return self.current if all(device.unavailable_reason is not None for device in self.current) else None

    async def refresh(self) -> None:
        gpus = await asyncio.to_thread(self._gpus)
        clients = self._servers.own
        devices = await asyncio.gather(*(self._device(name, client, gpus) for name, client in clients.items()))
        cloud = [
            checked(Device, server=name, name="Cloud service", slots=client.slots)
            for name, client in self._servers.cloud.items()
        ]
        # A worker has no server until it has started its first ComfyUI.
        none = [checked(Device, server="comfyui", unavailable_reason="ComfyUI has not started yet.")]
        self.current = [*devices, *cloud] or none

    async def _device(self, name: str, client: ComfyClient, gpus: Sequence[DriverGpu]) -> Device:
        reason = self._servers.unavailable_reason(name)
        if reason is not None:
            # For a managed ComfyUI, the reason already contains the last lines.
            lines = [] if LAST_LINES_MARK in reason else self._lines.get(name, [])
            text = storable(explain_exit(reason, lines))
            return checked(Device, server=name, unavailable_reason=text[:MAX_REASON_LENGTH])
        stats: Mapping[str, Any] = {}
        # A server that is loading a model may not respond now.
        with suppress(ComfyError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                stats = await client.system_stats()
                self._lines[name] = (await client.log_lines())[-MAX_LINES:]
        if not stats:
            known = (device for device in self.current if device.server == name and device.unavailable_reason is None)
            return next(known, checked(Device, server=name))
        is_local = is_loopback(urlsplit(client.url).hostname or "")
        device = describe(stats, gpus if is_local else ())
        shared = self._servers.gpus
        if (gpu := shared.get(name)) is not None:
            device["on_gpu"] = list(shared.values()).count(gpu)
            if reason := self._packing_reason(gpu):
                device["packing"] = reason[:1000]
        return checked(Device, server=name, **device)


def describe(stats: Mapping[str, Any], gpus: Sequence[DriverGpu]) -> dict[str, Any]:
    """Describe the first device of a ComfyUI, which is the one that ComfyUI uses."""
    match stats.get("devices"):
        case [{"name": str() as name, "vram_total": int() as total, "vram_free": int() as free, **more}, *_]:
            device: dict[str, Any] = {
                "name": readable(name),
                "memory_total": max(total, 0),
                "memory_used": max(total - free, 0),
            }
            # Memory that torch has cached is free for ComfyUI, but the driver reports it as used.
            cached = more.get("torch_vram_free")
            memory_used = total - free + (cached if isinstance(cached, int) else 0)
            # A process may see only some GPUs, and under other numbers. Among equal models, the GPU with the closest
            # memory use is chosen.
            same_model = [gpu for gpu in gpus if gpu.name == device["name"]]
            if same_model:
                device["load"] = min(same_model, key=lambda gpu: abs(gpu.memory_used - memory_used)).load
            return device
    return {}


def readable(name: str) -> str:
    """Remove ComfyUI's additions: `cuda:0 NVIDIA GeForce RTX 4090 : cudaMallocAsync`."""
    words = name.split(" : ", maxsplit=1)[0].split(" ", 1)
    return (words[1] if ":" in words[0] and len(words) > 1 else " ".join(words)).strip()[:200]


def local_gpus() -> list[DriverGpu]:
    """Return the GPUs that NVML lists."""
    return query_nvidia_gpus(_gpu)


def _gpu(nvml: Any, handle: Any) -> DriverGpu:
    return DriverGpu(
        name=name_of(nvml, handle),
        memory_used=int(nvml.nvmlDeviceGetMemoryInfo(handle).used),
        load=min(max(nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100, 0.0), 1.0),
    )
