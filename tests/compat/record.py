"""`python -m tests.compat.record URL FOLDER [RUN …]`: record how a real ComfyUI answers, as data for tests.

`FOLDER` has the `input` folder of the server. The runs of the oldest recordings are repeated, and those below follow.
All exchanges and messages are in `tests/support/recordings/VERSION`. The server should run on CPU, with the node pack
of this folder, and have run nothing before: otherwise more is cached.
"""

import asyncio
import json
import re
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect

from tests.support.paths import RECORDINGS
from tests.support.world import PATIENCE_SECONDS

# In tracebacks, as JSON.
_FILE_OF_CODE = re.compile(r'File \\"[^"]*?([^"/]+)\\"')
OLDEST = RECORDINGS / "0.7.0"
# A cached run must follow its first one.
RUNS = (
    *("image_invert", "image_invert_cached", "image_to_video", "video_invert", "error_execution"),
    *("error_missing_input_file", "error_missing_model", "error_missing_node", "error_no_outputs"),
    "error_required_input_missing",
)
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
        for name, content in (("rec.png", "rec.png"), ("rec.mp4", "clip.mp4"), ("bad.png", None)):
            data = (RECORDINGS / content).read_bytes() if content else b"this is no picture"
            (await http.post("/upload/image", files={"image": (name, data)})).raise_for_status()
        for name in (name for name in RUNS if not only or name in only):
            known = json.loads((OLDEST / f"{name}.json").read_text("utf-8"))
            await _record(http, folder / f"{name}.json", known["note"], known["http"][0]["request"]["prompt"], base)
        for name in (name for name in NEW_RUNS if not only or name in only):
            note, nodes = NEW_RUNS[name]
            graph = {
                str(at): {"class_type": kind, "inputs": dict(inputs)} for at, (kind, inputs) in enumerate(nodes, 1)
            }
            await _record(http, folder / f"{name}.json", note, graph, base)


async def _record(http: httpx.AsyncClient, path: Path, note: str, graph: Mapping[str, Any], base: str) -> None:
    client_id = uuid.uuid4().hex
    messages: list[dict[str, Any]] = []
    async with connect(f"{str(http.base_url).replace('http', 'ws', 1)}/ws?clientId={client_id}") as socket:
        started = time.monotonic()
        first = json.loads(await socket.recv())
        messages.append({"t": 0.0, **first})
        exchanges = [await _exchange(http, "POST", "/prompt", {"prompt": graph, "client_id": client_id})]
        answer = exchanges[0]["response"]
        if exchanges[0]["status"] == 200:
            await _listen(socket, answer["prompt_id"], messages, started)
            exchanges.append(await _exchange(http, "GET", f"/history/{answer['prompt_id']}"))
            entry = exchanges[-1]["response"][answer["prompt_id"]]
            exchanges += [await _exchange(http, "GET", f"/view?{query}") for query in _files(entry["outputs"])]
    recorded = {"note": note, "client_id": client_id, "http": exchanges, "ws": messages}
    text = json.dumps(recorded, indent=1).replace(base, "/comfyui")
    path.write_text(_FILE_OF_CODE.sub(r'File \\"/comfyui/\1\\"', text) + "\n", "utf-8")
    sys.stdout.write(f"{path.name}: {exchanges[0]['status']}, {len(messages)} messages\n")


async def _listen(socket: ClientConnection, prompt_id: str, messages: list[dict[str, Any]], started: float) -> None:
    """Keep all messages until the run has ended."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if isinstance(text := await socket.recv(), str):
                messages.append({"t": round(time.monotonic() - started, 3), **json.loads(text)})
                if messages[-1]["type"] == "executing" and messages[-1]["data"]["node"] is None:
                    assert messages[-1]["data"]["prompt_id"] == prompt_id
                    return


async def _exchange(http: httpx.AsyncClient, method: str, path: str, body: object = None) -> dict[str, Any]:
    response = await http.request(method, path, json=body)
    kind = response.headers.get("content-type")
    is_json = (kind or "").startswith("application/json")
    content = response.json() if is_json else f"({len(response.content)} bytes)" if response.content else ""
    request = {} if body is None else {"request": body}
    return {
        "method": method,
        "path": path,
        **request,
        "status": response.status_code,
        "content_type": kind,
        "response": content,
    }


def _files(outputs: Mapping[str, Any]) -> list[httpx.QueryParams]:
    entries = [entry for output in outputs.values() for entries in output.values() for entry in entries]
    return [
        httpx.QueryParams({key: entry[key] for key in ("filename", "subfolder", "type")})
        for entry in entries
        if isinstance(entry, dict) and entry.get("type") == "output"
    ]


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
