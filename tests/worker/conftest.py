"""The whole system for a test: on SQLite with local files, or on PostgreSQL with S3."""

import json
from collections.abc import AsyncIterator, Mapping
from itertools import count
from pathlib import Path

import pytest

from tests.harness import PostgresBackend
from tests.storage.harness import BUCKET
from tests.worker.system import System, open_system

_numbers = count()


@pytest.fixture
def settings() -> Mapping[str, str]:
    """More settings of the server; a test says its own with `parametrize`."""
    return {}


@pytest.fixture
def sims() -> int:
    """How many stand-ins for ComfyUI there are."""
    return 1


@pytest.fixture
async def system(tmp_path: Path, settings: Mapping[str, str], sims: int) -> AsyncIterator[System]:
    """On SQLite and local files. After the test everything that must always hold is checked."""
    async with open_system(tmp_path, {}, settings=settings, sims=sims) as system:
        yield system
        await system.check()


@pytest.fixture
async def big_system(
    tmp_path: Path, real_postgres_backend: PostgresBackend, s3_server: str, settings: Mapping[str, str], sims: int
) -> AsyncIterator[System]:
    """The same on PostgreSQL and S3."""
    async with real_postgres_backend.databases(["main"]) as (central, pools, _clock):
        databases = {"DATABASE_URL": central, "TENANT_POOLS": json.dumps(pools)}
        s3 = (s3_server, f"s3://{BUCKET}/system/{next(_numbers)}")
        async with open_system(tmp_path, databases, s3=s3, settings=settings, sims=sims) as system:
            yield system
            await system.check()


@pytest.fixture(params=["system", "big_system"])
def any_system(request: pytest.FixtureRequest, settings: Mapping[str, str], sims: int) -> System:
    """Both, one after the other. What they ask for is asked for here too, so that a test can say it."""
    found: System = request.getfixturevalue(request.param)
    return found
