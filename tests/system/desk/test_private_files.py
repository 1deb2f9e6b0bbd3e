"""Only the user of a desk or a server can read its data folder; delivered outputs have the user's permissions."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from comfyrelay.client import Client
from comfyrelay.simulator import Simulator
from tests.support import commands
from tests.support.server_processes import free_port, server_process


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """Files that others can read, except outputs that are hard links to files of the owner.

    The folders here keep others out.
    """
    found = [path for path in (folder, *folder.rglob("*")) if path.is_dir() or path.stat().st_nlink == 1]
    return [f"{path} {path.stat().st_mode & 0o777:o}" for path in found if path.stat().st_mode & 0o077]


@pytest.mark.journey
async def test_desk_data_folder_is_private(tmp_path: Path) -> None:
    port, data, outside = free_port(), tmp_path / "data", tmp_path / "mine"
    async with Simulator(folder=tmp_path / "comfyui") as simulator:
        environment = {
            **os.environ,
            "COMFYRELAY_DATA_DIR": str(data),
            "COMFYRELAY_PORT": str(port),
            "COMFYRELAY_DESK_COMFYUI_URL": simulator.url,
            "COMFYRELAY_DESK_OUTPUT_FOLDER": str(outside),
        }
        desk = await commands.start("up", env=environment)
        try:
            await desk.out.readuntil(b"Press Ctrl-C to stop.")
            async with Client(f"http://127.0.0.1:{port}") as client:
                job = await client.submit(
                    effect_id=1, input_file_id=await client.upload(data / "inputs" / "examples" / "sample.png")
                )
                async for _event in client.events(job.id):
                    pass
                about = await client.about(job.id)
            # check while the desk runs, because SQLite then has more files
            assert list(data.glob("*.db-wal"))
            assert open_to_others(data) == []
        finally:
            await desk.kill()
    assert about is not None
    [copy] = about.files
    assert Path(copy.path).stat().st_mode & 0o777 == 0o644
    assert outside.stat().st_mode & 0o777 == 0o755


async def test_server_data_folder_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    # an earlier version created the folder with these permissions
    folder.mkdir(mode=0o755)
    for name in ("central.db", "secrets.json"):
        (folder / name).touch(mode=0o644)
    async with server_process({"DATA_DIR": str(folder)}) as server:
        account = {"email": "ada@example.com", "password": "long enough"}
        token = (await server.http.post("/api/register", json=account)).json()["data"]["token"]
        about = {"mime_type": "image/png", "size": 5, "original_filename": "a.png"}
        begun = await server.http.post("/api/videos/uploads", json=about, headers={"Authorization": f"Bearer {token}"})
        upload = begun.json()["data"]
        sent = await server.http.put(upload["upload_url"], content=b"12345", headers=upload["upload_headers"])
        sent.raise_for_status()
        assert list((folder / "objects").rglob("*.*"))
        assert list(folder.glob("*.db-wal"))
        assert open_to_others(folder) == []
