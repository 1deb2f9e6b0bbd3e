"""A whole fleet runs on one machine: a server on PostgreSQL, two candidates for leader, and local machines.

Each machine is a local process with a worker and a simulator, and the fleet starts without machines. Failures lose no
jobs, and nothing is charged or launched twice.
"""

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest

from comfyrelay.autoscaling import loop
from comfyrelay.domain.autoscaling import capacity
from comfyrelay.services.autoscaling import leadership
from tests.integration.autoscaling.providers.test_local import MODULE, kill_all
from tests.support import forked_commands
from tests.support.ec2_metadata import SPOT, Metadata
from tests.support.processes import Service
from tests.support.provider_contract import until
from tests.support.server_processes import free_port
from tests.support.whole_system import FLEET, System, open_system
from tests.support.world import PATIENCE_SECONDS, PostgresBackend, memory_folder

# Long enough to kill a process during a job.
STAND_IN = """#!/bin/sh
exec {python} -m comfyrelay simulator --port "$1" --folder "$2" --slow ImageInvert={seconds}
"""
LEASED = "SELECT DISTINCT worker_id FROM ai_job_dispatches WHERE status = 'leased'"
LAUNCHED = "SELECT key FROM machines WHERE provider_id IS NOT NULL"
PRESENT = "SELECT count(*) FROM machines WHERE ended_at IS NULL"
# Shorter pauses for tests.
LEADER_CONSTANTS: forked_commands.Constants = {
    (leadership, "TTL_SECONDS"): 3.0,
    (loop, "TICK_SECONDS"): 0.5,
    # otherwise many jobs at once would look like steady growth for minutes
    (capacity, "MIN_LOAD"): 1e9,
}


@dataclass
class WholeFleet:
    system: System
    central: asyncpg.Connection
    max_machines: int
    metadata: list[Metadata]
    leaders: list[Service] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.system.folder / "server" / "machines" / "production" / FLEET

    async def leased(self) -> set[str]:
        """Return the workers with leases."""
        return {row["worker_id"] for row in await self.central.fetch(LEASED)}

    async def until_working(self, count: int, *, but: frozenset[str] = frozenset()) -> list[str]:
        found: set[str] = set()

        async def are_working() -> bool:
            found.clear()
            found.update(await self.leased() - but)
            return len(found) >= count

        await self.until(are_working)
        return sorted(found)

    async def until(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        await until(is_so)

    async def until_launching(self) -> None:
        async def is_launching() -> bool:
            return any(self.folder.glob("*/order.json"))

        await self.until(is_launching)

    async def until_nothing_is_left(self) -> None:
        async def is_nothing_left() -> bool:
            return not self.processes() and not await self.central.fetchval(PRESENT)

        # a machine that never registers is abandoned after three times the boot time plus two minutes
        await until(is_nothing_left, patience_seconds=3 * PATIENCE_SECONDS)

    def order(self, worker_id: str) -> dict[str, Any]:
        orders: list[dict[str, Any]] = [json.loads(path.read_text()) for path in self.folder.glob("*/order.json")]
        return next(order for order in orders if order["id"] == worker_id)

    def kill_machine(self, worker_id: str) -> None:
        """Kill the machine with all its processes, without notice."""
        begun = json.loads((self.folder / self.order(worker_id)["key"] / "begun.json").read_text())
        kill_all(begun["pid"])

    def processes(self) -> set[int]:
        found = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words = process.cmdline()
                if (
                    MODULE in words
                    and words[-1].startswith(str(self.folder))
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.add(process.pid)
        return found

    async def check(self, *, lost: int) -> None:
        """Check that each order launched one machine and no machine was ordered twice; `lost` machines were killed."""
        launched = [row["key"] for row in await self.central.fetch(LAUNCHED)]
        started = [path.parent.name for path in self.folder.glob("*/begun.json")]
        assert sorted(launched) == sorted(set(launched)) == sorted(started)
        assert 1 <= len(launched) <= self.max_machines + lost


@asynccontextmanager
async def whole_fleet(
    folder: Path, backend: PostgresBackend, *, max_machines: int, seconds: float
) -> AsyncIterator[WholeFleet]:
    programs = folder / "programs"
    programs.mkdir()
    (programs / "slow-simulator").write_text(STAND_IN.format(python=sys.executable, seconds=seconds))
    (programs / "slow-simulator").chmod(0o700)
    port = free_port()
    async with AsyncExitStack() as stack:
        central, shards, _clock = await stack.enter_async_context(backend.databases(["main"]))
        databases = {"DATABASE_URL": central, "SHARDS": json.dumps(shards)}
        settings = {
            "FLEET_COMMANDS_DIR": str(programs),
            # requeue jobs of a killed machine soon
            "LEASE_TTL_SECONDS": "5",
            "LATE_GRACE_SECONDS": "0",
            # separate processes, so that one can be killed
            "AUTOSCALING": "false",
        }
        # one metadata service per machine, selected by its number
        metadata = [
            await stack.enter_async_context(Metadata(host=f"127.0.0.1{slot}", port=port))
            for slot in range(max_machines)
        ]
        system = await stack.enter_async_context(open_system(folder, databases, settings=settings))
        connection = await asyncpg.connect(central)
        stack.push_async_callback(connection.close)
        fleet = WholeFleet(system, connection, max_machines, metadata)
        machines = {
            "provider": "local",
            "instance_types": [{"name": "cpu", "price_per_hour": 0.1}],
            "options": {
                "comfyui": "slow-simulator",
                "boot_seconds": 10,
                "grace_seconds": 20,
                "environment": {
                    "COMFYRELAY_WORKER_METADATA_URL": f"http://127.0.0.1{{slot}}:{port}",
                    "COMFYRELAY_WORKER_METADATA_INTERVAL_SECONDS": "0.2",
                    "HEARTBEAT_INTERVAL_SECONDS": "1",
                },
            },
        }
        scaling = {"policy": "cheap", "max_machines": max_machines, "last_idle_seconds": 1.0}
        await system.admin("PATCH", f"/fleets/production/{FLEET}", {"machines": machines, "autoscaling": scaling})
        environment = {f"COMFYRELAY_{name}": value for name, value in system.settings.items()}
        fleet.leaders = [
            Service(
                *(name, "fleet", "run"), environment=environment, log=folder / f"{name}.log", constants=LEADER_CONSTANTS
            )
            for name in ("leader-1", "leader-2")
        ]
        try:
            for leader in fleet.leaders:
                await leader.start()
            yield fleet
        finally:
            for row in await connection.fetch("SELECT * FROM machines"):
                sys.stdout.write(f"{dict(row)}\n")
            for row in await connection.fetch(
                "SELECT created_at, reason, outcome FROM autoscaling_decisions ORDER BY id"
            ):
                sys.stdout.write(f"{row['created_at']} {row['reason']} {row['outcome']}\n")
            for leader in fleet.leaders:
                await leader.kill()
                sys.stdout.write(f"--- {leader.name}\n{leader.text()[-4000:]}\n")
            for pid in fleet.processes():
                kill_all(pid)
            for log in fleet.folder.glob("*/*.log"):
                sys.stdout.write(f"--- {log.relative_to(fleet.folder)}\n{log.read_text(errors='replace')[-1500:]}\n")


async def kill_leader(fleet: WholeFleet) -> None:
    """Kill the leader; the other candidate takes over."""
    [leader] = [leader for leader in fleet.leaders if leader.logged("leadership.changed", leads=True)]
    await leader.kill()


@pytest.fixture
def folder() -> Any:
    with memory_folder() as found:
        yield found


@pytest.mark.journey
async def test_jobs_complete_although_the_leader_is_killed_during_launch(
    folder: Path, real_postgres_backend: PostgresBackend
) -> None:
    async with whole_fleet(folder, real_postgres_backend, max_machines=2, seconds=0.1) as fleet:
        effect = await fleet.system.plain_effect()
        jobs = [await fleet.system.plain(effect) for _ in range(8)]
        await fleet.until_launching()
        await kill_leader(fleet)
        for job in jobs:
            await fleet.system.completed(job)
        await fleet.until_nothing_is_left()
        await fleet.check(lost=0)
        await fleet.system.check()


async def test_jobs_complete_although_leader_and_machines_are_killed(
    folder: Path, real_postgres_backend: PostgresBackend
) -> None:
    async with whole_fleet(folder, real_postgres_backend, max_machines=3, seconds=0.6) as fleet:
        effect = await fleet.system.plain_effect()
        jobs = [await fleet.system.plain(effect) for _ in range(40)]
        await fleet.until_launching()
        await kill_leader(fleet)

        killed, *_ = await fleet.until_working(2)
        fleet.kill_machine(killed)
        [warned, *_] = await fleet.until_working(1, but=frozenset({killed}))
        metadata = fleet.metadata[fleet.order(warned)["slot"]]
        metadata.interrupt(seconds=120.0)
        await metadata.until_asked(SPOT)
        # do not interrupt a later machine in this slot
        metadata.disarm(SPOT)

        for job in jobs:
            await fleet.system.completed(job)
        await fleet.until_nothing_is_left()
        await fleet.check(lost=2)
        await fleet.system.check()
