"""A desk is backed up while it runs jobs, and the restored copy continues them."""

import asyncio
import hashlib
import json
import os
import stat
from datetime import datetime
from pathlib import Path

import httpx
import pytest

from comfyrelay.client import Client
from comfyrelay.simulator import Simulator, Slow
from comfyrelay.system.owner_secret import SECRET_FILE
from tests.support.commands import CommandResult, run
from tests.support.desk import OpenDesk, make_desk, open_desk
from tests.support.graphs import invert
from tests.support.server_processes import free_port


async def command(*words: str, data_dir: Path) -> CommandResult:
    env = {**os.environ, "COMFYRELAY_DATA_DIR": str(data_dir), "COMFYRELAY_PORT": str(free_port())}
    return await run(*words, env=env)


async def batch_of(client: Client, count: int) -> str:
    workflow = await client.add_graph(invert(), name="mine")
    items = [{"input_payload": {"empty_image_color": number}} for number in range(count)]
    batch = await client.submit_batch(items, workflow_slug=workflow.data.slug)
    return str(batch.id)


async def until_done(desk: OpenDesk, batch_id: str, count: int) -> None:
    async with asyncio.timeout(120):
        while (await desk.client.batch(batch_id)).done < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def outputs(desk: OpenDesk, batch_id: str, to: Path) -> dict[str, str]:
    """Return the hash of each job's downloadable output."""
    found = {}
    async for job in desk.client.jobs(batch_id=batch_id):
        if job.status == "completed":
            [file] = await desk.client.download_outputs(job.id, to / job.id)
            found[job.id] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def modes(folder: Path) -> set[tuple[str, int]]:
    return {("folder" if path.is_dir() else "file", stat.S_IMODE(path.stat().st_mode)) for path in folder.rglob("*")}


@pytest.mark.journey
async def test_restored_backup_of_a_busy_desk_continues_its_work(tmp_path: Path) -> None:
    data = tmp_path / "desk"
    async with Simulator() as simulator:
        simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.05))
        settings = make_desk(data, comfyui_url=[simulator.url])
        async with open_desk(settings) as desk, httpx.AsyncClient(base_url=desk.ready.url) as browser:
            assert (await browser.get(desk.ready.link)).is_success
            session = dict(browser.cookies)
            batch_id = await batch_of(desk.client, 6)
            await until_done(desk, batch_id, 2)
            ran = await command("backup", str(tmp_path / "backups"), data_dir=data)
            assert ran.code == 0, ran.err
            await until_done(desk, batch_id, 6)
            before = await outputs(desk, batch_id, tmp_path / "before")
        secret = (data / SECRET_FILE).read_text()
        (data / SECRET_FILE).unlink()
        [backup] = (tmp_path / "backups").iterdir()
        assert stat.S_IMODE(backup.stat().st_mode) == 0o700
        assert {mode for kind, mode in modes(backup) if kind == "folder"} == {0o700}
        assert {mode for kind, mode in modes(backup / "files") | modes(backup / "databases") if kind == "file"} == {
            0o600
        }

        restored = await command("restore", str(tmp_path / "backups"), "--force", data_dir=data)
        assert restored.code == 0, restored.err + restored.out
        assert "agree" in restored.out
        assert (data / SECRET_FILE).read_text() == secret
        assert stat.S_IMODE((data / SECRET_FILE).stat().st_mode) == 0o600
        assert (data / "secrets.json").read_bytes() == (backup / "files" / "secrets.json").read_bytes()

        async with (
            open_desk(settings) as desk,
            httpx.AsyncClient(base_url=desk.ready.url, cookies=session) as browser,
            Client(desk.ready.url, token=secret.strip()) as program,
        ):
            # open sessions and the secret are still valid
            assert (await browser.get("/api/desk/now")).is_success
            assert (await program.desk()).version
            # jobs that were running or waiting at the backup now run; completed jobs do not run again
            await until_done(desk, batch_id, 6)
            assert (await desk.client.batch(batch_id)).counts["completed"] == 6
            after = await outputs(desk, batch_id, tmp_path / "after")
            assert after.keys() == before.keys()
            made_at = datetime.fromisoformat(json.loads((backup / "manifest.json").read_text())["made_at"])
            jobs = [job async for job in desk.client.jobs(batch_id=batch_id)]
            old = [job.id for job in jobs if job.completed_at is not None and job.completed_at < made_at]
            assert len(old) >= 2
            assert [after[name] for name in old] == [before[name] for name in old]
        assert (await command("reconcile", data_dir=data)).code == 0


async def test_running_desk_is_not_replaced(tmp_path: Path) -> None:
    data = tmp_path / "desk"
    async with open_desk(make_desk(data)):
        assert (await command("backup", str(tmp_path / "backups"), data_dir=data)).code == 0
        refused = await command("restore", str(tmp_path / "backups"), "--force", data_dir=data)
    assert refused.code == 2
    assert "Stop that process" in refused.err
    assert not list(data.glob("before-restore-*"))
