"""Routes for the editor and other clients: extensions, user, settings, models and log."""

import json
from pathlib import Path
from typing import Any

from aiohttp import web

from comfyrelay.simulator.process import SimulatedProcess

_SETTINGS = "comfy.settings.json"
_TERMINAL = {"cols": 80, "rows": 24}
_PICTURE_SUFFIXES = (".png", ".jpg", ".webp", ".preview.png", ".preview.jpg", ".preview.webp")
# The same limit as in ComfyUI.
_MAX_HEADER_BYTES = 1024**2


class EditorRoutes:
    """The editor's routes. As in ComfyUI without `--multi-user`, the only user's settings are in `user/default`."""

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process
        self._user = process.folders.base / "user" / "default"

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/extensions", self.extensions),
            web.get("/users", self.users),
            web.get("/settings", self.settings),
            web.post("/settings", self.change_settings),
            web.get("/settings/{id}", self.setting),
            web.post("/settings/{id}", self.change_setting),
            web.get("/experiment/models", self.model_folders),
            web.get("/experiment/models/{folder}", self.models_in),
            web.get("/experiment/models/preview/{folder}/{place}/{name:.*}", self.model_picture),
            web.get("/view_metadata/{folder}", self.model_metadata),
            web.get("/internal/logs", self.log_text),
            web.get("/internal/logs/raw", self.log),
        ]

    async def extensions(self, _request: web.Request) -> web.Response:
        # There are no scripts of the editor itself, because there is no editor.
        return web.json_response([f"/extensions/{name}/script.js" for name in self._process.options.packs])

    async def users(self, _request: web.Request) -> web.Response:
        return web.json_response({"storage": "server", "migrated": self._user.exists()})

    async def settings(self, _request: web.Request) -> web.Response:
        return web.json_response(self._settings())

    async def change_settings(self, request: web.Request) -> web.Response:
        self._save({**self._settings(), **await request.json()})
        return web.Response()

    async def setting(self, request: web.Request) -> web.Response:
        return web.json_response(self._settings().get(request.match_info["id"]))

    async def change_setting(self, request: web.Request) -> web.Response:
        self._save({**self._settings(), request.match_info["id"]: await request.json()})
        return web.Response()

    async def model_folders(self, _request: web.Request) -> web.Response:
        models = self._process.folders.base / "models"
        return web.json_response(
            [{"name": model, "folders": [str(models / model)]} for model in self._process.options.models]
        )

    async def models_in(self, request: web.Request) -> web.Response:
        names = self._process.options.models.get(request.match_info["folder"])
        if names is None:
            return web.Response(status=404)
        # Usually the models have names but no files.
        return web.json_response(
            [{"name": name, "pathIndex": 0, "modified": 0, "created": 0, "size": 0} for name in names]
        )

    async def model_picture(self, request: web.Request) -> web.StreamResponse:
        file = self._model(request.match_info["folder"], request.match_info["name"])
        candidates = [file.with_suffix(suffix) for suffix in _PICTURE_SUFFIXES] if file is not None else []
        found = next((picture for picture in candidates if picture.is_file()), None)
        return web.Response(status=404) if found is None else web.FileResponse(found)

    async def model_metadata(self, request: web.Request) -> web.Response:
        file = self._model(request.match_info["folder"], request.query.get("filename", ""))
        metadata = _read_metadata(file) if file is not None and file.suffix == ".safetensors" else None
        return web.Response(status=404) if metadata is None else web.json_response(metadata)

    def _model(self, folder: str, name: str) -> Path | None:
        """Return the path of a listed model. The file exists only if someone has created it."""
        is_listed = name in self._process.options.models.get(folder, ())
        return self._process.folders.base / "models" / folder / name if is_listed else None

    async def log_text(self, _request: web.Request) -> web.Response:
        return web.json_response("".join(f"{entry['t']} - {entry['m']}" for entry in self._process.console))

    async def log(self, _request: web.Request) -> web.Response:
        return web.json_response({"entries": list(self._process.console), "size": _TERMINAL})

    def _settings(self) -> dict[str, Any]:
        try:
            found = json.loads((self._user / _SETTINGS).read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _save(self, settings: dict[str, Any]) -> None:
        self._user.mkdir(parents=True, exist_ok=True)
        (self._user / _SETTINGS).write_text(json.dumps(settings, indent=4), "utf-8")


def _read_metadata(file: Path) -> dict[str, Any] | None:
    """Return the metadata in the header of a safetensors file: eight bytes with its length, then JSON."""
    try:
        with file.open("rb") as content:
            length = int.from_bytes(content.read(8), "little")
            header = json.loads(content.read(length)) if length <= _MAX_HEADER_BYTES else {}
    except (OSError, ValueError):
        return None
    return header.get("__metadata__") if isinstance(header, dict) else None
