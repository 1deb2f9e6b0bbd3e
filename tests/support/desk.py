"""Run a desk with the simulator in the event loop of the test, and provide a client."""

import asyncio
import atexit
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from comfyrelay.client import Client, Job
from comfyrelay.comfyui.pool.members import MemberTimings
from comfyrelay.desk.desk import Desk
from comfyrelay.desk.page_settings.live import LiveSettings
from comfyrelay.desk.settings import DeskSettings
from comfyrelay.desk.startup.first_start import create_initial_data, single_user_settings
from comfyrelay.desk.startup.parts import DeskParts
from comfyrelay.desk.startup.ready import DeskReady
from comfyrelay.desk.startup.scripts import DeskScript
from comfyrelay.desk.startup.workers import DeskWorkers
from comfyrelay.server.http.secrets import load_secrets
from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from comfyrelay.worker.comfyui import servers
from tests.support.server_processes import free_port
from tests.support.world import PATIENCE_SECONDS

# The workers of all desks: a desk starts its simulator later.
_workers: list[DeskWorkers] = []


class RecordedDesk(Desk):
    """A desk whose simulator tests can call."""

    def _create_parts(self, live: LiveSettings, script: DeskScript | None) -> DeskParts:
        parts = super()._create_parts(live, script)
        _workers.append(parts.workers)
        return parts


def callable_url(comfyui: str) -> str:
    """Return the address at which tests can call the ComfyUI or simulator that a desk shows."""
    simulators = (workers._simulator for workers in reversed(_workers))
    found = (simulator.url_with_secret for simulator in simulators if simulator and simulator.url == comfyui)
    return next(found, comfyui)


@dataclass
class OpenDesk:
    client: Client
    ready: DeskReady
    desk: Desk

    async def ended(self, job_id: str) -> Job:
        """Wait until the job has ended."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for _event in self.client.events(job_id):
                pass
        return await self.client.job(job_id)


def make_desk(folder: Path, *, is_new: bool = False, **desk: object) -> Desk:
    if not is_new:
        copy_initial_data(folder)
    if "comfyui_url" not in desk:
        # without a ComfyUI, run jobs on the simulator
        desk = {"simulator": True, **desk}
    # do not wait for a ComfyUI that failed
    settings = Settings(data_dir=folder, port=free_port(), block_cooldown_seconds=0.2)
    return RecordedDesk(settings=settings, desk=DeskSettings.model_validate(desk))


@asynccontextmanager
async def open_desk(desk: Desk) -> AsyncIterator[OpenDesk]:
    async with desk.open() as (_worker, ready), Client(ready.url) as client:
        yield OpenDesk(client=client, ready=ready, desk=desk)


def copy_initial_data(folder: Path) -> None:
    """Copy the data of an earlier first start, which takes half the time of a start."""
    if not (folder / ".furnished").exists():
        shutil.copytree(_initial_data(), folder, dirs_exist_ok=True)


@cache
def _initial_data() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="comfyrelay-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    settings = single_user_settings(Settings(data_dir=folder))

    async def first_start() -> None:
        load_secrets(settings)
        async with Engine(settings) as engine:
            await engine.databases.upgrade()
            await create_initial_data(engine, settings)

    # in a thread: the loop of the test is running
    thread = threading.Thread(target=lambda: asyncio.run(first_start()))
    thread.start()
    thread.join()
    assert (folder / ".furnished").exists()
    return folder


@pytest.fixture
def fast_reconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let desks retry an unreachable ComfyUI several times per second."""
    timings = MemberTimings(health_interval_seconds=10.0, first_backoff_seconds=0.1, last_backoff_seconds=0.2)
    monkeypatch.setattr(servers, "MemberTimings", lambda **_options: timings)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[OpenDesk]:
    async with open_desk(make_desk(tmp_path / "desk")) as desk:
        yield desk
