"""The simulator answers only allowed callers, and reads and writes only files in its own folders."""

import asyncio
import json
import os
import shutil
import urllib.request
from pathlib import Path

import httpx
import pytest
from PIL import Image

from comfyrelay.comfyui import ComfyClient
from comfyrelay.errors import ServerRefused
from comfyrelay.simulator import Simulator
from tests.integration.simulator.raw_client import Client, invert_graph
from tests.support.paths import RECORDINGS

SECRET = "s" * 43
FOREIGN_HOSTS = ("evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "[::1", "")


@pytest.fixture
def private_picture(tmp_path: Path) -> Path:
    """Return a picture of the owner outside the simulator's folders."""
    path = tmp_path / "private.png"
    Image.new("RGB", (8, 8), "#123456").save(path)
    return path


async def test_foreign_host_names_are_refused(simulator: Simulator) -> None:
    async with httpx.AsyncClient(base_url=simulator.url) as http:
        for host in FOREIGN_HOSTS:
            for path in ("/queue", "/view?filename=a", "/ws", "/simulator/misbehave"):
                refused = await http.get(path, headers={"Host": host})
                # aiohttp itself answers 400 to some invalid names
                assert refused.status_code in (400, 403), (host, path)
        for host in ("127.0.0.1", "localhost:8188", "[::1]:8188"):
            assert (await http.get("/queue", headers={"Host": host})).is_success, host


async def test_simulator_for_other_machines_answers_to_addresses_and_plain_names() -> None:
    async with Simulator(host="0.0.0.0") as simulator:
        port = simulator.url.rpartition(":")[2]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            for host, status in (("comfyui:8188", 200), ("192.0.2.7", 200), ("evil.example", 403)):
                assert (await http.get("/queue", headers={"Host": host})).status_code == status, host


async def test_cloud_and_its_file_store_refuse_foreign_host_names() -> None:
    async with Simulator(cloud=True) as simulator, httpx.AsyncClient() as http:
        key = {"Authorization": f"Bearer {simulator.api_key}"}
        form = {"content_type": "image/png", "file_path": "a.png"}
        url = f"{simulator.url}/api/v2/assets"
        upload = await http.post(url, headers=key, files={"file": ("a.png", b"1")}, data=form)
        stored = (await http.get(f"{url}/{upload.json()['id']}/content", headers=key)).headers["Location"]
        assert (await http.get(stored)).content == b"1"
        foreign = {"Host": "evil.example"}
        assert (await http.get(stored, headers=foreign)).status_code == 403
        assert (await http.get(f"{url}/x", headers={**key, **foreign})).status_code == 403


async def test_every_route_needs_the_secret() -> None:
    async with Simulator(secret=SECRET) as simulator, httpx.AsyncClient(base_url=simulator.url) as http:
        for path in (
            "/queue",
            "/prompt",
            "/view?filename=a",
            "/ws",
            "/simulator/misbehave",
            "/",
            f"/{SECRET[:-1]}/queue",
        ):
            for method in ("GET", "POST", "DELETE"):
                assert (await http.request(method, path)).status_code == 401, (method, path)
        for login in (("simulator", "wrong"), ("simulator", ""), ("other", SECRET)):
            assert (await http.get("/queue", auth=login)).status_code == 401, login
        assert (await http.get("/queue", headers={b"Authorization": b"Basic \xff"})).status_code == 401
        assert SECRET not in simulator.url


async def test_clients_with_the_secret_run_graphs() -> None:
    async with Simulator(secret=SECRET) as simulator:
        shutil.copy(RECORDINGS / "rec.png", simulator.folder / "input")
        async with ComfyClient(simulator.url_with_login) as comfy:
            result = await comfy.run(invert_graph())
            assert result.files
            assert SECRET not in comfy.url
        async with ComfyClient(simulator.url) as stranger:
            with pytest.raises(ServerRefused, match="refused access"):
                await stranger.check()

        def read_queue() -> object:
            # a plain program that knows only the URL
            with urllib.request.urlopen(f"{simulator.url_with_secret}/queue") as answer:
                return json.load(answer)

        assert await asyncio.to_thread(read_queue) == {"queue_running": [], "queue_pending": []}


@pytest.mark.parametrize("node", ["LoadImage", "LoadVideo"])
async def test_node_reads_no_file_outside_the_folders(client: Client, private_picture: Path, node: str) -> None:
    inputs = client.simulator.folder / "input"
    (inputs / "link.png").symlink_to(private_picture)
    (inputs / "folder").symlink_to(private_picture.parent)
    climbing = os.path.relpath(private_picture, inputs)
    for name in (
        str(private_picture),
        climbing,
        "link.png",
        f"folder/{private_picture.name}",
        "../output",
        "a\0b",
        "~",
    ):
        save = {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}}
        field = "image" if node == "LoadImage" else "file"
        refused = await client.prompt({"1": {"class_type": node, "inputs": {field: name}}, "2": save})
        assert refused.status_code == 400, name
        assert "Invalid" in refused.text
    assert client.simulator.log.prompts_queued == 0


async def test_link_that_appears_after_the_check_is_not_read(client: Client, private_picture: Path) -> None:
    """A prompt is checked first and then waits in the queue, so a link may appear in between."""
    folders = client.simulator.folder
    (folders / "input" / "later.png").symlink_to(folders / "input" / "rec.png")
    assert client.simulator._folders is not None
    assert client.simulator._folders.resolve("later.png").name == "later.png"
    (folders / "input" / "later.png").unlink()
    (folders / "input" / "later.png").symlink_to(private_picture)
    with pytest.raises(FileNotFoundError, match="only files in its own folders"):
        client.simulator._folders.resolve("later.png")


async def test_view_and_uploads_stay_inside_the_folders(client: Client, private_picture: Path) -> None:
    base = client.simulator.folder
    (base / "output" / "link.png").symlink_to(private_picture)
    (base / "output" / "out").symlink_to(private_picture.parent)
    (base / "input" / "out").symlink_to(private_picture.parent)
    for query in (
        {"filename": "link.png"},
        {"filename": private_picture.name, "subfolder": "out"},
        {"filename": private_picture.name, "subfolder": str(private_picture.parent)},
        {"filename": str(private_picture)},
        {"filename": "a\0b"},
        {"filename": "x" * 400},
    ):
        assert (await client.http.get("/view", params=query)).status_code in (400, 403, 404), query
    written = client.simulator.log.uploads_written
    for name, fields in (
        ("/etc/new.png", {}),
        (str(private_picture), {"overwrite": "true"}),
        ("C:\\new.png", {}),
        ("a/b.png", {}),
        ("new.png", {"subfolder": str(private_picture.parent)}),
        ("new.png", {"subfolder": "out"}),
        ("new.png", {"subfolder": "a\0b"}),
        ("x" * 300, {}),
        (".", {"overwrite": "true"}),
    ):
        refused = await client.http.post("/upload/image", data=fields, files={"image": (name, b"1")})
        assert refused.status_code == 400, name
    assert client.simulator.log.uploads_written == written
    assert [path.name for path in private_picture.parent.iterdir()] == [private_picture.name]
