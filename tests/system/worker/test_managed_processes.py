"""ComfyUI processes that a worker starts are servers of its pool while they run."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.comfyui.pool.members import MemberTimings
from comfyrelay.comfyui.processes.supervisor import Timings
from comfyrelay.errors import NotFound, NotStarted
from comfyrelay.worker.comfyui import servers as servers_module
from comfyrelay.worker.comfyui.managed import ManagedServers
from comfyrelay.worker.comfyui.servers import Servers
from comfyrelay.worker.settings import WorkerSettings
from tests.support.api_calls import png
from tests.support.comfyui_install import FakeInstall
from tests.support.graphs import invert_file
from tests.support.world import PATIENCE_SECONDS

OFTEN = MemberTimings(first_backoff_seconds=0.1, last_backoff_seconds=0.2, reconnect_grace_seconds=0.0)
# long enough for a test to take the port before the next start
QUICK = Timings(poll_seconds=0.05, check_seconds=0.1, first_pause_seconds=1.0)


@dataclass
class OneLease:
    """The fields of a lease that the code under test reads."""

    server: str | None


@dataclass
class World:
    install: FakeInstall
    servers: Servers
    managed_servers: ManagedServers
    held: list[Any]

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():  # noqa: ASYNC110  (no signal to wait for)
                await asyncio.sleep(0.02)

    async def until_online(self, count: int) -> None:
        await self.until(lambda: len(self.servers.online("self_hosted")) == count)


@pytest.fixture
async def world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(servers_module, "MemberTimings", lambda **_given: OFTEN)
    install = FakeInstall(folder / "ComfyUI")
    settings = WorkerSettings(comfyui_dir=install.folder, comfyui_python=Path(sys.executable), comfyui_args=["--cpu"])
    assert settings.managed is not None
    held: list[Any] = []
    async with AsyncExitStack() as stack:
        servers = Servers(settings, on_change=lambda: None)
        managed_servers = ManagedServers(
            settings.managed, servers, folder=folder / "worker", held=lambda: held, timings=QUICK
        )
        stack.push_async_callback(managed_servers.close)
        stack.push_async_callback(servers.close)
        await servers.open()
        await managed_servers.open()
        yield World(install, servers, managed_servers, held)
    assert install.running_pids == []


async def test_added_process_is_removed_after_its_output_is_fetched(world: World) -> None:
    assert world.servers.unavailable_reason("comfyui-1") == "comfyui-1 is starting."
    assert world.servers.at_once == 1
    await world.until_online(1)
    await world.until(lambda: world.servers.unavailable_reason("comfyui-1") is None)
    [gpu] = world.managed_servers.gpus()
    url = await world.managed_servers.add(gpu.key)
    await world.until_online(2)
    assert world.servers.at_once == 2
    assert world.servers.own["comfyui-2"].url == url
    # the minimum of a Python process
    assert (world.managed_servers.largest_process_bytes(gpu.key) or 0) > 5 * 1024**2
    assert world.managed_servers.largest_process_bytes("another") is None
    world.held.append(OneLease("comfyui-2"))
    going = asyncio.create_task(world.managed_servers.remove(gpu.key, url))
    await world.until_online(1)
    # the run has ended, but its output has not been fetched yet
    await world.servers.own["comfyui-2"].check_health()
    assert not going.done()
    world.held.clear()
    await going
    assert [*world.servers.own] == ["comfyui-1"]
    assert len(world.install.running_pids) == 1


async def test_process_with_a_taken_port_moves_to_another(world: World) -> None:
    await world.until_online(1)
    before = world.servers.own["comfyui-1"].url
    world.install.kill()
    await world.until(lambda: "exited" in (world.servers.unavailable_reason("comfyui-1") or ""))
    with socket.create_server(("127.0.0.1", int(before.rpartition(":")[2]))):
        await world.until(lambda: [server.url for server in world.servers.own.values()] not in ([], [before]))
        await world.until_online(1)


async def test_process_with_a_bad_gpu_state_is_restarted(world: World) -> None:
    await world.until_online(1)
    await world.until(lambda: world.servers.unavailable_reason("comfyui-1") is None)
    assert world.servers.supervisor is not None
    world.servers.supervisor.restart("comfyui-1", "The GPU was in a bad state.")
    await world.until(lambda: "bad state" in (world.servers.unavailable_reason("comfyui-1") or ""))
    await world.until(lambda: len(world.install.starts) == 2)
    await world.until_online(1)


async def test_process_that_changed_its_port_can_be_removed(world: World) -> None:
    await world.until_online(1)
    [gpu] = world.managed_servers.gpus()
    url = await world.managed_servers.add(gpu.key)
    await world.until_online(2)
    world.install.kill()
    await world.until(lambda: "exited" in (world.servers.unavailable_reason("comfyui-2") or ""))
    with socket.create_server(("127.0.0.1", int(url.rpartition(":")[2]))):
        await world.until(lambda: "comfyui-2" in world.servers.own and world.servers.own["comfyui-2"].url != url)
        await world.managed_servers.remove(gpu.key, url)
    assert [*world.servers.own] == ["comfyui-1"]
    assert world.install.running_pids == [world.install.starts[0]["pid"]]
    with pytest.raises(NotFound, match=url):
        await world.managed_servers.remove(gpu.key, url)


async def test_process_that_moves_during_removal_does_not_return(world: World) -> None:
    await world.until_online(1)
    [gpu] = world.managed_servers.gpus()
    url = await world.managed_servers.add(gpu.key)
    await world.until_online(2)
    world.held.append(OneLease("comfyui-2"))
    going = asyncio.create_task(world.managed_servers.remove(gpu.key, url))
    await world.until_online(1)
    with socket.socket() as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        world.install.kill()
        await world.until(lambda: "exited" in (world.servers.unavailable_reason("comfyui-2") or ""))
        taker.bind(("127.0.0.1", int(url.rpartition(":")[2])))
        taker.listen()
        await world.until(lambda: len(world.install.starts) == 3)
        world.held.clear()
        await going
    assert [*world.servers.own] == [*world.servers.pool.stats().clients] == ["comfyui-1"]
    assert world.install.running_pids == [world.install.starts[0]["pid"]]


async def test_process_that_fails_to_start_is_not_a_server(world: World) -> None:
    await world.until_online(1)
    [gpu] = world.managed_servers.gpus()
    world.install.behave(exit=3)
    with pytest.raises(NotStarted):
        await world.managed_servers.add(gpu.key)
    assert [*world.servers.own] == [*world.servers.pool.stats().clients] == ["comfyui-1"]
    assert world.servers.at_once == 1


async def test_file_added_to_the_input_folder_after_start_is_found(world: World) -> None:
    await world.until_online(1)
    (world.install.folder / "input" / "late.png").write_bytes(png("#102030"))
    result = await world.servers.own["comfyui-1"].run(invert_file("late.png"))
    assert len(result.files) == 1
