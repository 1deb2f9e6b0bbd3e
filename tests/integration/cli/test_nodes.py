"""`comfyrelay nodes update` fetches the map from node classes to packages."""

import json
import os
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from typer.testing import CliRunner

from comfyrelay.cli.main import app
from comfyrelay.comfyui.editor.packages import NODE_MAP, read_node_map
from comfyrelay.errors import InvalidInput

MAP = {"https://github.com/me/mine": [["Foo", "Bar"], {"title_aux": "Mine"}]}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """Serve a node map and a page; yield the URL."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "map.json").write_text(json.dumps(MAP))
    (tmp_path / "site" / "page.html").write_text("<html>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def update(source: str, tmp_path: Path) -> str:
    command = ["nodes", "update", "--source", source, "--data-dir", str(tmp_path / "data")]
    return CliRunner().invoke(app, command, catch_exceptions=False).output


def test_node_map_of_a_website_is_stored_in_the_data_folder(site: str, tmp_path: Path) -> None:
    assert "Packages of 2 node classes are in" in update(f"{site}/map.json", tmp_path)
    assert read_node_map(tmp_path / "data" / NODE_MAP)["Foo"].startswith("me/mine, from the node map of ")


def test_node_map_of_a_file_keeps_its_date(tmp_path: Path) -> None:
    file = tmp_path / "map.json"
    file.write_text(json.dumps(MAP))
    os.utime(file, (0, 1_790_000_000))
    update(str(file), tmp_path)
    assert read_node_map(tmp_path / "data" / NODE_MAP)["Bar"] == "me/mine, from the node map of 2026-09-21"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("page.html", "This is not a node map: "),
        ("missing.json", "answered with 404"),
        ("", "This is not a node map: "),
    ],
)
def test_unusable_node_map_replaces_nothing(site: str, name: str, why: str, tmp_path: Path) -> None:
    update(f"{site}/map.json", tmp_path)
    with pytest.raises(InvalidInput) as caught:
        update(f"{site}/{name}", tmp_path)
    assert why in caught.value.detail
    assert "Foo" in read_node_map(tmp_path / "data" / NODE_MAP)
