"""The workflow commands send the right requests and print the results."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from comfyrelay.configuration import ENV_PREFIX
from tests.support import commands
from tests.support.graphs import invert

WORKFLOW = {
    "slug": "portrait-1",
    "name": "Portrait, soft",
    "properties": [],
    "output_node_id": "3",
    "output_extension": "png",
    "output_mime_type": "image/png",
    "is_active": True,
}


class Catalogue:
    """A server with one workflow, which records requests."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[str, str, Any]] = []

    async def known(self, _request: web.Request) -> web.Response:
        return web.json_response({"data": {"items": [WORKFLOW], "next_cursor": None}})

    async def change(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(("PATCH", request.path, body))
        return web.json_response({"data": WORKFLOW, "message": "Saved."})

    async def remove(self, request: web.Request) -> web.Response:
        self.asked.append(("DELETE", request.path, None))
        return web.json_response({"data": {"id": "portrait-1"}, "message": "Removed."})

    async def command(self, *words: str) -> commands.CommandResult:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
        env = {**clean, "COMFYRELAY_URL": self.url, "COMFYRELAY_TOKEN": "crt_mine"}
        return await commands.run("workflows", *words, env=env)


@pytest.fixture
async def catalogue() -> AsyncIterator[Catalogue]:
    found, app = Catalogue(), web.Application()
    app.router.add_get("/api/workflows", found.known)
    app.router.add_patch("/api/workflows/{slug}", found.change)
    app.router.add_delete("/api/workflows/{slug}", found.remove)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


async def test_workflow_is_changed_by_name_or_slug(catalogue: Catalogue, tmp_path: Path) -> None:
    (tmp_path / "newer.json").write_text(json.dumps(invert()))
    ran = await catalogue.command("rename", "Portrait, soft", "Portrait")
    assert (ran.code, ran.out) == (0, "workflow portrait-1: Saved.\n"), ran.err
    ran = await catalogue.command("replace", "portrait-1", str(tmp_path / "newer.json"), "--json")
    assert (ran.code, json.loads(ran.out)["slug"]) == (0, "portrait-1"), ran.err
    ran = await catalogue.command("remove", "Portrait, soft")
    assert (ran.code, ran.out) == (0, "workflow portrait-1: Removed.\n"), ran.err
    assert catalogue.asked == [
        ("PATCH", "/api/workflows/portrait-1", {"name": "Portrait"}),
        ("PATCH", "/api/workflows/portrait-1", {"graph": invert()}),
        ("DELETE", "/api/workflows/portrait-1", None),
    ]
