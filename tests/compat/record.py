"""`python -m tests.compat.record URL FOLDER [RUN …]`: record how a real ComfyUI answers, as data for tests.

`FOLDER` has the `input` folder of the server. The oldest recordings are repeated, and the runs below follow. All
exchanges and messages are in `tests/support/recordings/VERSION`. The server should run on CPU, with the node pack of
this folder, and have run nothing before: otherwise more is cached.
"""

import asyncio
import json
import re
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect

from tests.integration.simulator.replay import with_ids
from tests.support.paths import RECORDINGS
from tests.support.world import PATIENCE_SECONDS

Message = dict[str, Any]

# In tracebacks, as JSON.
_FILE_OF_CODE = re.compile(r'File \\"[^"]*?([^"/]+)\\"')
OLDEST = RECORDINGS / "0.7.0"
UPLOADED = {
    "rec.png": (RECORDINGS / "rec.png").read_bytes(),
    "rec.mp4": (RECORDINGS / "clip.mp4").read_bytes(),
    "bad.png": b"this is no picture",
}
# A cached run must follow its first one.
RUNS = (
    *("image_invert", "image_invert_cached", "image_to_video", "video_invert", "error_execution"),
    *("error_missing_input_file", "error_missing_model", "error_missing_node", "error_no_outputs"),
    "error_required_input_missing",
)
# Runs that are stopped: the request that waits for a node, and this node.
STOPPED_RUNS: Mapping[str, tuple[str, str]] = {
    "interrupted": ("POST /interrupt", "2"),
    "pending_deleted": ("GET /queue", "0"),
}
# A run without a client follows an equal one.
UNHEARD = "image_invert_cached_without_client"
NEW_RUNS: Mapping[str, tuple[str, Sequence[tuple[str, Mapping[str, Any]]]]] = {
    "audio": (
        "success, a sound file",
        [
            ("EmptyAudio", {"duration": 0.5, "sample_rate": 44_100, "channels": 2}),
            ("SaveAudio", {"audio": ["1", 0], "filename_prefix": "577c686f/sound"}),
        ],
    ),
    "mesh": (
        "success, a 3D file",
        [
            ("CompatCube", {"side": 4}),
            ("VoxelToMeshBasic", {"voxel": ["1", 0], "threshold": 0.5}),
            ("SaveGLB", {"mesh": ["2", 0], "filename_prefix": "577c686f/cube"}),
        ],
    ),
    "text_file": (
        "success, a text file",
        [
            ("PrimitiveString", {"value": "a lake\nat night"}),
            ("SaveText", {"text": ["1", 0], "filename_prefix": "577c686f/note", "format": "txt"}),
        ],
    ),
    "error_cycle": (
        "refused, two nodes depend on each other",
        [
            ("ImageInvert", {"image": ["2", 0]}),
            ("ImageInvert", {"image": ["1", 0]}),
            ("SaveImage", {"images": ["2", 0], "filename_prefix": "577c686f/never"}),
        ],
    ),
    "text": (
        "success, a text and no file",
        [("PrimitiveString", {"value": "a lake\nat night"}), ("PreviewAny", {"source": ["1", 0]})],
    ),
}


async def main(url: str, base: str, *only: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS) as http:
        stats = (await http.get("/system_stats")).raise_for_status().json()["system"]
        folder = RECORDINGS / stats["comfyui_version"]
        folder.mkdir(exist_ok=True)
        for name, data in UPLOADED.items():
            (await http.post("/upload/image", files={"image": (name, data)})).raise_for_status()
        recorder = Recorder(http, folder, base)
        for name in (name for name in RUNS if not only or name in only):
            known = _oldest(name)
            await recorder.run(name, known["note"], known["http"][0]["request"]["prompt"])
        for name in (name for name in NEW_RUNS if not only or name in only):
            note, nodes = NEW_RUNS[name]
            graph = {
                str(at): {"class_type": kind, "inputs": dict(inputs)} for at, (kind, inputs) in enumerate(nodes, 1)
            }
            await recorder.run(name, note, graph)
        for name in (name for name in STOPPED_RUNS if not only or name in only):
            await recorder.stopped_run(name)
        if not only or UNHEARD in only:
            await recorder.unheard_run(UNHEARD)
        if not only or "uploads" in only:
            await recorder.uploads("uploads")


def _oldest(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((OLDEST / f"{name}.json").read_text("utf-8"))
    return found


@dataclass(frozen=True)
class Recorder:
    http: httpx.AsyncClient
    folder: Path
    base: str

    async def run(self, name: str, note: str, graph: Mapping[str, Any]) -> None:
        async with self._client() as client:
            exchange = await self._exchange("POST", "/prompt", {"prompt": graph, "client_id": client.id})
            exchanges = [exchange]
            if exchange["status"] == 200:
                prompt_id = exchange["response"]["prompt_id"]
                await client.listen(_ends(prompt_id))
                exchanges.append(await self._exchange("GET", f"/history/{prompt_id}"))
                entry = exchanges[-1]["response"][prompt_id]
                exchanges += [await self._exchange("GET", f"/view?{query}") for query in _files(entry["outputs"])]
        self._write(name, {"note": note, "client_id": client.id, "http": exchanges, "ws": client.messages})

    async def stopped_run(self, name: str) -> None:
        """Repeat the oldest recording request by request."""
        known, (start, node) = _oldest(name), STOPPED_RUNS[name]
        exchanges: list[dict[str, Any]] = []
        async with self._client() as client:
            ids = {known["client_id"]: client.id}
            for exchange in known["http"]:
                method, path = exchange["method"], with_ids(exchange["path"], ids)
                if f"{method} {path}" == start:
                    await client.listen(_runs(node))
                if path.startswith("/history/") and exchange["response"]:
                    await client.listen(_ends(path.removeprefix("/history/")))
                body = json.loads(with_ids(json.dumps(exchange.get("request")), ids))
                exchanges.append(await self._exchange(method, path, body))
                if path == "/prompt":
                    ids[exchange["response"]["prompt_id"]] = exchanges[-1]["response"]["prompt_id"]
        self._write(name, {"note": known["note"], "client_id": client.id, "http": exchanges, "ws": client.messages})

    async def unheard_run(self, name: str) -> None:
        """Run a graph twice without a client, and keep the second run."""
        graph = json.loads(json.dumps(_oldest("image_invert")["http"][0]["request"]["prompt"]))
        graph["3"]["inputs"]["filename_prefix"] = "577c686f/unheard"
        await self._run_unheard(graph)
        exchanges = await self._run_unheard(graph)
        self._write(name, {"note": "success, all cached, without a client", "http": exchanges})

    async def _run_unheard(self, graph: Mapping[str, Any]) -> list[dict[str, Any]]:
        exchange = await self._exchange("POST", "/prompt", {"prompt": graph})
        path = f"/history/{exchange['response']['prompt_id']}"
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                # Without a client, no message announces the end.
                history = await self._exchange("GET", path)
                if history["response"]:
                    return [exchange, history]
                await asyncio.sleep(0.05)

    async def uploads(self, name: str) -> None:
        exchanges: list[dict[str, Any]] = []
        for exchange in _oldest(name)["exchanges"]:
            fields = dict(exchange["multipart"])
            file = fields.pop("image")
            response = await self.http.post(
                exchange["path"], files={"image": (file, UPLOADED.get(file, b"x"))}, data=fields
            )
            exchanges.append({**exchange, **_answer(response)})
        self._write(name, {"exchanges": exchanges})

    @asynccontextmanager
    async def _client(self) -> AsyncIterator["RecordedClient"]:
        client_id = uuid.uuid4().hex
        async with connect(f"{str(self.http.base_url).replace('http', 'ws', 1)}/ws?clientId={client_id}") as socket:
            client = RecordedClient(client_id, socket)
            await client.listen(lambda message: message["type"] == "status")
            yield client

    async def _exchange(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        response = await self.http.request(method, path, json=body)
        request = {} if body is None else {"request": body}
        return {"method": method, "path": path, **request, **_answer(response)}

    def _write(self, name: str, recorded: Mapping[str, Any]) -> None:
        text = json.dumps(recorded, indent=1).replace(self.base, "/comfyui")
        (self.folder / f"{name}.json").write_text(_FILE_OF_CODE.sub(r'File \\"/comfyui/\1\\"', text) + "\n", "utf-8")
        sys.stdout.write(f"{name}\n")


class RecordedClient:
    """The messages of one socket."""

    def __init__(self, client_id: str, socket: ClientConnection) -> None:
        self.id = client_id
        self.messages: list[Message] = []
        self._socket = socket
        self._started = time.monotonic()

    async def listen(self, until: Callable[[Message], bool]) -> None:
        """Keep all messages up to one that matches."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                if isinstance(text := await self._socket.recv(), str):
                    self.messages.append({"t": round(time.monotonic() - self._started, 3), **json.loads(text)})
                    if until(self.messages[-1]):
                        return


def _ends(prompt_id: str) -> Callable[[Message], bool]:
    return lambda message: message["type"] == "executing" and message["data"] == {"node": None, "prompt_id": prompt_id}


def _runs(node: str) -> Callable[[Message], bool]:
    return lambda message: bool(message["type"] == "executing" and message["data"]["node"] == node)


def _answer(response: httpx.Response) -> dict[str, Any]:
    kind = response.headers.get("content-type")
    is_json = (kind or "").startswith("application/json")
    content = response.json() if is_json else f"({len(response.content)} bytes)" if response.content else ""
    return {"status": response.status_code, "content_type": kind, "response": content}


def _files(outputs: Mapping[str, Any]) -> list[httpx.QueryParams]:
    entries = [entry for output in outputs.values() for entries in output.values() for entry in entries]
    return [
        httpx.QueryParams({key: entry[key] for key in ("filename", "subfolder", "type")})
        for entry in entries
        if isinstance(entry, dict) and entry.get("type") == "output"
    ]


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
