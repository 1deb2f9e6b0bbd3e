"""The contents of a backup, refused backups, and restores."""

import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from comfyrelay.domain.ids import editor_path, private_graph_path
from comfyrelay.errors import ComfyRelayError, ConfigurationError, Conflict, InvalidInput, NotFound
from comfyrelay.services.backup.create import create_backup
from comfyrelay.services.backup.restore import _move, _Plan, restore_backup
from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from tests.support.desk import copy_initial_data

OBJECT = "tenants/t/ai-jobs/j/output-1.png"


@pytest.fixture
async def settings(tmp_path: Path) -> Settings:
    """Return the settings of an unused data folder with databases, secrets and an object."""
    settings = Settings(data_dir=tmp_path / "data")
    copy_initial_data(settings.data_dir)
    async with Engine(settings) as engine:
        await engine.objects.put(OBJECT, b"a picture")
    return settings


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    return tmp_path / "backups"


def read_files(folder: Path) -> dict[str, bytes]:
    """Read all files except the lock, which names its holder, and skip database headers, which change on open."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {
        name: path.read_bytes()[100 if path.suffix == ".db" else 0 :] for name, path in found.items() if name != "lock"
    }


async def test_backup_contains_the_data_folder_without_process_files(settings: Settings, backups: Path) -> None:
    data = settings.data_dir
    included = ["secrets.json", "owner.secret", "inputs/mine/cat.png", "worker/desk/token.json", "script/logs/1.log"]
    included += ["comfyrelay.toml"]
    excluded = ["lock", "worker/desk/lock", "worker/desk/held/1.json", "worker/desk/work/1/a", "worker/desk/assets/b"]
    excluded += ["simulator/output/c.png", ".put-1", "objects/tenants/.put-2", "outputs/.d.png.part", "central.db-wal"]
    excluded += ["objects/previews/t/j.jpg"]
    excluded += ["before-restore-1/central.db"]
    for name in (*included, *excluded):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).touch(exist_ok=True)
    (data / "link").symlink_to("inputs/mine")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(data / "socket"))
        folder, manifest = create_backup(settings, backups)
    paths = {entry.path for entry in manifest.entries}
    assert paths >= {f"files/{name}" for name in (*included, ".furnished", "link")}
    assert paths >= {"databases/central.db", "databases/shards/main.db", f"objects/{OBJECT}"}
    names = {path.split("/", 1)[1] for path in paths}
    assert names & {*excluded, "socket", "tenants/.put-2", "previews/t/j.jpg"} == set()
    assert read_files(folder).keys() == {
        "manifest.json",
        *(entry.path for entry in manifest.entries if entry.link is None),
    }


async def test_newest_complete_backup_of_a_folder_is_restored(settings: Settings, backups: Path) -> None:
    folders = []
    for number in range(3):
        (settings.data_dir / "number").write_text(str(number))
        folders.append(create_backup(settings, backups)[0])
    assert len(set(folders)) == 3
    # as if the backup had been killed
    (folders[-1] / "manifest.json").unlink()
    assert restore_backup(settings, backups, force=True).folder == folders[1]
    assert (settings.data_dir / "number").read_text() == "1"
    with pytest.raises(InvalidInput, match="not finished"):
        restore_backup(settings, folders[-1], force=True)


async def test_objects_are_hard_linked_and_mutable_files_are_copied(settings: Settings, backups: Path) -> None:
    (settings.data_dir / "notes.txt").write_text("then")
    folder, _ = create_backup(settings, backups)
    assert (folder / "objects" / OBJECT).samefile(settings.data_dir / "objects" / OBJECT)
    with (settings.data_dir / "notes.txt").open("r+") as file:
        file.write("NOW!")
    assert (folder / "files" / "notes.txt").read_text() == "then"
    restore_backup(settings, folder, force=True)
    assert not (folder / "objects" / OBJECT).samefile(settings.data_dir / "objects" / OBJECT)


@pytest.mark.parametrize("damage", ["changed byte", "missing file", "invalid manifest", "invalid path"])
async def test_damaged_backup_is_refused_without_changes(settings: Settings, backups: Path, damage: str) -> None:
    folder, _ = create_backup(settings, backups)
    before = read_files(settings.data_dir)
    secrets = folder / "files" / "secrets.json"
    match damage:
        case "changed byte":
            secrets.write_bytes(secrets.read_bytes().replace(b"f", b"g", 1))
        case "missing file":
            secrets.unlink()
        case "invalid manifest":
            (folder / "manifest.json").write_text('{"format": 2}')
        case _:
            manifest = json.loads((folder / "manifest.json").read_text())
            manifest["entries"][0]["path"] = "files/../../elsewhere"
            (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InvalidInput, match="damaged"):
        restore_backup(settings, backups, force=True)
    assert read_files(settings.data_dir) == before


async def test_existing_data_is_moved_aside_only_with_force(settings: Settings, backups: Path) -> None:
    folder, _ = create_backup(settings, backups)
    (settings.data_dir / "later").write_text("later")
    before = read_files(settings.data_dir)
    with pytest.raises(Conflict, match="--force"):
        restore_backup(settings, folder)
    assert read_files(settings.data_dir) == before
    [aside] = restore_backup(settings, folder, force=True).aside
    assert read_files(aside) == before
    assert not (settings.data_dir / "later").exists()
    assert aside.stat().st_mode & 0o777 == 0o700


async def test_open_databases_are_not_replaced(settings: Settings, backups: Path) -> None:
    create_backup(settings, backups)
    async with Engine(settings) as engine:
        await engine.databases.require_current()
        with pytest.raises(Conflict, match=r"central\.db\. Stop it first"):
            restore_backup(settings, backups, force=True)


async def test_backup_keeps_an_object_that_is_replaced_later(settings: Settings, backups: Path) -> None:
    # The editor file of a graph is replaced when its layout changes.
    path = editor_path(private_graph_path("1", "2"))
    async with Engine(settings) as engine:
        await engine.objects.put(path, b"old")
        create_backup(settings, backups)
        await engine.objects.put(path, b"new")
    restore_backup(settings, backups, force=True)
    async with Engine(settings) as engine:
        assert await engine.objects.get(path) == b"old"


async def test_databases_and_objects_in_other_folders_are_backed_up(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path / "data",
        database_url=f"sqlite:///{tmp_path}/one/queue.db",
        shards={"a": f"sqlite:///{tmp_path}/two/a.db", "b/c": f"sqlite:///{tmp_path}/two/b.db"},
        storage_url=(tmp_path / "store").as_uri(),
    )
    async with Engine(settings) as engine:
        await engine.databases.upgrade()
        await engine.objects.put(OBJECT, b"a picture")
        user = await engine.accounts.tenancy.create_user(email="ada@example.org", shard="b/c")
        await engine.accounts.ledger.credit(user.tenant_id, 7, reference="first")
        create_backup(settings, tmp_path / "backups")
        await engine.accounts.ledger.credit(user.tenant_id, 1, reference="second")
        await engine.objects.put(f"{OBJECT}.more", b"another")
    restored = restore_backup(settings, tmp_path / "backups", force=True)
    assert {folder.parent for folder in restored.aside} == {tmp_path / name for name in ("one", "two", "store")}
    async with Engine(settings) as engine:
        assert await engine.accounts.ledger.balance(user.tenant_id) == 7
        assert [file.path async for file in engine.objects.list("tenants")] == [OBJECT]
        assert (await engine.operations.reconciler.run()).is_clean
    with pytest.raises(ConfigurationError, match="COMFYRELAY_SHARDS"):
        restore_backup(settings.model_copy(update={"shards": {}}), tmp_path / "backups")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"database_url": "postgresql://relay@nowhere/central"}, r"docs/howto/backup\.md"),
        ({"storage_url": "s3://bucket"}, r"docs/howto/backup\.md"),
    ],
)
def test_unsupported_backend_is_refused_with_a_link_to_the_docs(
    tmp_path: Path, change: dict[str, str], error: str
) -> None:
    settings = Settings(data_dir=tmp_path / "data").model_copy(update=change)
    with pytest.raises(ConfigurationError, match=error):
        create_backup(settings, tmp_path / "backups")
    with pytest.raises(ConfigurationError, match=error):
        restore_backup(settings, tmp_path / "backups")


async def test_backup_into_its_own_data_folder_is_refused(settings: Settings) -> None:
    with pytest.raises(InvalidInput, match="outside"):
        create_backup(settings, settings.data_dir / "backups")


def test_empty_folder_cannot_be_backed_up_or_restored(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    with pytest.raises(NotFound, match="nothing to back up"):
        create_backup(settings, tmp_path / "backups")
    with pytest.raises(InvalidInput, match="There is no backup"):
        restore_backup(settings, tmp_path / "backups")
    assert list(tmp_path.iterdir()) == []


async def test_backup_of_a_newer_version_is_refused(settings: Settings, backups: Path) -> None:
    folder, _ = create_backup(settings, backups)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest |= {"version": "99.0", "revisions": {**manifest["revisions"], "central.db": "central_9999"}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigurationError, match=r"ComfyRelay 99\.0"):
        restore_backup(settings, backups, force=True)


async def test_unwritable_folder_is_a_clear_error(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ComfyRelayError, match="Not a directory"):
        create_backup(settings, tmp_path / "file" / "backups")


def test_failed_move_is_undone(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    with pytest.raises(FileNotFoundError):
        _move(
            {tmp_path / "a": tmp_path / "aside" / "a", tmp_path / "missing": tmp_path / "b"},
            _Plan(path=tmp_path / "plan", roots=[]),
        )
    assert (tmp_path / "a").read_text() == "a"


@pytest.fixture(autouse=True)
async def check_staged_files(tmp_path: Path) -> AsyncIterator[None]:
    """A restore leaves no staged files, even if it fails."""
    yield
    assert list(tmp_path.rglob(".restore-*")) == []
