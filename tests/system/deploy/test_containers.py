"""The services of the compose file run a job."""

import asyncio
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from tests.support.commands import run
from tests.support.compose_files import (
    composed,
    example,
    of_kind,
)
from tests.support.graphs import invert
from tests.support.paths import ROOT
from tests.support.processes import Service
from tests.support.server_processes import free_port
from tests.support.world import PATIENCE_SECONDS

FILLED = {name: value or f"{name.lower().replace('_', '')}0123456789abcdef" for name, value in example().items()}
BIN = Path(sysconfig.get_path("scripts"))


def service(name: str) -> Any:
    return composed(FILLED)["services"][name]


class ComposedProcesses:
    """The services of the compose file as local processes, each on a free port."""

    def __init__(self, folder: Path, databases: Mapping[str, str]) -> None:
        self._folder = folder
        ports = {name: free_port() for name in ("server:8420", "s3:9000", "comfyui:8188", "worker:9100")}
        self.port = {name.partition(":")[0]: port for name, port in ports.items()}
        self._places = {
            **{name: f"127.0.0.1:{port}" for name, port in ports.items()},
            **{f"127.0.0.1:{name.partition(':')[2]}": f"127.0.0.1:{port}" for name, port in ports.items()},
            **databases,
        }

    def text(self, text: str) -> str:
        for before, after in self._places.items():
            text = text.replace(before, after)
        return text

    def environment(self, name: str) -> dict[str, str]:
        return {key: self.text(value) for key, value in service(name).get("environment", {}).items()}

    def words(self, name: str) -> list[str]:
        """The command with local folders and ports."""
        own = {"/data": str(self._folder / "s3"), "/data/comfyrelay": str(self._folder / "s3" / "comfyrelay")}
        ports = {":9000": self.port["s3"], "8188": self.port["comfyui"], "9100": self.port["worker"]}
        found = {**own, **{key: f"{'127.0.0.1:' * key.startswith(':')}{port}" for key, port in ports.items()}}
        return [found.get(word, word) for word in service(name)["command"]]

    def comfyrelay(self, name: str, **more: str) -> Service:
        environment = {"HOME": str(self._folder), **self.environment(name), **more}
        return Service(name, *self.words(name), environment=environment, log=self._folder / f"{name}.log")

    @asynccontextmanager
    async def started(self, process: Service) -> AsyncIterator[None]:
        await process.start()
        try:
            await self.wait_until_healthy([sys.executable, *(self.text(word) for word in _check(process.name))], {})
            yield
        finally:
            await process.kill()

    async def wait_until_healthy(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Wait until the health check succeeds."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                process = await asyncio.create_subprocess_exec(
                    *words, env=dict(environment), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
                if await process.wait() == 0:
                    return
                # there is no signal for an open port
                await asyncio.sleep(0.05)


@asynccontextmanager
async def s3(processes: ComposedProcesses) -> AsyncIterator[None]:
    own = {"HOME": "/nonexistent", "RCLONE_CONFIG": "", **processes.environment("s3")}
    rclone = str(BIN / "rclone")
    assert await (await asyncio.create_subprocess_exec(rclone, *processes.words("bucket"), env=own)).wait() == 0
    process = await asyncio.create_subprocess_exec(rclone, *processes.words("s3"), env=own, stderr=subprocess.DEVNULL)
    try:
        [_, _, *words] = service("s3")["healthcheck"]["test"]
        await processes.wait_until_healthy([rclone, *words], own)
        yield
    finally:
        process.terminate()
        await process.wait()


@pytest.fixture
async def databases(postgres_url: str) -> AsyncIterator[dict[str, str]]:
    """The databases of the compose file, under unique names."""
    name = f"composed_{free_port()}"
    databases = {f"relay_{role}": f"{name}_{role}" for role in ("central", "tenants")}
    postgres = service("postgres")
    assert postgres["environment"]["POSTGRES_DB"] == "relay_central"
    assert composed(FILLED)["configs"]["shards"]["content"] == "CREATE DATABASE relay_tenants;"
    connection = await asyncpg.connect(postgres_url.format("postgres"))
    for database in databases.values():
        await connection.execute(f"CREATE DATABASE {database}")
    address = f"postgresql://relay:{FILLED['POSTGRES_PASSWORD']}@postgres/"
    yield {f"{address}{before}": postgres_url.format(after) for before, after in databases.items()}
    for database in databases.values():
        await connection.execute(f"DROP DATABASE {database} WITH (FORCE)")
    await connection.close()


@pytest.mark.journey
async def test_composed_services_run_a_job(databases: dict[str, str], tmp_path: Path) -> None:
    processes = ComposedProcesses(tmp_path, databases)
    at = {"COMFYRELAY_DATA_DIR": str(tmp_path / "server"), "COMFYRELAY_PORT": str(processes.port["server"])}
    server, comfyui = processes.comfyrelay("server", **at), processes.comfyrelay("comfyui")
    worker = processes.comfyrelay("worker", COMFYRELAY_WORKER_DATA_DIR=str(tmp_path / "worker"))
    address = f"http://127.0.0.1:{processes.port['server']}"
    # inside the server's container
    inside = {**{"PATH": os.environ["PATH"], "HOME": str(tmp_path)}, **processes.environment("server"), **at}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(s3(processes))
        for process in (server, comfyui):
            await stack.enter_async_context(processes.started(process))
        token = await _admin(inside)
        await _catalogue(address, token, fleet=processes.environment("worker")["FLEET_SLUG"])
        await stack.enter_async_context(processes.started(worker))
        asking = {**inside, "COMFYRELAY_URL": address, "COMFYRELAY_TOKEN": token}
        done = await run("run", "invert", "--out", str(tmp_path / "made"), env=asking)
        assert done.code == 0, done.err + "".join(process.text() for process in (server, comfyui, worker))
    [output] = (tmp_path / "made").iterdir()
    assert output.read_bytes().startswith(b"\x89PNG")
    stored = [path for path in (tmp_path / "s3" / "comfyrelay").rglob("*") if path.is_file()]
    assert output.read_bytes() in [path.read_bytes() for path in stored]


def _check(name: str) -> list[str]:
    """Arguments of the health check of a service or its image, after `python`."""
    own = service(name).get("healthcheck")
    if own is not None:
        found: list[str] = own["test"]
        return found[2:]
    [check] = of_kind(ROOT / service(name)["build"]["dockerfile"], "HEALTHCHECK")
    words: list[str] = json.loads(check.partition("CMD ")[2])
    return words[1:]


async def _admin(env: Mapping[str, str]) -> str:
    words = ("admin", "create", "--email", "you@example.com", "--password", "choose a long one")
    return (await run(*words, env=env)).out.strip()


async def _catalogue(address: str, token: str, *, fleet: str) -> None:
    found = {
        "fleets": {"slug": fleet, "name": "Simulators"},
        "workflows": {"slug": "invert", "graph": invert()},
        "effects": {"slug": "invert", "name": "Invert", "workflow_slug": "invert", "credits_cost": 0},
    }
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=f"{address}/api/admin", headers=headers, timeout=PATIENCE_SECONDS) as http:
        for path, body in found.items():
            (await http.post(f"/{path}", json=body)).raise_for_status()
