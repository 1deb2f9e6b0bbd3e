"""The support bundle contains what a bug report needs, but no secrets and no data of customers."""

import json
import os
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from comfyrelay.cli.main import app
from comfyrelay.desk.password import set_password
from comfyrelay.system.owner_secret import load_secret
from comfyrelay.worker.state import StateFolder
from tests.support.server_processes import free_port
from tests.support.world import SqliteBackend, execute, open_world

PROMPT = "a portrait of my neighbour Wanda"
FILE_NAME = "passport-of-wanda.png"
EMAIL = "wanda.private@customers.example"
# Every kind of secret, by the environment variable that contains it.
SECRETS = {
    "COMFYRELAY_SIGNING_SECRETS": '["signing-b7d1c0ffee"]',
    "COMFYRELAY_FLEET_SECRETS": '{"production": ["fleetsec-b7d1c0ffee"]}',
    "COMFYRELAY_PAYMENT_WEBHOOK_SECRET": "payments-b7d1c0ffee",
    "COMFYRELAY_METRICS_TOKEN": "metrics-b7d1c0ffee",
    "COMFYRELAY_SMTP_URL": "smtps://mailer:mailpass-b7d1c0ffee@mail.example.com",
    "COMFYRELAY_MAIL_FROM": "studio@example.com",
    "COMFYRELAY_ALERTS": '{"*": {"urls": ["ntfys://ntfy.example.com/topic-b7d1c0ffee"]}}',
    "COMFYRELAY_DESK_NOTIFY_URLS": "tgram://botkey-b7d1c0ffee/12345",
    "COMFYRELAY_DESK_COMFYUI_URL": "http://gpu:comfypass-b7d1c0ffee@127.0.0.1:1",
    "COMFYRELAY_WORKER_COMFY_CLOUD_API_KEY": "comfycloud-b7d1c0ffee",
    "COMFYRELAY_WORKER_API_BASE_URL": "http://worker:urlpass-b7d1c0ffee@127.0.0.1:2",
    "FLEET_SECRET": "workersec-b7d1c0ffee",
    "AWS_SECRET_ACCESS_KEY": "awskey-b7d1c0ffee",
    "AWS_SESSION_TOKEN": "awssession-b7d1c0ffee",
    "RENTAL_API_KEY": "provider-b7d1c0ffee",
    "PAGER_WEBHOOK_URL": "https://hooks.example.com/pager-b7d1c0ffee",
    "DATABASE_PASSWORD": "database-b7d1c0ffee",
}
MARK = "b7d1c0ffee"


def bundle(path: Path, *options: str) -> dict[str, str]:
    done = CliRunner().invoke(app, ["doctor", "--bundle", str(path), *options])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


@pytest.fixture
async def data_dir(
    tmp_path: Path, sqlite_backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Path]:
    """Return a data folder with a customer's failed job and every kind of secret."""
    for name in list(os.environ):
        if name.startswith("COMFYRELAY_"):
            monkeypatch.delenv(name)
    folder = tmp_path / "data"
    folder.mkdir()
    async with open_world(sqlite_backend, tmp_path / "world") as world:
        desk = await world.desk()
        await execute(world.engine.databases.central, "UPDATE users SET email = :email", email=EMAIL)
        _, leased = await desk.submit_and_lease(label=PROMPT)
        await world.fail(leased, error=f"Invalid image file {FILE_NAME} for '{PROMPT}' of {EMAIL}")
        found = world.engine.databases
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COMFYRELAY_DATA_DIR", str(folder))
        monkeypatch.setenv("COMFYRELAY_DATABASE_URL", f"sqlite:///{found.central.path}")
        shards = {name: f"sqlite:///{shard.path}" for name, shard in found.shards.items()}
        monkeypatch.setenv("COMFYRELAY_SHARDS", json.dumps(shards))
        monkeypatch.setenv("COMFYRELAY_PORT", str(free_port()))
        for name, value in SECRETS.items():
            monkeypatch.setenv(name, value)
        yield folder


def test_bundle_has_no_secret_and_no_data_of_customers(data_dir: Path, tmp_path: Path) -> None:
    owner = load_secret(data_dir)
    password = set_password(data_dir, "correct horse b7d1c0ffee").read_text().strip()
    state = StateFolder(data_dir / "worker")
    state.open()
    state.save_token("workertoken-b7d1c0ffee")
    key = state.registration_key()
    (data_dir / "worker" / "comfyui").mkdir()
    log = f"got prompt {PROMPT}\nsigned X-Amz-Signature=sig-b7d1c0ffee\nAuthorization: Bearer bearer-b7d1c0ffee\n"
    log += f"{SECRETS['AWS_SECRET_ACCESS_KEY']} {owner} {key}\n"
    (data_dir / "worker" / "comfyui" / "comfyui.log").write_text(log)
    state.close()

    plain, full = bundle(tmp_path / "a.zip"), bundle(tmp_path / "b.zip", "--with-texts")
    for entries in (plain, full):
        for name, text in entries.items():
            assert [line for line in text.splitlines() if MARK in line] == [], name
            assert not any(secret in text for secret in (owner, password, key)), name
    assert not any(found in text for text in plain.values() for found in (PROMPT, FILE_NAME, EMAIL))
    assert not any(name.startswith("logs/") for name in plain)
    # The bundle contains private data if the owner asks for it.
    assert PROMPT in full["queue.json"]
    assert f"got prompt {PROMPT}" in full["logs/comfyui-1.log"]


def test_bundle_contains_what_a_bug_report_needs(data_dir: Path, tmp_path: Path) -> None:
    found = {name: json.loads(text) for name, text in bundle(tmp_path / "a.zip").items() if name.endswith(".json")}
    assert found["versions.json"]["packages"]["pydantic"]
    assert {check["about"].split()[0] for check in found["checks.json"]} >= {"python", "data", "disk"}
    server = {setting["name"]: (setting["value"], setting["source"]) for setting in found["settings.json"]["server"]}
    assert server["port"] == (int(os.environ["COMFYRELAY_PORT"]), "environment")
    assert server["metrics_token"] == ("…", "environment")
    queue = found["queue.json"]
    assert queue["databases"]["central"] == {"revision": "central_0001", "problem": None}
    assert [(failure["attempts"], failure["error"]) for failure in queue["failures"]] == [(1, "…")]


def test_existing_file_is_not_replaced(data_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.zip"
    path.write_text("mine")
    done = CliRunner().invoke(app, ["doctor", "--bundle", str(path)])
    assert "File exists" in str(done.exception)
    assert path.read_text() == "mine"
