"""The subgraph blueprints of ComfyUI, which its editor offers as nodes."""

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from starlette.responses import JSONResponse, Response

from comfyrelay.server.comfyui_api.routing import Call, ComfyuiRoutes

routes = ComfyuiRoutes()
# Installed with the editor.
PACKAGE = "comfyui_subgraph_blueprints"
# ComfyUI's name for the source of its own blueprints.
SOURCE = "templates"


@dataclass(frozen=True, kw_only=True, slots=True)
class Blueprint:
    name: str
    path: Path

    @property
    def entry(self) -> dict[str, Any]:
        return {"source": SOURCE, "name": self.name, "info": {"node_pack": "comfyui"}}


@routes.add("GET", "/global_subgraphs")
async def blueprints(_call: Call) -> Response:
    found = await asyncio.to_thread(_installed)
    return JSONResponse({id_: blueprint.entry for id_, blueprint in found.items()})


@routes.add("GET", "/global_subgraphs/{id}")
async def blueprint(call: Call) -> Response:
    """Return a blueprint with its file, or null, as ComfyUI does."""
    found = (await asyncio.to_thread(_installed)).get(call.path("id"))
    if found is None:
        return JSONResponse(None)
    return JSONResponse({**found.entry, "data": await asyncio.to_thread(found.path.read_text, "utf-8")})


@cache
def _installed() -> Mapping[str, Blueprint]:
    """Return the blueprints by id."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return {}
    files = sorted((Path(spec.origin).parent / "blueprints").glob("*.json"))
    return {
        hashlib.sha256(f"{SOURCE}{file.name}".encode()).hexdigest(): Blueprint(name=_name(file), path=file)
        for file in files
    }


def _name(file: Path) -> str:
    """Return the name of a blueprint, which is the name of the subgraph of its only node."""
    document = json.loads(file.read_text("utf-8"))
    kind = document["nodes"][0]["type"]
    return str(next(subgraph["name"] for subgraph in document["definitions"]["subgraphs"] if subgraph["id"] == kind))
