"""Unmodified clients of ComfyUI work with a server.

They are comfy-cli in both modes, an SDK from npm with a token and through the gateway, and the calls of ComfyUI's
examples.
"""

import asyncio
import json
import os
import sys
import urllib.parse
import urllib.request
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from websocket import create_connection

from comfyrelay.comfyui.versions import TRIED
from comfyrelay.gateway import Gateway
from comfyrelay.simulator.misbehaviour import Slow
from tests.support.api_calls import png
from tests.support.comfyui_site import MODELS, ComfyuiSite, open_site, painted
from tests.support.editor_files import empty, invert, save, workflow
from tests.support.npm import install
from tests.support.storage import BUCKET
from tests.support.world import PATIENCE_SECONDS

MODEL = MODELS[0]
THIRD_PARTY = "@saintno/comfyui-sdk@0.3.1"
COMFY = Path(sys.executable).with_name("comfy")
# A graph as the editor saves it, which inverts and saves an empty image.
EDITOR_FILE = workflow([empty(), invert(2, 1), save(3, 2)], [(1, 1, 0, 2, 0), (2, 2, 0, 3, 0)])


@pytest.fixture(params=["sqlite", "postgresql"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ComfyuiSite]:
    """Open a server on SQLite, or on PostgreSQL with S3; the second worker has another model and fewer nodes."""
    storage_url = None
    if request.param == "postgresql":
        request.getfixturevalue("aws")
        storage_url = f"s3://{BUCKET}/clients"
    backend = request.getfixturevalue("sqlite_backend" if request.param == "sqlite" else "real_postgres_backend")
    async with open_site(backend, storage_url, tmp_path, versions=(TRIED[-1], "0.7.0")) as site:
        yield site


@pytest.fixture
async def gateway(site: ComfyuiSite) -> AsyncIterator[Gateway]:
    async with Gateway(site.url, token=token_of(site), port=0) as gateway:
        yield gateway


def token_of(site: ComfyuiSite) -> str:
    return str(site.client.http.headers["Authorization"]).removeprefix("Bearer ")


@dataclass
class ComfyCli:
    folder: Path
    # `local` or `cloud`
    mode: str
    environment: Mapping[str, str]

    async def __call__(self, *words: str) -> Any:
        """Run a command and return its data."""
        words = (str(COMFY), "--skip-prompt", "--json", "--where", self.mode, *words)
        process = await asyncio.create_subprocess_exec(
            *words, stdout=PIPE, stderr=PIPE, env=self.environment, cwd=self.folder
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            out, err = await process.communicate()
        assert process.returncode == 0, (words, out.decode(), err.decode())
        return json.loads(out)["data"]

    async def submit(self, file: str) -> str:
        return str((await self("run", "--workflow", file))["prompt_id"])

    async def status(self, prompt_id: str) -> str:
        return str((await self("jobs", "status", prompt_id))["status"])


@pytest.fixture(params=["local", "cloud"])
def comfy(request: pytest.FixtureRequest, site: ComfyuiSite, gateway: Gateway, tmp_path: Path) -> ComfyCli:
    targets = {
        "local": {"COMFY_LOCAL_URL": gateway.url},
        "cloud": {"COMFY_CLOUD_BASE_URL": site.url, "COMFY_CLOUD_API_KEY": token_of(site)},
    }
    common = {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "DO_NOT_TRACK": "1",
        # Processes that watch a job end with their command.
        "COMFY_NO_WATCH": "1",
    }
    (tmp_path / "graph.json").write_text(json.dumps(painted(MODEL)))
    (tmp_path / "editor.json").write_text(json.dumps(EDITOR_FILE))
    return ComfyCli(tmp_path, request.param, common | targets[request.param])


@pytest.mark.parametrize("file", ["graph.json", "editor.json"])
async def test_comfy_cli_runs_graphs_and_files_of_the_editor(comfy: ComfyCli, file: str) -> None:
    done = await comfy("run", "--workflow", file, "--wait")
    assert done["status"] == "completed"
    assert len(done["outputs"]) == 1
    saved = await comfy("download", done["prompt_id"], "--out-dir", "made")
    assert saved, saved
    [image] = (path for path in (comfy.folder / "made").rglob("*") if path.is_file())
    assert image.read_bytes().startswith(b"\x89PNG")


async def test_comfy_cli_lists_and_cancels_jobs(site: ComfyuiSite, comfy: ComfyCli) -> None:
    site.simulators[0].misbehave(Slow(class_type="KSampler", seconds=60, steps=600))
    running = await comfy.submit("graph.json")
    await site.client.until_running(1)
    waiting = await comfy.submit("graph.json")
    listed = {job["prompt_id"]: job["status"] for job in (await comfy("jobs", "ls"))["jobs"]}
    assert listed.keys() == {running, waiting}
    assert await comfy.status(running) == "running"
    assert await comfy.status(waiting) in ("queued", "pending")
    for prompt_id in (waiting, running):
        await comfy("jobs", "cancel", prompt_id)
        await site.client.ended(prompt_id)
        assert await comfy.status(prompt_id) in ("cancelled", "error")


async def test_example_scripts_run(site: ComfyuiSite, gateway: Gateway) -> None:
    address = gateway.url.removeprefix("http://")
    for model in MODELS:
        images = await asyncio.to_thread(images_by_websocket, address, painted(model))
        assert [data[:4] for data in images] == [b"\x89PNG"]
    prompt_id = await asyncio.to_thread(queued, address, painted(MODELS[1], seed=6))
    assert (await site.client.ended(prompt_id))["status"]["completed"]
    assert site.simulators[1].log.count("POST", "/prompt") == 2


@pytest.fixture(scope="module")
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(THIRD_PARTY, tmp_path_factory.mktemp("sdk"))


@pytest.mark.parametrize("access", ["token", "gateway"])
async def test_third_party_sdk_works(
    third_party: Path, access: str, site: ComfyuiSite, gateway: Gateway, tmp_path: Path
) -> None:
    # A run shorter than a heartbeat has no progress, and this SDK takes progress as the start.
    site.simulators[1].misbehave(Slow(class_type="KSampler", seconds=3, steps=10))
    (tmp_path / "graph.json").write_text(json.dumps(painted(MODELS[1])))
    (tmp_path / "photo.png").write_bytes(png("red"))
    target = {"COMFYUI_URL": gateway.url}
    if access == "token":
        target = {"COMFYUI_URL": site.url, "COMFYUI_TOKEN": token_of(site)}
    process = await asyncio.create_subprocess_exec(
        *("node", Path(__file__).with_name("saintno_sdk.mjs"), third_party),
        *(tmp_path / "graph.json", tmp_path / "photo.png"),
        stdout=PIPE,
        env={**os.environ, **target},
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        out, _ = await process.communicate()
    found = json.loads(out.splitlines()[-1])
    assert {name: problem for name, problem in found.items() if problem is not None} == {}
    assert len(found) == 8


def queued(address: str, graph: Mapping[str, Any]) -> str:
    """Submit a graph as ComfyUI's basic example does."""
    body = json.dumps({"prompt": graph}).encode()
    return str(json.loads(fetched(f"http://{address}/prompt", body))["prompt_id"])


def images_by_websocket(address: str, graph: Mapping[str, Any]) -> list[bytes]:
    """Submit a graph, wait for its end on a WebSocket, and fetch its images, as ComfyUI's examples do."""
    client_id = str(uuid4())
    socket = create_connection(f"ws://{address}/ws?clientId={client_id}", timeout=PATIENCE_SECONDS)
    body = json.dumps({"prompt": graph, "client_id": client_id}).encode()
    prompt_id = json.loads(fetched(f"http://{address}/prompt", body))["prompt_id"]
    while True:
        message = socket.recv()
        if isinstance(message, str):
            event = json.loads(message)
            if event["type"] == "executing" and event["data"] == {"node": None, "prompt_id": prompt_id}:
                break
    socket.close()
    outputs = json.loads(fetched(f"http://{address}/history/{prompt_id}"))[prompt_id]["outputs"]
    images = [image for output in outputs.values() for image in output.get("images", ())]
    return [fetched(f"http://{address}/view?{urllib.parse.urlencode(image)}") for image in images]


def fetched(url: str, body: bytes | None = None) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=PATIENCE_SECONDS) as response:
        content: bytes = response.read()
        return content
