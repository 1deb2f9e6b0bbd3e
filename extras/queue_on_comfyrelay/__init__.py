"""Adds "Queue on ComfyRelay" to the editor of this ComfyUI. The graph runs on the workers of a server."""

from functools import partial
from pathlib import Path

import folder_paths
from aiohttp import web
from server import PromptServer

from .relay import Relay, RelayError

__all__ = ["NODE_CLASS_MAPPINGS", "WEB_DIRECTORY"]

NODE_CLASS_MAPPINGS = {}
WEB_DIRECTORY = "./web"

_relay = Relay(
    settings=Path(__file__).with_name("settings.json"),
    folders={
        "input": Path(folder_paths.get_input_directory()),
        "output": Path(folder_paths.get_output_directory()),
        "temp": Path(folder_paths.get_temp_directory()),
    },
)


@PromptServer.instance.routes.post("/comfyrelay/jobs")
async def submit(request: web.Request) -> web.Response:
    if request.content_type != "application/json":
        # Without a preflight request, a page of another site can send only other content types.
        raise web.HTTPUnsupportedMediaType
    body = await request.json()
    send = partial(PromptServer.instance.send_sync, sid=body["client_id"])
    try:
        job_id = await _relay.submit(body["prompt"], body["workflow"], send)
    except RelayError as error:
        return web.json_response({"error": str(error)}, status=502)
    return web.json_response({"job_id": job_id})
