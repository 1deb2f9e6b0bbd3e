"""Commands find the running desk on any port and in any folder, and ask which one if there are several."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from comfyrelay.desk.doctor import examine
from comfyrelay.http_client import listen
from comfyrelay.system.owner_secret import desk_note, running_desks
from tests.support import commands
from tests.support.commands import CommandResult
from tests.support.desk import make_desk, open_desk
from tests.support.graphs import invert
from tests.support.server_processes import free_port


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home folder without settings and without knowledge of other desks on this machine."""
    for name in list(os.environ):
        if name.startswith("COMFYRELAY_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def command(*words: str, **env: str) -> CommandResult:
    return await commands.run(*words, env={**os.environ, "COLUMNS": "300", **env})


async def test_single_running_desk_is_found_with_its_folder(home: Path) -> None:
    (home / "graph.json").write_text(json.dumps(invert()))
    async with open_desk(make_desk(home / "elsewhere")) as desk:
        job = (await desk.client.submit(workflow_slug=(await desk.client.add_graph(invert())).data.slug)).id
        await desk.ended(job)
        assert job[-8:] in (await command("jobs")).out
        ran = await command("run", "graph.json", "--out", "made", "--max-wait", "300")
        assert ran.code == 0, ran.err
        assert "is started for this job" not in ran.err
        assert [job.max_wait_seconds async for job in desk.client.jobs()] == [300, None]
        added = await command("batch", "add", "graph.json", "--max-wait", "300")
        assert (added.code, "A desk has no more expensive fleet." in added.err) == (2, True)
        backup = await command("backup", "backups")
        assert backup.code == 0, backup.err
        [manifest] = (home / "backups").glob("*/manifest.json")
        assert "files/owner-secret" in manifest.read_text()
        about = {finding.about: finding.text async for finding in examine()}
        assert str(home / "elsewhere") in about["data folder"]
        assert "A desk is running there" in about[f"desk {desk.ready.url}"]
    assert running_desks() == []
    assert not (home / ".local" / "share").exists()


async def test_second_up_prints_the_running_desk_and_how_to_open_it(home: Path) -> None:
    async with open_desk(make_desk(home / "mine")) as desk:
        ran = await command("up", "--data-dir", "mine")
        assert (ran.code, ran.out) == (2, "")
        assert f"Your desk already runs at {desk.ready.url}: `comfyrelay open` opens it." in ran.err


async def test_taken_port_is_reported_before_anything_starts(home: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        up = (sys.executable, "-X", "importtime", "-m", "comfyrelay", "up", "--port", str(port))
        process = await asyncio.create_subprocess_exec(*up, stderr=asyncio.subprocess.PIPE)
        _, err = await process.communicate()
    lines = err.decode().splitlines()
    imported = [line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")]
    assert "comfyrelay.cli.main" in imported
    # the slow imports have not happened yet
    assert not {"comfyrelay.desk.desk", "sqlalchemy", "fastapi"} & set(imported)
    assert process.returncode == 2
    why = f"Cannot listen on 127.0.0.1:{port} (Address already in use). Choose another port with COMFYRELAY_PORT"
    assert why in lines[-1]
    assert not (home / ".local" / "share").exists()


async def test_command_must_name_one_of_several_desks(home: Path) -> None:
    async with open_desk(make_desk(home / "one")) as one, open_desk(make_desk(home / "two")) as two:
        ran = await command("jobs")
        assert (ran.code, ran.out) == (2, "")
        for text in (one.ready.url, two.ready.url, str(home / "two"), "--url", "COMFYRELAY_URL"):
            assert text in ran.err
        assert "--data-dir" in (await command("backup", "backups")).err
        assert "desks" in {finding.about async for finding in examine()}
        port = two.ready.url.rpartition(":")[2]
        for env in ({"COMFYRELAY_PORT": port}, {"COMFYRELAY_DATA_DIR": str(home / "two")}):
            link = json.loads((await command("open", "--json", **env)).out)
            assert link["url"].startswith(two.ready.url)


async def test_killed_desk_is_not_listed_as_running(home: Path) -> None:
    make_desk(home / "gone")
    address = ("127.0.0.1", free_port())
    with desk_note(home / "gone", address=address, secret="left behind"):
        assert running_desks() == []
        ran = await command("jobs", COMFYRELAY_PORT=str(address[1]))
        assert f"There is no response at http://127.0.0.1:{address[1]}" in ran.err
