"""Report this worker's capabilities to the control plane: GPUs, ComfyUI, nodes and models."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from comfyrelay.comfyui.client.client import ComfyClient
from comfyrelay.comfyui.graphs.preflight import installed_models
from comfyrelay.errors import ComfyError
from comfyrelay.wakeup import Wakeup
from comfyrelay.worker.comfyui.servers import Servers

log = structlog.get_logger(__name__)

# Refreshed regularly, because models may be added while ComfyUI runs.
REFRESH_SECONDS = 300.0
# The response has megabytes, and the server may be busy.
MIN_REFRESH_SECONDS = 10.0
# Smaller changes are not reported, because free memory changes constantly.
MEMORY_STEP = 0.1


class Capabilities:
    """The capabilities of this worker: the current ones, and the last ones reported to the control plane."""

    def __init__(
        self,
        servers: Servers,
        more: Mapping[str, Any],
        *,
        min_refresh_seconds: float = MIN_REFRESH_SECONDS,
        on_refresh: Callable[[], None] = lambda: None,
    ) -> None:
        self._servers = servers
        self._more = more
        self._min_refresh_seconds = min_refresh_seconds
        self._on_refresh = on_refresh
        self._due = Wakeup()
        # The capabilities that have been reported to the control plane.
        self.sent: Mapping[str, Any] | None = None
        self.current: dict[str, Any] = dict(more)

    async def refresh(self) -> None:
        # Replaced before the refresh, because a change during the refresh requires another one.
        self._due = Wakeup()
        self.current = await gather(self._servers, self._more)
        self._on_refresh()

    def refresh_soon(self) -> None:
        """Request a refresh because a server has recovered, perhaps with other nodes and models."""
        self._due.notify()

    async def keep(self) -> None:
        """Refresh when due and periodically, until cancelled."""
        while True:
            await self._due.wait(REFRESH_SECONDS)
            try:
                await self.refresh()
            except Exception:
                log.exception("worker.capabilities_failed")
            await asyncio.sleep(self._min_refresh_seconds)

    @property
    def changes(self) -> dict[str, Any] | None:
        """Changed capabilities for the next poll, or `None`."""
        return self.current if differ(self.sent, self.current) else None

    def has_changed_since(self, sent: Mapping[str, Any] | None) -> bool:
        """Whether nodes or models have changed since `sent`. Jobs may be waiting for new nodes or models."""
        return sent is not None and any(sent.get(name) != self.current.get(name) for name in ("node_types", "models"))


async def gather(servers: Servers, more: Mapping[str, Any]) -> dict[str, Any]:
    """Query every reachable server. A job tries servers until one can run it, so the reported nodes and models are the
    union, with a list of what each server lacks."""
    described: list[dict[str, Any]] = []
    nodes: list[set[str]] = []
    models: list[set[str]] = []
    for client in servers.own.values():
        try:
            stats = await client.system_stats()
            info = await client.object_info(refresh=True)
        except ComfyError:
            continue
        described.append(_describe(client, stats))
        nodes.append(set(filter(_is_text, info)))
        models.append(set(filter(_is_text, installed_models(info))))
    providers = {"self_hosted": servers.own, "cloud": servers.cloud}
    found: dict[str, Any] = {"providers": sorted(name for name, clients in providers.items() if clients)}
    if described:
        all_nodes, all_models = set.union(*nodes), set.union(*models)
        for server, its_nodes, its_models in zip(described, nodes, models, strict=True):
            missing = {"node_types": sorted(all_nodes - its_nodes), "models": sorted(all_models - its_models)}
            if any(missing.values()):
                server["missing"] = missing
        found |= {"comfyui": described, "node_types": sorted(all_nodes), "models": sorted(all_models)}
    # Detected values override configured ones.
    return {**more, **found}


def differ(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> bool:
    """Whether the capabilities differ enough to be reported."""
    if old is None or _without_memory(old) != _without_memory(new):
        return True
    return any(
        abs(before - now) > MEMORY_STEP * max(before, now, 1)
        # The GPUs are the same, because the comparison above found no difference.
        for before, now in zip(_free_memory(old), _free_memory(new), strict=True)
    )


def _is_text(name: str) -> bool:
    """Whether a file name is valid text. Other names cannot be reported or used in a graph."""
    return name.isprintable() and name.encode("utf-8", "ignore").decode() == name


def _describe(client: ComfyClient, stats: Mapping[str, Any]) -> dict[str, Any]:
    system = stats.get("system")
    devices = stats.get("devices")
    return {
        "url": client.url,
        "version": system.get("comfyui_version") if isinstance(system, dict) else None,
        "gpus": [
            {
                "name": device.get("name"),
                "type": device.get("type"),
                "memory_total": device.get("vram_total"),
                "memory_free": device.get("vram_free"),
            }
            for device in (devices if isinstance(devices, list) else [])
            if isinstance(device, dict)
        ],
    }


def _without_memory(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_memory(item) for key, item in value.items() if key != "memory_free"}
    return [_without_memory(item) for item in value] if isinstance(value, list) else value


def _free_memory(capabilities: Mapping[str, Any]) -> list[float]:
    return [
        float(gpu.get("memory_free") or 0) for comfyui in capabilities.get("comfyui", ()) for gpu in comfyui["gpus"]
    ]
