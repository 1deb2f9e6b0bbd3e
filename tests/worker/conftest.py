"""The whole system for a test: on SQLite with local files, or on PostgreSQL with S3."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import count
from pathlib import Path

import pytest

from tests.harness import PostgresBackend, memory_folder
from tests.storage.harness import BUCKET
from tests.worker.system import Populated, System, open_system, populate

_numbers = count()


@pytest.fixture
def settings() -> Mapping[str, str]:
    """More settings of the server; a test says its own with `parametrize`."""
    return {}


@pytest.fixture
def sims() -> int:
    """How many stand-ins for ComfyUI there are."""
    return 1


@pytest.fixture(scope="session")
def populated() -> Iterator[Populated]:
    with memory_folder() as folder:
        yield asyncio.run(populate(folder))


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as folder:
        yield folder


@pytest.fixture
async def system(folder: Path, settings: Mapping[str, str], sims: int, populated: Populated) -> AsyncIterator[System]:
    """On SQLite and local files. After the test everything that must always hold is checked."""
    async with open_system(folder, {}, settings=settings, sims=sims, populated=populated) as system:
        yield system
        await system.check()


@pytest.fixture
async def big_system(
    folder: Path, real_postgres_backend: PostgresBackend, s3_server: str, settings: Mapping[str, str], sims: int
) -> AsyncIterator[System]:
    """The same on PostgreSQL and S3."""
    async with real_postgres_backend.databases(["main"]) as (central, pools, _clock):
        databases = {"DATABASE_URL": central, "TENANT_POOLS": json.dumps(pools)}
        s3 = (s3_server, f"s3://{BUCKET}/system/{next(_numbers)}")
        async with open_system(folder, databases, s3=s3, settings=settings, sims=sims) as system:
            yield system
            await system.check()


@pytest.fixture(params=["system", "big_system"])
def any_system(request: pytest.FixtureRequest, settings: Mapping[str, str], sims: int) -> System:
    """Both, one after the other. What they ask for is asked for here too, so that a test can say it."""
    found: System = request.getfixturevalue(request.param)
    return found
