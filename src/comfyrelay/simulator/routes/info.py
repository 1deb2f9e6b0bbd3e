"""Routes for server information, and the WebSocket."""

import sys
from typing import Any

from aiohttp import web

from comfyrelay.simulator.nodes.catalogue import definitions_of
from comfyrelay.simulator.process import SimulatedProcess
from comfyrelay.system.platform import PLATFORM

_RAM = 64 * 1024**3


class InfoRoutes:
    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process

    def routes(self) -> list[web.RouteDef]:
        newer = [web.get("/node_replacements", self.node_replacements)] if self._process.options.is_current else []
        return [
            *newer,
            web.get("/system_stats", self.system_stats),
            web.get("/features", self.features),
            web.get("/object_info", self.object_info),
            web.get("/object_info/{class_type}", self.object_info_of),
            web.get("/models", self.models),
            web.get("/models/{folder}", self.models_in),
            web.get("/embeddings", self.embeddings),
            web.get("/global_subgraphs", self.blueprints),
            web.get("/ws", self.websocket),
        ]

    async def system_stats(self, _request: web.Request) -> web.Response:
        return web.json_response(system_stats(self._process))

    async def features(self, _request: web.Request) -> web.Response:
        return web.json_response(self._process.features)

    async def node_replacements(self, _request: web.Request) -> web.Response:
        # None of the simulator's nodes are replaced.
        return web.json_response({})

    async def blueprints(self, _request: web.Request) -> web.Response:
        # The simulator has none, like older versions.
        return web.json_response({})

    async def object_info(self, _request: web.Request) -> web.Response:
        return web.json_response(object_info(self._process))

    async def object_info_of(self, request: web.Request) -> web.Response:
        class_type = request.match_info["class_type"]
        definition = definitions_of(self._process.options).get(class_type)
        return web.json_response({class_type: definition.info(self._process.listings)} if definition else {})

    async def models(self, _request: web.Request) -> web.Response:
        return web.json_response(list(self._process.options.models))

    async def models_in(self, request: web.Request) -> web.Response:
        names = self._process.options.models.get(request.match_info["folder"])
        return web.Response(status=404) if names is None else web.json_response(list(names))

    async def embeddings(self, _request: web.Request) -> web.Response:
        names = self._process.options.models.get("embeddings", ())
        return web.json_response([name.rpartition(".")[0] or name for name in names])

    async def websocket(self, request: web.Request) -> web.WebSocketResponse:
        process = self._process
        socket = await process.sockets.serve(request, status=process.status, running=process.running_node)
        return socket.response


def object_info(process: SimulatedProcess) -> dict[str, Any]:
    listings, known = process.listings, definitions_of(process.options)
    found = {class_type: definition.info(listings) for class_type, definition in known.items()}
    for name, class_types in process.options.packs.items():
        found |= {
            class_type: {**found[class_type], "python_module": f"custom_nodes.{name}"} for class_type in class_types
        }
    return found


def system_stats(process: SimulatedProcess) -> dict[str, Any]:
    return {
        "system": {
            "os": PLATFORM,
            "ram_total": _RAM,
            "ram_free": _RAM // 2,
            "comfyui_version": process.options.version,
            "required_frontend_version": None,
            "installed_templates_version": None,
            "required_templates_version": None,
            "python_version": sys.version,
            "pytorch_version": "none (simulator)",
            "embedded_python": False,
            "argv": ["main.py", "--preview-method", process.options.preview_method, *process.options.arguments],
        },
        "devices": [_device(process)],
    }


def _device(process: SimulatedProcess) -> dict[str, Any]:
    if "--cpu" in process.options.arguments:
        memory = {"vram_total": _RAM, "vram_free": _RAM // 2, "torch_vram_total": _RAM, "torch_vram_free": _RAM // 2}
        return {"name": "cpu", "type": "cpu", "index": None, **memory}
    return {"name": "cuda:0 simulator", "type": "cuda", "index": 0, **_memory(process)}


def _memory(process: SimulatedProcess) -> dict[str, int]:
    if (gpu := process.gpu) is not None:
        return {
            "vram_total": gpu.options.memory_bytes,
            "vram_free": gpu.free + gpu.torch_free,
            "torch_vram_total": gpu.torch_total,
            "torch_vram_free": gpu.torch_free,
        }
    vram = process.options.vram_bytes
    # While a prompt is running, a model is loaded.
    model_bytes = vram // 3 if process.run is not None else 0
    used = max(model_bytes, vram // 20)
    return {"vram_total": vram, "vram_free": vram - used, "torch_vram_total": model_bytes, "torch_vram_free": 0}
