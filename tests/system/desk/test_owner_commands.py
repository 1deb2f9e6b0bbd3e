"""Commands use the secret of a desk."""

import asyncio
import os
from pathlib import Path

import httpx
import pytest

from tests.support import commands
from tests.support.desk import OpenDesk, copy_initial_data
from tests.support.server_processes import free_port
from tests.support.world import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("built_app")


def browser_in(folder: Path) -> str:
    """Return the command of a browser that records its arguments and the page it opened."""
    browser = folder / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {folder}/started; cp "${{1#file://}}" {folder}/page\n')
    browser.chmod(0o755)
    return f"{browser} %s"


async def test_commands_find_the_secret_and_open_prints_a_link(desk: OpenDesk, tmp_path: Path) -> None:
    env = {**os.environ, "COMFYRELAY_URL": desk.ready.url, "BROWSER": browser_in(tmp_path), "COLUMNS": "200"}
    ran = await commands.run("open", env=env)
    assert (ran.code, ran.err) == (0, "")
    [link] = [splitline for splitline in ran.out.splitlines() if splitline.startswith(desk.ready.url)]
    # the link is not an argument, because other users can see the arguments of a process
    assert "link=" not in (tmp_path / "started").read_text()
    assert link in (tmp_path / "page").read_text()
    async with httpx.AsyncClient() as http:
        assert (await http.get(link)).is_success
    ran = await commands.run("open", "--no-browser", "--json", env=env)
    assert desk.ready.url in ran.out
    ran = await commands.run("jobs", env={**env, "XDG_STATE_HOME": str(tmp_path / "elsewhere")})
    assert ran.code == 2
    assert "set COMFYRELAY_TOKEN to an API token, or to the content of the desk's file owner-secret." in ran.err


async def test_up_opens_the_page_if_asked(tmp_path: Path) -> None:
    copy_initial_data(data := tmp_path / "data")
    env = {
        **os.environ,
        "COMFYRELAY_DATA_DIR": str(data),
        "COMFYRELAY_PORT": str(free_port()),
        "BROWSER": browser_in(tmp_path),
        "COLUMNS": "200",
    }
    up = await commands.start("up", "--open", env=env)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            shown = (await up.out.readuntil(b"Press Ctrl-C to stop.")).decode()
        [link] = [splitline.split()[1] for splitline in shown.splitlines() if splitline.split()[:1] == ["page"]]
        assert "no browser" not in shown
        assert "link=" not in (tmp_path / "started").read_text()
        assert link in (tmp_path / "page").read_text()
        async with httpx.AsyncClient() as http:
            assert (await http.get(link)).is_success
    finally:
        await up.kill()
