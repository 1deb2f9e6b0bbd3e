from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import httpx
import pytest
from moto.server import ThreadedMotoServer

from comfyrelay.storage.local import LocalObjects
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.storage.s3 import S3Objects
from tests.support.storage import BUCKET, Clock, serve_files

_numbers = count()


@pytest.fixture
def s3(aws: None) -> S3Objects:
    """Return a separate, empty store."""
    return S3Objects(BUCKET, f"tests/{next(_numbers)}")


@pytest.fixture
def s3_with_conditions(aws: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Objects]:
    """Yield an empty store on a server that, unlike rclone, supports conditional writes."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        store = S3Objects(BUCKET)
        store._client.create_bucket(Bucket=BUCKET)
        yield store
    finally:
        server.stop()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
async def local(root: Path, clock: Clock) -> AsyncIterator[LocalObjects]:
    async with serve_files(root, clock=clock) as store:
        yield store


@pytest.fixture(params=["local", "s3"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(store_name: str, request: pytest.FixtureRequest) -> ObjectStore:
    """Return the local or the S3 store; tests that use this fixture run on both."""
    found: ObjectStore = request.getfixturevalue(store_name)
    return found


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        yield client
