"""Clients share what is slow to load."""

import shutil
import ssl
from pathlib import Path
from typing import Any

import certifi
import pytest

from comfyrelay.client import Client
from comfyrelay.http_client import http_client


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The certificate files that were loaded, with the variable SSL_CERT_FILE set to a new one."""
    found: list[str] = []
    load = ssl.SSLContext.load_verify_locations

    def recorded(context: ssl.SSLContext, cafile: Any = None, *others: Any) -> None:
        found.append(str(cafile))
        load(context, cafile, *others)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", recorded)
    monkeypatch.setenv("SSL_CERT_FILE", str(shutil.copy(certifi.where(), tmp_path / "own.pem")))
    return found


def test_certificates_are_loaded_once_for_all_clients(loads: list[str], tmp_path: Path) -> None:
    for _ in range(3):
        http_client()
    assert loads == [str(tmp_path / "own.pem")]


def test_clients_without_environment_do_not_share_its_certificates(loads: list[str], tmp_path: Path) -> None:
    http_client()
    http_client(trust_env=False)
    http_client(trust_env=False)
    assert loads.count(str(tmp_path / "own.pem")) == 1
    assert len(loads) <= 2


@pytest.mark.parametrize(
    ("url", "expected"), [("http://127.0.0.1:8420", 0), ("https://127.0.0.1:8420", 1), ("https://example.com", 1)]
)
def test_client_of_a_desk_on_this_machine_loads_no_certificates(loads: list[str], url: str, expected: int) -> None:
    Client(url)
    assert len(loads) == expected
