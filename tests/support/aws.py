"""AWS for the tests of fleets: moto's server, with what it lacks in front of it."""

import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from comfyrelay.autoscaling.providers.aws.access import Aws
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


@pytest.fixture(scope="session")
def clients_made_once() -> Iterator[None]:
    """To make the clients of a fleet takes longer than most tests: those with the same keys and region are one."""
    make = Aws._make

    @cache
    def once(service: str, region: str | None, _keys: str | None) -> Any:
        return make(Aws(region), service)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Aws, "_make", lambda aws, service: once(service, aws._region, os.environ.get("AWS_ACCESS_KEY_ID"))
        )
        yield


@pytest.fixture
def proxy(moto_behind_proxy: Proxy, clients_made_once: None, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """An empty account that every client finds; keys that mean nothing, and nothing of the machine's own."""
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
