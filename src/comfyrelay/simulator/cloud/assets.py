"""Assets of the simulated service: uploads and outputs, and the file store for redirected downloads."""

import secrets
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from aiohttp import web
from blake3 import blake3

from comfyrelay.simulator.cloud.answers import Refused, format_time
from comfyrelay.simulator.misbehaviour import LostFile
from comfyrelay.simulator.ports import ListenPort
from comfyrelay.simulator.process import SimulatedProcess
from comfyrelay.simulator.request_log import Received

LARGEST_UPLOAD = 100 * 1024**2
ASSET = "core/ASSET"
_URL_SECONDS = 3600
_PIECE_BYTES = 1024 * 1024


@dataclass(kw_only=True, slots=True)
class Asset:
    path: Path
    name: str
    content_type: str
    hash: str | None = None
    job_id: str | None = None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    created_at: float = field(default_factory=time.time)


class Assets:
    def __init__(self, process: SimulatedProcess, store: ListenPort) -> None:
        self._process = process
        self._store = store
        self.by_id: dict[str, Asset] = {}
        # The files of signed URLs by token.
        self._signed: dict[str, Path] = {}

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/v2/assets", self.upload),
            web.post("/api/v2/assets/from-hash", self.from_hash),
            web.head("/api/v2/assets/by-hash/{hash}", self.by_hash),
            web.get("/api/v2/assets/{id}", self.get),
            web.delete("/api/v2/assets/{id}", self.delete),
            web.get("/api/v2/assets/{id}/content", self.content),
        ]

    def store_app_routes(self) -> list[web.RouteDef]:
        return [web.get("/files/{token}/{name}", self.stored_file)]

    async def upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        file, content_type, name = form.get("file"), form.get("content_type"), form.get("file_path")
        if not isinstance(file, web.FileField) or not isinstance(content_type, str) or not isinstance(name, str):
            raise Refused(422, "invalid_request", "The form needs file, content_type and file_path.")
        size = file.file.seek(0, 2)
        if size > LARGEST_UPLOAD:
            raise Refused(422, "invalid_request", "The file is too large.")
        digest = _hash(file.file)
        if form.get("expected_hash", digest) != digest:
            raise Refused(409, "hash_mismatch", "The bytes have another hash.")
        path = self._process.folders.input / f"{digest.removeprefix('blake3:')}{Path(name).suffix.lower()}"
        is_new = not path.is_file()
        if is_new:
            file.file.seek(0)
            with path.open("wb") as target:
                shutil.copyfileobj(file.file, target)
            self._process.log.uploads_written += 1
        asset = self.add(Asset(path=path, name=name, content_type=content_type, hash=digest))
        return web.json_response({**self.body(asset), "created_new": is_new}, status=201 if is_new else 200)

    async def from_hash(self, request: web.Request) -> web.Response:
        body = await request.json()
        known = self._by_hash(body.get("hash"))
        if known is None:
            raise Refused(404, "blob_not_found", "There is no such blob.")
        name = str(body.get("file_path") or known.name)
        asset = self.add(Asset(path=known.path, name=name, content_type=known.content_type, hash=known.hash))
        return web.json_response({**self.body(asset), "created_new": False}, status=201)

    async def by_hash(self, request: web.Request) -> web.Response:
        return web.Response(status=404 if self._by_hash(request.match_info["hash"]) is None else 200)

    async def get(self, request: web.Request) -> web.Response:
        return web.json_response(self.body(self._asset(request)))

    async def delete(self, request: web.Request) -> web.Response:
        asset = self._asset(request)
        if asset.job_id is not None:
            raise Refused(409, "asset_in_use", "The asset is in use.")
        del self.by_id[asset.id]
        return web.Response(status=204)

    async def content(self, request: web.Request) -> web.StreamResponse:
        asset = self._asset(request)
        lost = self._process.misbehaviours.take(
            LostFile, matching=lambda what: what.filename in (None, asset.name, asset.path.name)
        )
        if lost is not None:
            raise Refused(404, "not_found", "There is no such asset.")
        raise web.HTTPFound(self._url(asset))

    async def stored_file(self, request: web.Request) -> web.StreamResponse:
        if "X-API-Key" in request.headers or "Authorization" in request.headers:
            self._process.log.leaked_credentials.append(Received(request.method, request.path))
            return web.Response(status=400, text="Only one auth mechanism allowed")
        path = self._signed.get(request.match_info["token"])
        return web.Response(status=403) if path is None else web.FileResponse(path)

    def add(self, asset: Asset) -> Asset:
        self.by_id[asset.id] = asset
        return asset

    def body(self, asset: Asset) -> dict[str, Any]:
        return {
            **self.file_fields(asset),
            "file_path": asset.name,
            "created_at": format_time(asset.created_at),
            "expires_at": None,
        }

    def file_fields(self, asset: Asset) -> dict[str, Any]:
        """Return the fields that assets and outputs share."""
        return {
            "id": asset.id,
            "hash": asset.hash,
            "size_bytes": asset.path.stat().st_size,
            "content_type": asset.content_type,
            "url": self._url(asset),
            "url_expires_at": format_time(time.time() + _URL_SECONDS),
            **({} if asset.job_id is None else {"job_id": asset.job_id}),
        }

    def fill(self, graph: dict[str, Any]) -> dict[str, Any]:
        """Return the graph with each reference to an asset replaced by the name of its file."""
        return {node_id: self._filled(node) for node_id, node in graph.items()}

    def _filled(self, node: Any) -> Any:
        if not isinstance(node, dict) or not isinstance(node.get("inputs"), dict):
            return node
        return {**node, "inputs": {name: self._file_name(value) for name, value in node["inputs"].items()}}

    def _file_name(self, value: Any) -> Any:
        if not isinstance(value, dict) or value.get("__type") != ASSET:
            return value
        info = value.get("info")
        asset = self.by_id.get(str(info.get("id"))) if isinstance(info, dict) else None
        if asset is None or not asset.path.is_file():
            raise Refused(422, "missing_asset", "The graph refers to an asset that you do not have.")
        return asset.path.name

    def _url(self, asset: Asset) -> str:
        token = secrets.token_urlsafe(16)
        self._signed[token] = asset.path
        return f"{self._store.url}/files/{token}/{asset.path.name}"

    def _asset(self, request: web.Request) -> Asset:
        asset = self.by_id.get(request.match_info["id"])
        if asset is None or not asset.path.is_file():
            raise Refused(404, "not_found", "There is no such asset.")
        return asset

    def _by_hash(self, hash_: object) -> Asset | None:
        found: Iterator[Asset] = (asset for asset in self.by_id.values() if asset.hash == hash_ and hash_ is not None)
        return next(found, None)


def _hash(file: IO[bytes]) -> str:
    digest = blake3()
    file.seek(0)
    while piece := file.read(_PIECE_BYTES):
        digest.update(piece)
    return f"blake3:{digest.hexdigest()}"
