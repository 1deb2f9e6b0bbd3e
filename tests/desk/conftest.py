"""A desk in the test's own loop, with the stand-in, and somebody who uses it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from comfyrelay.client import Client, Job
from comfyrelay.desk.desk import Desk, Ready
from comfyrelay.desk.settings import DeskSettings
from comfyrelay.settings import Settings
from tests.api.processes import free_port


@dataclass
class OpenDesk:
    client: Client
    ready: Ready
    desk: Desk

    async def ended(self, job_id: str) -> Job:
        """Wait for a job's end."""
        async for _event in self.client.events(job_id):
            pass
        return await self.client.job(job_id)


def make_desk(folder: Path, **desk: object) -> Desk:
    settings = Settings(data_dir=folder, port=free_port())
    return Desk(settings=settings, desk=DeskSettings.model_validate(desk))


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[OpenDesk]:
    made = make_desk(tmp_path / "desk")
    async with made.open() as (_worker, ready), Client(ready.url) as client:
        yield OpenDesk(client=client, ready=ready, desk=made)
