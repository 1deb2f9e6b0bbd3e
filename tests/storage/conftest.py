from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import httpx
import pytest

from comfyrelay.storage.local import LocalObjects
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.storage.s3 import S3Objects
from tests.storage.harness import ACCESS_KEY, BUCKET, SECRET_KEY, Clock, serve_files, serve_s3

_numbers = count()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_s3(tmp_path_factory.mktemp("s3")) as address:
        yield address


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, s3_server: str) -> None:
    """The environment of a process that uses this server, and nothing of the machine's own."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def s3(aws: None) -> S3Objects:
    """An empty store of its own."""
    return S3Objects(BUCKET, f"tests/{next(_numbers)}")


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
    """Every test that asks for this runs on both stores."""
    found: ObjectStore = request.getfixturevalue(store_name)
    return found


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        yield client
