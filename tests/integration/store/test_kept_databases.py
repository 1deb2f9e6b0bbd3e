"""Databases of released versions, and of this one, upgrade without losing a job, token or file.

A release keeps its databases with `make keep-databases`.
"""

import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from comfyrelay.domain.queue.states import DispatchStatus, JobStatus
from comfyrelay.errors import SchemaMismatch
from comfyrelay.services.databases import Databases
from comfyrelay.services.operations.readiness import OTHER_SCHEMA, Readiness
from comfyrelay.storage.objects import open_objects
from comfyrelay.store import migrate
from comfyrelay.store.database import Tx
from comfyrelay.store.migrate import Schema
from tests.kept.databases import (
    FOLDER,
    archive_of,
    facts,
    kept_facts,
    make,
    open_databases,
    postgres_databases,
    restore,
    unpack,
)
from tests.kept.next_version import next_version
from tests.support.paths import ROOT
from tests.support.world import execute

RELEASES = sorted(FOLDER.glob("*.zip"))
RELEASED = re.compile(r"^## (\d+\.\d+\.\d+) \((?!unreleased\))", re.M)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def this_version(tmp_path_factory: pytest.TempPathFactory, postgres_url: str) -> Path:
    """Databases of the unreleased version, whose migrations may still change."""
    folder = tmp_path_factory.mktemp("kept")
    await make(folder / "this.zip", folder, postgres_url)
    return folder / "this.zip"


@pytest.fixture(params=["this version", *RELEASES], ids=lambda found: getattr(found, "stem", found))
def archive(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue("this_version") if isinstance(request.param, str) else request.param
    return found


@pytest.fixture(params=["sqlite", "postgresql"])
async def kept(request: pytest.FixtureRequest, archive: Path, tmp_path: Path) -> AsyncIterator[Databases]:
    """Yield the databases in the state in which they were kept."""
    if request.param == "sqlite":
        async with open_databases(unpack(archive, tmp_path)) as databases:
            yield databases
        return
    async with postgres_databases(request.getfixturevalue("postgres_url")) as urls:
        await restore(archive, urls)
        async with open_databases(urls) as databases:
            yield databases


async def upgrade_to_next(databases: Databases) -> None:
    for database, schema in databases.schemas():
        await database.run("next", partial(_run_migrations, schema=schema))


async def _run_migrations(tx: Tx, *, schema: Schema) -> None:
    await tx.run_sync(migrate._upgrade, schema, "head")


def test_every_release_in_the_changelog_has_kept_its_databases() -> None:
    released = RELEASED.findall((ROOT / "CHANGELOG.md").read_text("utf-8"))
    assert [version for version in released if archive_of(version) not in RELEASES] == []
    assert RELEASED.findall("## 0.2.0 (unreleased)\n\n## 0.1.0 (2026-12-01)\n") == ["0.1.0"]


@pytest.mark.parametrize("version", ["1.2.3.dev7+g0a1b2c3d4.dirty", "1.2.3"])
def test_databases_are_kept_under_the_version_of_the_release(version: str) -> None:
    assert archive_of(version).name == "1.2.3.zip"


async def test_upgraded_databases_have_every_job_token_and_file(kept: Databases, archive: Path) -> None:
    await kept.upgrade()
    await kept.require_current()
    found = await facts(kept)
    assert found == kept_facts(archive, kept.central.dialect)
    statuses = {row.status for row in await execute(kept.central, "SELECT status FROM ai_job_dispatches")}
    assert statuses == set(DispatchStatus)
    statuses = {row.status for row in await execute(kept.shards["main"], "SELECT status FROM ai_jobs")}
    assert statuses == set(JobStatus)


async def test_next_version_upgrades_them_and_this_one_goes_on(kept: Databases, tmp_path: Path) -> None:
    """A newer server upgrades the databases while older ones run, and an older one is not started again."""
    await kept.upgrade()
    before = await facts(kept)
    with next_version(tmp_path / "migrations"):
        await upgrade_to_next(kept)
    assert await facts(kept) == before
    objects = open_objects(f"file://{tmp_path}/objects", base_url="", secrets=[])
    readiness = Readiness(kept, objects)
    assert await readiness.problems() == {}
    states = await kept.states()
    for call in (kept.upgrade, lambda: kept.open(0), kept.require_current):
        with pytest.raises(SchemaMismatch, match="A newer version has upgraded this database"):
            await call()
    assert await facts(kept) == before
    assert all("Install that version" in (state.problem or "") for state in states.values())
    await execute(kept.central, "ALTER TABLE ai_job_dispatches RENAME COLUMN epoch TO era")
    assert (await Readiness(kept, objects).problems())["central"] == OTHER_SCHEMA
