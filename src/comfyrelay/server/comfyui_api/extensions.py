"""Scripts of the editor: its own, and those of the node packs that an administrator allows. Scripts of workers are not
served: they would run in a user's browser with the user's session."""

import asyncio
from pathlib import Path

from starlette.responses import JSONResponse, Response

from comfyrelay.server.comfyui_api.frontend import EXTENSIONS, extension_folders
from comfyrelay.server.comfyui_api.routing import Call, ComfyuiRoutes

routes = ComfyuiRoutes()


@routes.add("GET", "/extensions")
async def extensions(call: Call) -> Response:
    folders = extension_folders(call.context.settings)
    return JSONResponse(await asyncio.to_thread(lambda: [path for item in folders.items() for path in _scripts(*item)]))


def _scripts(name: str, folder: Path) -> list[str]:
    found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.js") if path.is_file())
    return [f"{EXTENSIONS}/{name}/{path}" for path in found]
