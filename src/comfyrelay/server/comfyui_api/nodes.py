"""The nodes and models of the workers, and a description of the server."""

import platform

from starlette.responses import JSONResponse, Response

from comfyrelay.comfyui.versions import TRIED
from comfyrelay.errors import NotFound
from comfyrelay.server.comfyui_api.routing import Call, ComfyuiRoutes
from comfyrelay.services.comfyui_api.nodes import FOLDERS

routes = ComfyuiRoutes()


@routes.add("GET", "/object_info")
async def object_info(call: Call) -> Response:
    content = await call.context.engine.comfyui_api.nodes.object_info(call.tenant_id)
    return Response(content, media_type="application/json")


@routes.add("GET", "/object_info/{node_class}")
async def node_info(call: Call) -> Response:
    return JSONResponse(await call.context.engine.comfyui_api.nodes.node_info(call.tenant_id, call.path("node_class")))


@routes.add("GET", "/models")
async def folders(_call: Call) -> Response:
    return JSONResponse(list(FOLDERS))


@routes.add("GET", "/models/{folder}")
async def models(call: Call) -> Response:
    found = await call.context.engine.comfyui_api.nodes.models(call.path("folder"))
    return Response(status_code=404) if found is None else JSONResponse(found)


@routes.add("GET", "/embeddings")
async def embeddings(_call: Call) -> Response:
    """Return an empty list, because workers do not report their embeddings. Prompts can use them nevertheless."""
    return JSONResponse([])


@routes.add("GET", "/experiment/models")
async def described_folders(_call: Call) -> Response:
    return JSONResponse([{"name": folder, "folders": []} for folder in FOLDERS])


@routes.add("GET", "/experiment/models/{folder}")
async def described_models(call: Call) -> Response:
    found = await call.context.engine.comfyui_api.nodes.models(call.path("folder"))
    if found is None:
        raise NotFound("There is no such folder of models.")
    unknown = {"pathIndex": 0, "modified": 0, "created": 0, "size": 0}
    return JSONResponse([{"name": name, **unknown} for name in found])


@routes.add("GET", "/view_metadata/{folder}")
async def metadata(_call: Call) -> Response:
    """Return 404, because model files are on the workers."""
    return Response(status_code=404)


@routes.add("GET", "/system_stats")
async def system_stats(_call: Call) -> Response:
    """Describe the newest ComfyUI that workers were tested with. GPUs belong to workers, which are not shown."""
    system = {
        "os": "comfyrelay",
        "ram_total": 0,
        "ram_free": 0,
        "comfyui_version": TRIED[-1],
        "required_frontend_version": None,
        "installed_templates_version": None,
        "required_templates_version": None,
        "python_version": platform.python_version(),
        "pytorch_version": "",
        "embedded_python": False,
        "argv": [],
    }
    return JSONResponse({"system": system, "devices": []})


@routes.add("GET", "/features")
async def features(call: Call) -> Response:
    return JSONResponse(feature_flags(call.context.settings.max_upload_bytes))


def feature_flags(max_upload_bytes: int) -> dict[str, object]:
    return {
        "supports_preview_metadata": True,
        "supports_model_type_tags": False,
        "max_upload_size": max_upload_bytes,
        "extension": {},
        "node_replacements": True,
        "assets": False,
    }
