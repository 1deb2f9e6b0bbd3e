"""A hostile backup is refused before it changes a file outside or inside the restored folder."""

import hashlib
import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.errors import InvalidInput
from comfyrelay.services.backup.create import create_backup
from comfyrelay.services.backup.restore import _move, _Plan, restore_backup
from comfyrelay.settings import Settings
from tests.support.desk import copy_initial_data

EVIL = b"ssh-ed25519 EVIL\n"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    settings = Settings(data_dir=tmp_path_factory.mktemp("source"))
    copy_initial_data(settings.data_dir)
    return settings


@pytest.fixture(scope="module")
def valid_backup(source: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_backup(source, tmp_path_factory.mktemp("backups"))[0]


@pytest.fixture
def backup(valid_backup: Path, tmp_path: Path) -> Path:
    """Return a valid backup that the test can manipulate."""
    return Path(shutil.copytree(valid_backup, tmp_path / valid_backup.name))


@pytest.fixture
def victim(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "victim")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Create a file outside the backup, which must not be overwritten."""
    keys = tmp_path / "home" / ".ssh" / "authorized_keys"
    keys.parent.mkdir(parents=True)
    keys.write_text("mine")
    return keys


def entry(path: str, **more: Any) -> dict[str, Any]:
    return {"path": path, "size": len(EVIL), "sha256": hashlib.sha256(EVIL).hexdigest(), "mode": 0o600, **more}


def add_entries(backup: Path, *entries: dict[str, Any]) -> None:
    manifest = json.loads((backup / "manifest.json").read_bytes())
    manifest["entries"] += entries
    (backup / "manifest.json").write_text(json.dumps(manifest))
    for added in entries:
        file = backup / added["path"]
        # never write outside the test folder
        if file.is_relative_to(backup) and ".." not in file.parts and "\0" not in added["path"]:
            file.parent.mkdir(parents=True, exist_ok=True)
            if added.get("link") is None and not file.exists():
                file.write_bytes(EVIL)


def files_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.name != "lock" and not path.is_dir()}


def link(path: str, to: str) -> dict[str, Any]:
    return {"path": path, "link": to}


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([entry("files/{home}/.ssh/authorized_keys")], "not a path in a backup"),
        ([entry("objects/{home}/.ssh/authorized_keys")], "not a path in a backup"),
        ([entry("files/./x")], "not a path in a backup"),
        ([entry("files/../x")], "not a path in a backup"),
        ([entry("files/a/../../x")], "not a path in a backup"),
        ([entry("files/x/")], "not a path in a backup"),
        ([entry("files")], "not a path in a backup"),
        ([entry("files/")], "not a path in a backup"),
        ([entry("files/.")], "not a path in a backup"),
        ([entry("files/a\0b")], "not a path in a backup"),
        ([entry("elsewhere/x")], "not a path in a backup"),
        ([entry("{home}/.ssh/authorized_keys")], "not a path in a backup"),
        ([entry("databases/nosuch")], "settings do not name"),
        ([entry("files/x"), entry("files/x")], "listed twice"),
        ([entry("files/out/key"), link("files/out", "{home}/.ssh")], "below a file or a link"),
        ([link("files/out", "."), entry("files/out/key")], "below a file or a link"),
        ([entry("files/out/key"), entry("files/out")], "below a file or a link"),
        ([link("files/tenants-main.db", "elsewhere")], "listed twice"),
        ([link("files/out", "{home}/.ssh")], "a link to"),
        ([link("files/out", "../home")], "a link to"),
        ([link("files/a/b", "../../home")], "a link to"),
        ([link("files/b", "."), link("files/a", "b/../home")], "a link to"),
        ([link("objects/out", "../secrets.json")], "a link to"),
        ([entry("files/lock")], "running process"),
        ([link("files/lock", "x")], "running process"),
        ([entry("files/worker/desk/held/1.json")], "running process"),
        ([entry("files/central.db")], "listed twice"),
        ([entry("files/central.db-wal")], "running process"),
        ([entry("files/objects/x")], "running process"),
        ([entry("files/before-restore-1/x")], "running process"),
        ([entry("files/.restore-1/x")], "running process"),
    ],
)
def test_malformed_backup_is_refused_before_any_change(
    backup: Path, victim: Settings, keys: Path, entries: list[dict[str, Any]], reason: str
) -> None:
    home = str(keys.parent.parent)
    filled = json.loads(json.dumps(entries).replace("{home}", home))
    add_entries(backup, *filled)
    with pytest.raises(InvalidInput, match=reason):
        restore_backup(victim, backup)
    assert not victim.data_dir.exists()
    assert files_below(keys.parent) == {keys}
    assert keys.read_text() == "mine"


def test_backup_without_a_database_is_refused(backup: Path, victim: Settings) -> None:
    manifest = json.loads((backup / "manifest.json").read_bytes())
    manifest["entries"] = [listed for listed in manifest["entries"] if listed["path"] != "databases/central.db"]
    (backup / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InvalidInput, match=r"central\.db' is missing"):
        restore_backup(victim, backup)


def test_symbolic_link_in_the_backup_is_refused(backup: Path, victim: Settings, keys: Path) -> None:
    target = {"size": keys.stat().st_size, "sha256": hashlib.sha256(keys.read_bytes()).hexdigest()}
    (backup / "files").mkdir(exist_ok=True)
    (backup / "files" / "a").symlink_to(keys)
    add_entries(backup, entry("files/a", **target))
    with pytest.raises(InvalidInput, match="not in the backup itself"):
        restore_backup(victim, backup)


def test_restored_files_are_private_and_have_no_setuid_bit(backup: Path, victim: Settings) -> None:
    add_entries(backup, entry("files/x", mode=0o6777), entry("files/deep/y", mode=0o644), link("files/z", "deep/y"))
    restore_backup(victim, backup)
    assert stat.S_IMODE((victim.data_dir / "x").stat().st_mode) == 0o700
    assert stat.S_IMODE((victim.data_dir / "deep" / "y").stat().st_mode) == 0o600
    assert (victim.data_dir / "z").read_bytes() == EVIL


def test_links_outside_the_folder_are_left_out_and_reported(tmp_path: Path, victim: Settings, source: Settings) -> None:
    (source.data_dir / "inputs").mkdir()
    (source.data_dir / "inputs" / "a").write_text("a")
    (source.data_dir / "inputs" / "b").symlink_to(source.data_dir / "inputs" / "a")
    (source.data_dir / "big").symlink_to(tmp_path)
    folder, manifest = create_backup(source, tmp_path / "more")
    assert manifest.left_out == [str(source.data_dir / "big")]
    restore_backup(victim, folder)
    assert (victim.data_dir / "inputs" / "b").readlink() == Path("a")
    assert not (victim.data_dir / "big").is_symlink()


def test_move_replaces_no_file(tmp_path: Path) -> None:
    for name in ("a", "lock"):
        (tmp_path / name).write_text(name)
    with pytest.raises(FileExistsError):
        _move({tmp_path / "a": tmp_path / "lock"}, _Plan(path=tmp_path / "plan", roots=[]))
    assert (tmp_path / "lock").read_text() == "lock"
