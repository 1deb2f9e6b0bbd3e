"""A moto server behind a proxy that adds what moto lacks."""

import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from comfyrelay.autoscaling.providers.aws import access
from tests.support.aws_account import REGION, Account
from tests.support.aws_proxy import Proxy


@pytest.fixture(scope="session")
def moto_behind_proxy() -> Iterator[Proxy]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with Proxy(f"http://{host}:{port}").serving() as proxy:
        yield proxy
    server.stop()


class CachedSession:
    """Keep one client per service, because creating one takes longer than most tests."""

    def __init__(self, session: Any) -> None:
        self._make = session.client
        self._clients: dict[str, Any] = {}

    def client(self, service: str, **options: Any) -> Any:
        if service not in self._clients:
            self._clients[service] = self._make(service, **options)
        return self._clients[service]


@pytest.fixture(scope="session")
def shared_clients() -> Iterator[None]:
    """Let sessions with the same region and keys share their clients."""
    make = access.new_session

    @cache
    def session(region: str | None, _keys: str | None) -> CachedSession:
        return CachedSession(make(region))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(access, "new_session", lambda region: session(region, os.environ.get("AWS_ACCESS_KEY_ID")))
        yield


@pytest.fixture
def proxy(moto_behind_proxy: Proxy, shared_clients: None, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """Provide an empty account: the environment has test keys and none of this machine's configuration."""
    moto_behind_proxy.reset()
    for name, value in {
        "AWS_ENDPOINT_URL": moto_behind_proxy.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": REGION,
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return moto_behind_proxy


@pytest.fixture(scope="session")
def clients() -> dict[str, Any]:
    return {}


@pytest.fixture
def account(proxy: Proxy, clients: dict[str, Any]) -> Account:
    found = Account(proxy, clients)
    found.clear()
    proxy.reset()
    return found
