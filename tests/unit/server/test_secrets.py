"""Weak secrets are refused at startup, with a way to create better ones."""

from pathlib import Path
from typing import Any

import pytest

from comfyrelay.errors import ConfigurationError
from comfyrelay.server.http.secrets import load_secrets
from comfyrelay.settings import Settings

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


def test_long_secret_is_accepted(tmp_path: Path) -> None:
    secrets = load_secrets(
        Settings(data_dir=tmp_path, fleet_secrets={"production": [LONG]}, signing_secrets=[LONG], host="0.0.0.0")
    )
    assert secrets.accepts("production", LONG)
