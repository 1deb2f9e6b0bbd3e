"""Nobody but its user can read what a desk or a server keeps on disk; what people get is as open as they have it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from comfyrelay.client import Client
from comfyrelay.simulator import Simulator
from comfyrelay.system.permissions import restrict_folder
from tests.support import commands
from tests.support.script_runs import ScriptRun, settings_in
from tests.support.server_processes import free_port, server_process


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """What is, but for outputs that their owner has under another name elsewhere, as open as he has it there; nobody
    else comes to them through the folders here."""
    found = [each for each in (folder, *folder.rglob("*")) if each.is_dir() or each.stat().st_nlink == 1]
    return [f"{each} {each.stat().st_mode & 0o777:o}" for each in found if each.stat().st_mode & 0o077]


@pytest.mark.journey
async def test_the_data_folder_of_a_desk_is_its_owners_alone(tmp_path: Path) -> None:
    port, made, outside = free_port(), tmp_path / "data", tmp_path / "mine"
    async with Simulator(folder=tmp_path / "comfyui") as simulator:
        environment = {
            **os.environ,
            "COMFYRELAY_DATA_DIR": str(made),
            "COMFYRELAY_PORT": str(port),
            "COMFYRELAY_DESK_COMFYUI_URL": simulator.url,
            "COMFYRELAY_DESK_OUTPUT_FOLDER": str(outside),
        }
        desk = await commands.start("up", env=environment)
        try:
            await desk.out.readuntil(b"Press Ctrl-C to stop.")
            async with Client(f"http://127.0.0.1:{port}") as client:
                job = await client.submit(
                    effect_id=1, input_file_id=await client.upload(made / "inputs" / "examples" / "sample.png")
                )
                async for _event in client.events(job.id):
                    pass
                about = await client.about(job.id)
            # while it runs: that is when SQLite has its other files
            assert list(made.glob("*.db-wal"))
            assert open_to_others(made) == []
        finally:
            await desk.kill()
    assert about is not None
    [copy] = about.files
    assert Path(copy.path).stat().st_mode & 0o777 == 0o644
    assert outside.stat().st_mode & 0o777 == 0o755


async def test_the_data_folder_of_a_server_is_its_users_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    # as an earlier version has left it
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


def test_a_folder_with_other_things_in_it_stays_as_open_as_it_is(tmp_path: Path) -> None:
    for name in ("central.db", "central.db-wal", "secrets.json"):
        (tmp_path / name).touch()
    ours, others = ("objects", "worker", "before-restore-20260101-000000", ".restore-x1"), ("lost+found", "holiday")
    for name in (*ours, *others):
        (tmp_path / name).mkdir()
    tmp_path.chmod(0o755)

    def modes() -> set[int]:
        return {(tmp_path / name).stat().st_mode & 0o777 for name in ours}

    restrict_folder(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    # what is ours in it is closed all the same, and what is not is left alone
    assert modes() == {0o700}
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in others} == {0o755}
    (tmp_path / "holiday").rmdir()
    restrict_folder(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_a_link_to_a_folder_elsewhere_leaves_that_as_open_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "outputs").symlink_to(tmp_path / "pictures")
    restrict_folder(tmp_path / "data")
    assert (tmp_path / "pictures").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("umask", "mode"), [(None, 0o644), (0o027, 0o640)])
async def test_what_a_script_saves_is_as_its_user_has_it(tmp_path: Path, umask: int | None, mode: int) -> None:
    settings = settings_in(tmp_path, "open('made.png', 'w').close(); print('saved: made.png')")
    run = ScriptRun(settings, tmp_path / "log", umask=umask)
    assert (await run.run()).outputs == [tmp_path / "work" / "made.png"]
    assert (tmp_path / "work" / "made.png").stat().st_mode & 0o777 == mode
