"""AWS for the tests of fleets: moto's server, with what it lacks in front of it."""

from collections.abc import Iterator
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from tests.fleet.aws.account import REGION, Account
from tests.fleet.aws.proxy import Proxy


@pytest.fixture(scope="session")
def moto_behind_proxy() -> Iterator[Proxy]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with Proxy(f"http://{host}:{port}").serving() as proxy:
        yield proxy
    server.stop()


@pytest.fixture
def proxy(moto_behind_proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """An account with nothing in it, that every client finds; keys that mean nothing, and nothing of the machine's own."""
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
    return Account(proxy, clients)
