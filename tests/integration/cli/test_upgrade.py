"""`comfyrelay upgrade`: its plan, the copies of the databases, and databases of a newer version."""

import hashlib
import json
from pathlib import Path

import asyncpg
import pytest
from typer.testing import CliRunner, Result

from comfyrelay.cli.main import app
from comfyrelay.errors import ConfigurationError, SchemaMismatch
from comfyrelay.server import main
from comfyrelay.services.backup.create import create_backup
from comfyrelay.services.databases import Databases
from comfyrelay.services.upgrade_plan import plan_upgrade
from comfyrelay.settings import Settings
from comfyrelay.store import migrate
from comfyrelay.store.sqlite_copy import revision_of
from comfyrelay.store.versions import process_name
from tests.kept.next_version import next_version
from tests.support.desk import make_desk
from tests.support.server_processes import free_port
from tests.support.world import PostgresBackend, World, execute

FILES = ("central.db", "tenants-main.db")
NEWER = "A newer version has upgraded this database"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a data folder with databases of this version."""
    folder = tmp_path / "data"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMFYRELAY_DATA_DIR", str(folder))
    assert run("upgrade").exit_code == 0
    return folder


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def checksums(folder: Path) -> list[str]:
    return [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES]


def copies(folder: Path) -> list[Path]:
    return sorted(folder.glob("before-upgrade-*"))


def test_check_describes_the_upgrade_and_changes_nothing(data: Path, tmp_path: Path) -> None:
    nothing = run("upgrade", "--check")
    assert (nothing.exit_code, "There is nothing to upgrade." in nothing.output) == (0, True)
    before = checksums(data)
    with next_version(tmp_path / "migrations"):
        shown = run("upgrade", "--check")
        found = json.loads(run("upgrade", "--check", "--json").stdout)
    assert shown.exit_code == 0
    assert "The upgrade is possible." in shown.output
    assert found["possible"]
    assert {name: plan["migrations"] for name, plan in found["databases"].items()} == {
        "central": ["central_0002"],
        "main": ["tenant_0002"],
    }
    assert found["backup"] == f"SQLite databases are copied to a new folder in {data}."
    assert (checksums(data), copies(data)) == (before, [])


@pytest.mark.parametrize("command", [["upgrade", "--check"], ["db", "status"]])
def test_check_creates_no_databases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMFYRELAY_DATA_DIR", str(tmp_path / "data"))
    assert "empty" in run(*command).output
    assert not (tmp_path / "data").exists()


def test_upgrade_copies_databases_with_data_first(data: Path, tmp_path: Path) -> None:
    assert copies(data) == []
    with next_version(tmp_path / "migrations"):
        assert "not copied" in run("upgrade", "--check", "--no-backup").output
        done = run("upgrade")
        assert run("upgrade").exit_code == 0
    assert done.exit_code == 0, done.output
    [folder] = copies(data)
    assert f"The databases before the upgrade are in {folder}" in done.output
    found = {name: revision_of(folder / name) for name in ("central.db", "main.db")}
    assert found == {"central.db": "central_0001", "main.db": "tenant_0001"}
    assert revision_of(data / "central.db") == "central_0002"
    # a backup does not contain the copies
    _, manifest = create_backup(Settings(data_dir=data), tmp_path / "backups")
    assert [entry.path for entry in manifest.entries if "before-upgrade" in entry.path] == []


@pytest.mark.parametrize("variable", [{"COMFYRELAY_BACKUP_BEFORE_UPGRADE": "false"}, {}])
def test_copy_before_an_upgrade_can_be_disabled(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: dict[str, str]
) -> None:
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    with next_version(tmp_path / "migrations"):
        assert run("upgrade", *([] if variable else ["--no-backup"])).exit_code == 0
    assert copies(data) == []
    assert revision_of(data / "central.db") == "central_0002"


def test_leftovers_of_a_killed_copy_are_replaced(data: Path, tmp_path: Path) -> None:
    (data / ".put-before-upgrade-").mkdir()
    (data / ".put-before-upgrade-" / "central.db").write_bytes(b"half")
    with next_version(tmp_path / "migrations"):
        assert run("upgrade").exit_code == 0
    [folder] = copies(data)
    assert revision_of(folder / "central.db") == "central_0001"
    assert not (data / ".put-before-upgrade-").exists()


def test_nothing_is_upgraded_if_the_copy_fails(data: Path, tmp_path: Path) -> None:
    # a file in place of the folder for the copy
    (data / ".put-before-upgrade-").touch()
    before = checksums(data)
    with next_version(tmp_path / "migrations"):
        failed = run("upgrade")
    assert isinstance(failed.exception, ConfigurationError)
    assert failed.exception.detail.startswith("The databases were not upgraded: ")
    assert "COMFYRELAY_BACKUP_BEFORE_UPGRADE=false" in failed.exception.detail
    assert checksums(data) == before


async def test_postgresql_is_not_upgraded_without_a_backup(postgres_backend: PostgresBackend, tmp_path: Path) -> None:
    async with postgres_backend.databases(["main", "late"]) as (central, shards, _clock):
        settings = Settings(data_dir=tmp_path, database_url=central, shards=shards)
        databases = Databases.from_settings(settings)
        with next_version(tmp_path / "migrations"):
            plan = await plan_upgrade(tmp_path, databases)
            for upgrade in (databases.upgrade, lambda: databases.open(0)):
                with pytest.raises(ConfigurationError, match=r"Back them up as in docs/howto/backup\.md") as refused:
                    await upgrade()
                assert refused.value.detail.startswith("Not upgraded: central, main, late.")
            # simulate a shard that was unreachable when the server started
            databases._pending["late"] = "it is down"
            await databases.open_pending()
            assert databases.down() == ["late"]
            revisions = {state.revision for state in (await databases.states()).values()}
            assert revisions == {"central_0001", "tenant_0001"}
            databases.copies = None
            await databases.upgrade()
            await databases.open_pending()
            assert (databases.down(), databases.copied_to) == ([], None)
        assert plan.is_possible
        assert "comfyrelay upgrade --no-backup" in (plan.backup or "")
        await databases.close()


async def test_older_version_refuses_a_newer_database_unchanged(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the shard is newer: the central database must not change either.
    with next_version(tmp_path / "migrations"):
        settings = Settings(data_dir=data)
        await _upgrade_shard(settings)
    before = checksums(data)
    with pytest.raises(SchemaMismatch, match=NEWER):
        async with make_desk(data, is_new=True).open():
            pass
    monkeypatch.setattr(main, "log_as_json", lambda _level: None)
    with pytest.raises(SchemaMismatch, match=NEWER):
        await main.serve(settings.model_copy(update={"port": free_port()}))
    assert checksums(data) == before


def test_commands_name_a_newer_database(data: Path, tmp_path: Path) -> None:
    with next_version(tmp_path / "migrations"):
        assert run("upgrade").exit_code == 0
    before = checksums(data)
    for command in (["upgrade", "--check"], ["db", "status"], ["db", "upgrade", "--check"]):
        refused = run(*command)
        assert refused.exit_code == 1
        assert NEWER in " ".join(refused.output.split())
    for command in (["upgrade"], ["reconcile"], ["admin", "setup-code"]):
        assert isinstance(run(*command).exception, SchemaMismatch)
    assert checksums(data) == before


async def _upgrade_shard(settings: Settings) -> None:
    databases = Databases.from_settings(settings)
    await migrate.upgrade(databases.shards["main"], migrate.Schema.TENANT)
    await databases.close()


async def test_plan_names_servers_and_workers_with_their_versions(world: World, tmp_path: Path) -> None:
    await world.desk()
    databases = world.engine.databases
    plan = await plan_upgrade(tmp_path, databases)
    assert [(found.version, found.protocol, found.workers) for found in plan.workers] == [(None, 1, 1)]
    assert (plan.is_possible, plan.backup) == (True, None)
    await execute(databases.central, "UPDATE workers SET protocol = 0")
    plan = await plan_upgrade(tmp_path, databases)
    assert not plan.is_possible
    assert [found.protocol for found in plan.refused_workers] == [0]
    if databases.central.dialect == "postgresql":
        other = await asyncpg.connect(
            databases.central.dsn, server_settings={"application_name": "comfyrelay/9.9 7@other"}
        )
        plan = await plan_upgrade(tmp_path, databases)
        assert [(found.name, found.version) for found in plan.processes] == [("7@other", "9.9")]
        assert await other.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", process_name())
        await other.close()
