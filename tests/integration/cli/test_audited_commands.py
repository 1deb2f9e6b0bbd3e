"""Every command that changes a server's databases is recorded in the audit log, like changes over the admin API."""

import json
import socket
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from comfyrelay.cli.main import app

WORKER = """
INSERT INTO workers (worker_id, fleet_id, stage, capabilities, max_concurrency, last_seen_at, created_at)
SELECT 'gpu-1', id, stage, '{}', 1, created_at, created_at FROM fleets
"""
PASSWORD = "a long password of ada"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a data folder with databases of this version, and run commands as the user ada."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMFYRELAY_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("SUDO_USER", "ada")
    run("db", "upgrade")
    return tmp_path


def run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def entries(folder: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(folder / "central.db")) as connection:
        connection.row_factory = sqlite3.Row
        found = [dict(row) for row in connection.execute("SELECT * FROM audit_log ORDER BY id")]
    for entry in found:
        for name in ("before", "after"):
            entry[name] = json.loads(entry[name]) if entry[name] else None
        assert (entry["actor_id"], entry["actor"]) == (None, "ada (command)")
        assert (entry["address"], entry["is_done"]) == (socket.gethostname(), 1)
    return found


def test_commands_about_accounts_are_recorded(folder: Path) -> None:
    run("admin", "setup-code")
    token = run("admin", "create", "--email", "root@example.com", "--password", PASSWORD).strip()
    run("admin", "invite", "ada@example.com")
    link = run("admin", "invite", "ada@example.com").strip()
    run("admin", "own-workflows", "ada@example.com", "--allow")
    run("admin", "delete", "ada@example.com", "--yes")
    code, created, invited, again, allowed, deleted = entries(folder)
    assert [entry["action"] for entry in (code, created, invited, again, allowed, deleted)] == [
        "admin setup-code",
        "admin create",
        "admin invite",
        "admin invite",
        "admin own-workflows",
        "admin delete",
    ]
    assert (created["before"], created["after"]["user.email"]) == (None, "root@example.com")
    assert created["after"]["user.is_admin"] == 1
    assert invited["subject"] == again["subject"] == deleted["subject"]
    assert (allowed["before"], allowed["after"]) == (
        {"tenant.may_add_workflows": False},
        {"tenant.may_add_workflows": True},
    )
    assert (deleted["before"]["user.email"], deleted["after"]) == ("ada@example.com", None)
    text = json.dumps(entries(folder))
    for secret in (token, link.rpartition("#")[2], PASSWORD, "argon2"):
        assert secret not in text


def test_commands_about_fleets_are_recorded(folder: Path) -> None:
    run("fleet", "create", "gpus", "--max-workers", "3")
    run("fleet", "set", "gpus", "--max-workers", "5")
    run("fleet", "pause", "gpus")
    run("fleet", "resume", "gpus")
    with closing(sqlite3.connect(folder / "central.db")) as connection:
        connection.execute(WORKER)
        connection.commit()
    run("fleet", "unblock", "gpu-1")
    created, changed, paused, resumed, unblocked = entries(folder)
    assert [entry["subject"] for entry in (created, changed, paused)] == ["fleets/production/gpus"] * 3
    assert (created["action"], created["before"], created["after"]["max_workers"]) == ("fleet create", None, 3)
    assert (changed["before"], changed["after"]) == ({"max_workers": 3}, {"max_workers": 5})
    assert (paused["action"], resumed["action"]) == ("fleet pause", "fleet resume")
    assert (unblocked["action"], unblocked["subject"]) == ("fleet unblock", "workers/gpu-1")


def test_repair_is_recorded_and_a_check_is_not(folder: Path) -> None:
    run("reconcile")
    assert entries(folder) == []
    run("reconcile", "--repair")
    [entry] = entries(folder)
    assert (entry["action"], entry["subject"]) == ("reconcile --repair", "reconcile")


def test_failed_command_is_not_recorded(folder: Path) -> None:
    assert CliRunner().invoke(app, ["fleet", "set", "none", "--max-workers", "5"]).exit_code != 0
    assert CliRunner().invoke(app, ["admin", "delete", "none@example.com", "--yes"]).exit_code != 0
    assert entries(folder) == []
