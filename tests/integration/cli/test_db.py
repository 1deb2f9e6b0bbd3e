"""`comfyrelay db` and other commands on a database whose schema is of another version."""

import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from comfyrelay.cli.main import app
from comfyrelay.errors import SchemaMismatch
from comfyrelay.server import main
from comfyrelay.settings import Settings
from tests.support.desk import make_desk
from tests.support.server_processes import free_port


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a data folder with databases of this version."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMFYRELAY_DATA_DIR", str(tmp_path))
    assert CliRunner().invoke(app, ["db", "upgrade"]).exit_code == 0
    return tmp_path


def change(path: Path, statement: str) -> str:
    """Change a schema; return the checksum of the file."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return checksum(path)


def checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_current_schema_exits_with_0_and_names_additions(folder: Path) -> None:
    change(folder / "central.db", "CREATE INDEX my_index ON users (name)")
    result = CliRunner().invoke(app, ["db", "status"])
    assert result.exit_code == 0
    assert result.output.count("up to date") == 2
    assert "additions, which do no harm: index my_index of users is not ours." in result.output


@pytest.mark.parametrize(
    ("name", "statement", "difference"),
    [
        ("central", "ALTER TABLE ai_job_dispatches RENAME COLUMN stage TO place", "ai_job_dispatches.stage is missing"),
        ("main", "ALTER TABLE token_wallets RENAME TO wallets", "table token_wallets is missing"),
    ],
)
def test_schema_of_another_version_is_refused_unchanged(
    folder: Path, name: str, statement: str, difference: str
) -> None:
    path = folder / {"central": "central.db", "main": "tenants-main.db"}[name]
    before = change(path, statement)
    status = CliRunner().invoke(app, ["db", "status", "--json"])
    assert status.exit_code == 1
    found = json.loads(status.stdout)[name]
    assert found["revision"] == found["newest"]
    assert difference in found["problem"]
    assert difference in CliRunner().invoke(app, ["db", "status"]).output
    for command in (["db", "upgrade"], ["reconcile"]):
        result = CliRunner().invoke(app, command)
        assert isinstance(result.exception, SchemaMismatch)
        assert difference in result.exception.detail
        assert "Nothing was changed. Run the version that created this database" in result.exception.detail
    assert checksum(path) == before


async def test_desk_does_not_start_with_the_schema_of_another_version(folder: Path) -> None:
    change(folder / "central.db", "ALTER TABLE ai_job_dispatches RENAME COLUMN stage TO place")
    with pytest.raises(SchemaMismatch, match=r"column ai_job_dispatches\.stage is missing"):
        async with make_desk(folder, is_new=True).open():
            pass
    assert not (folder / "secrets.json").exists()


async def test_server_that_refuses_a_schema_writes_no_secrets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(folder / "central.db", "ALTER TABLE ai_job_dispatches RENAME COLUMN stage TO place")
    monkeypatch.setattr(main, "log_as_json", lambda _level: None)
    with pytest.raises(SchemaMismatch):
        await main.serve(Settings(data_dir=folder, port=free_port()))
    assert not (folder / "secrets.json").exists()
