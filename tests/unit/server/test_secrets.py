"""Weak secrets are refused at startup, with a way to create better ones."""

from pathlib import Path
from typing import Any

import pytest

from comfyrelay.errors import ConfigurationError
from comfyrelay.server.http.secrets import load_secrets
from comfyrelay.settings import Settings
from comfyrelay.system import files
from comfyrelay.system.atomic import PART_PREFIX

LONG = "x" * 16


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"fleet_secrets": {"production": [""]}}, "COMFYRELAY_FLEET_SECRETS"),
        ({"fleet_secrets": {"production": [LONG, "short"]}}, "COMFYRELAY_FLEET_SECRETS"),
        ({"fleet_secrets": {"staging": ["  short           "]}}, "COMFYRELAY_FLEET_SECRETS"),
        ({"signing_secrets": ["short"]}, "COMFYRELAY_SIGNING_SECRETS"),
        ({"payment_webhook_secret": "short"}, "COMFYRELAY_PAYMENT_WEBHOOK_SECRET"),
    ],
)
def test_short_secret_is_refused(tmp_path: Path, settings: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigurationError, match="token_urlsafe") as refused:
        load_secrets(Settings(data_dir=tmp_path, **settings))
    assert name in refused.value.detail
    assert "short " not in refused.value.detail.replace("shorter than", "")


def test_shortened_secret_in_the_file_is_refused(tmp_path: Path) -> None:
    created = load_secrets(Settings(data_dir=tmp_path))
    path = tmp_path / "secrets.json"
    path.write_text(path.read_text("utf-8").replace(created.fleet["production"][0], "short"), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"secrets\.json"):
        load_secrets(Settings(data_dir=tmp_path))


@pytest.mark.parametrize("is_first", [True, False])
def test_temporary_file_of_a_killed_server_is_removed(tmp_path: Path, is_first: bool) -> None:
    if not is_first:
        load_secrets(Settings(data_dir=tmp_path))
    (tmp_path / f"{PART_PREFIX}0123").write_text('{"fleet_secrets"')
    load_secrets(Settings(data_dir=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["secrets.json"]


def test_server_whose_temporary_file_was_removed_reads_the_other_servers_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = files.link_new

    def link_after_another_server(part: Path, path: Path) -> None:
        monkeypatch.setattr(files, "link_new", link)
        load_secrets(Settings(data_dir=tmp_path))
        link(part, path)

    monkeypatch.setattr(files, "link_new", link_after_another_server)
    mine = load_secrets(Settings(data_dir=tmp_path))
    assert mine == load_secrets(Settings(data_dir=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["secrets.json"]


def test_long_secret_is_accepted(tmp_path: Path) -> None:
    secrets = load_secrets(
        Settings(data_dir=tmp_path, fleet_secrets={"production": [LONG]}, signing_secrets=[LONG], host="0.0.0.0")
    )
    assert secrets.accepts("production", LONG)
