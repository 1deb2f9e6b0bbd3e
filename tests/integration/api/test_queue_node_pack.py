"""The node pack in `extras`, with a server on a socket. `make compat` runs it in real versions of ComfyUI."""

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from comfyrelay.simulator.misbehaviour import Fail, Slow
from tests.support.api_calls import png
from tests.support.comfy_site import ComfySite, open_comfy_site
from tests.support.editor_files import empty, invert, save, workflow
from tests.support.graphs import invert as invert_graph
from tests.support.graphs import invert_file
from tests.support.paths import QUEUE_PACK
from tests.support.world import PATIENCE_SECONDS, SqliteBackend

_SPEC = importlib.util.spec_from_file_location("relay", QUEUE_PACK / "relay.py")
assert _SPEC is not None
assert _SPEC.loader is not None
relay: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(relay)
DRAWN = workflow([empty(), invert(2, 1), save(3, 2)], [(1, 1, 0, 2, 0), (2, 2, 0, 3, 0)])


@dataclass
class Editor:
    """The part of ComfyUI that the pack uses, and the messages that the browser gets."""

    folder: Path
    messages: "asyncio.Queue[tuple[Any, Any]]" = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        folders = {name: self.folder / name for name in ("input", "output", "temp")}
        for path in folders.values():
            path.mkdir()
        self.relay = relay.Relay(settings=self.folder / "settings.json", folders=folders)

    def set(self, **settings: str) -> None:
        (self.folder / "settings.json").write_text(json.dumps(settings))

    async def queue(self, graph: Any, drawn: Any = None) -> str:
        job_id: str = await self.relay.submit(graph, drawn, lambda kind, data: self.messages.put_nowait((kind, data)))
        return job_id

    async def until_done(self, job_id: str) -> list[tuple[Any, Any]]:
        found: list[tuple[Any, Any]] = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not found or found[-1] != ("executing", {"node": None, "prompt_id": job_id}):
                found.append(await self.messages.get())
        return found


@pytest.fixture
async def site(sqlite_backend: SqliteBackend, tmp_path: Path) -> AsyncIterator[ComfySite]:
    async with open_comfy_site(sqlite_backend, tmp_path) as site:
        yield site


@pytest.fixture
def editor(site: ComfySite, tmp_path: Path) -> Editor:
    (tmp_path / "comfyui").mkdir()
    editor = Editor(tmp_path / "comfyui")
    editor.set(url=site.url, token=site.token)
    return editor


async def test_files_of_comfyui_are_sent_and_outputs_come_back(site: ComfySite, editor: Editor) -> None:
    (editor.folder / "input/a folder").mkdir()
    (editor.folder / "input/a folder/photo.png").write_bytes(png("red"))
    job_id = await editor.queue(invert_file("a folder/photo.png [input]"), DRAWN)
    messages = await editor.until_done(job_id)
    assert messages[0] == ("execution_start", {"prompt_id": job_id})
    assert messages[-2][0] == "execution_success"
    [shown] = [data for kind, data in messages if kind == "executed"]
    assert shown["node"] == "3"
    [image] = shown["output"]["images"]
    assert image["type"] == "output"
    saved = (editor.folder / "output" / image["subfolder"] / image["filename"]).read_bytes()
    assert saved.startswith(b"\x89PNG")
    assert b"workflow" in saved
    found = await site.user.get(f"/api/ai-jobs/{job_id}")
    assert found["status"] == "completed"


async def test_progress_and_previews_are_shown(site: ComfySite, editor: Editor) -> None:
    site.simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000, previews=True))
    (editor.folder / "output/photo.png").write_bytes(png("red"))
    job_id = await editor.queue(invert_file("photo.png [output]"))
    seen: dict[Any, Any] = {}
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not {"executing", "progress", 1} <= seen.keys():
            kind, data = await editor.messages.get()
            seen[kind] = data
    assert seen["executing"] == {"node": "2", "display_node": "2", "prompt_id": job_id}
    assert seen["progress"]["max"] == 6000
    assert seen[1].startswith(b"\0\0\0\1\xff\xd8")
    await site.user.post(f"/api/ai-jobs/{job_id}/cancel")
    messages = await editor.until_done(job_id)
    assert messages[-2][0] == "execution_interrupted"


async def test_failed_node_is_named(site: ComfySite, editor: Editor) -> None:
    site.simulator.misbehave(Fail(class_type="ImageInvert", message="the node is broken"))
    (editor.folder / "input/photo.png").write_bytes(png("red"))
    kind, data = (await editor.until_done(await editor.queue(invert_file("photo.png"))))[-2]
    assert (kind, data["node_id"], data["node_type"]) == ("execution_error", "2", "ImageInvert")
    assert "the node is broken" in data["exception_message"]


@pytest.mark.parametrize("name", ["../secret.png", "secret.png [temp]", "{folder}/secret.png", "a" * 5000 + ".png"])
async def test_only_files_of_comfyuis_folders_are_sent(
    editor: Editor, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (editor.folder / "secret.png").write_bytes(png("red"))
    monkeypatch.delattr(relay._Api, "upload")
    with pytest.raises(relay.RelayError, match="names"):
        await editor.queue(invert_file(name.replace("{folder}", str(editor.folder))))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "Write the url and the token"),
        ({"url": "http://127.0.0.1:9", "token": "x"}, "does not answer"),
        ({"url": "not a URL", "token": "x"}, "does not answer"),
    ],
)
async def test_unusable_settings_are_explained(editor: Editor, settings: dict[str, str], words: str) -> None:
    editor.set(**settings)
    with pytest.raises(relay.RelayError, match=words):
        await editor.queue(invert_file("photo.png"))


async def test_wrong_token_is_explained(site: ComfySite, editor: Editor) -> None:
    editor.set(url=site.url, token="wrong")
    with pytest.raises(relay.RelayError, match="token"):
        await editor.queue(invert_file("photo.png"))


@pytest.mark.parametrize("answer", [{"id": "../../evil"}, {"id": 7}, {}])
async def test_server_cannot_choose_the_folder_of_its_outputs(editor: Editor, answer: Any) -> None:
    async def accept(_: web.Request) -> web.Response:
        return web.json_response(answer, status=201)

    app = web.Application()
    app.router.add_post("/api/v2/jobs", accept)
    async with TestServer(app) as server:
        editor.set(url=str(server.make_url("/")), token="x")
        with pytest.raises(relay.RelayError, match="response is not from ComfyRelay"):
            await editor.queue(invert_graph())
