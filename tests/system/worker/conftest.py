"""Tests use the whole system, on SQLite with local files or on PostgreSQL with S3."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import count
from pathlib import Path

import pytest

from tests.support.storage import BUCKET
from tests.support.whole_system import Populated, System, open_system, populate
from tests.support.world import PostgresBackend, memory_folder

_numbers = count()


@pytest.fixture
def settings() -> Mapping[str, str]:
    """Return extra server settings; override them with `parametrize`."""
    return {}


@pytest.fixture
def simulators() -> int:
    """Return the number of ComfyUI simulators."""
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
async def system(
    folder: Path, settings: Mapping[str, str], simulators: int, populated: Populated
) -> AsyncIterator[System]:
    """Run the system on SQLite and local files, and check the invariants after the test."""
    async with open_system(folder, {}, settings=settings, simulators=simulators, populated=populated) as system:
        yield system
        await system.check()


@pytest.fixture
async def big_system(
    folder: Path, real_postgres_backend: PostgresBackend, s3_server: str, settings: Mapping[str, str], simulators: int
) -> AsyncIterator[System]:
    """Run the system on PostgreSQL and S3, and check the invariants after the test."""
    async with real_postgres_backend.databases(["main"]) as (central, shards, _clock):
        databases = {"DATABASE_URL": central, "SHARDS": json.dumps(shards)}
        s3 = (s3_server, f"s3://{BUCKET}/system/{next(_numbers)}")
        async with open_system(folder, databases, s3=s3, settings=settings, simulators=simulators) as system:
            yield system
            await system.check()


@pytest.fixture(params=["system", "big_system"])
def any_system(request: pytest.FixtureRequest, settings: Mapping[str, str], simulators: int) -> System:
    """Run the test on both systems; requesting the fixtures of both lets `parametrize` override them."""
    found: System = request.getfixturevalue(request.param)
    return found
