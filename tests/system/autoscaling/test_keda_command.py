"""The KEDA scaler runs as a process."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from comfyrelay.services.engine import Engine
from tests.integration.autoscaling.kubernetes.keda import connect_keda
from tests.support.commands import start
from tests.support.world import PATIENCE_SECONDS, PostgresBackend, World, open_world

FLEET = "gpus"


async def make_fleet(engine: Engine, workflow_slug: str) -> None:
    await engine.workers.fleets.create(
        slug=FLEET, machines={"provider": "kubernetes"}, autoscaling={"max_machines": 5}, workflow_slugs=[workflow_slug]
    )


@pytest.fixture
async def shared(real_postgres_backend: PostgresBackend, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(real_postgres_backend, tmp_path, shards=("main",)) as world:
        yield world


async def test_command_answers_keda_until_sigterm(shared: World, tmp_path: Path) -> None:
    workflow = await shared.workflow()
    await make_fleet(shared.engine, workflow.slug)
    await shared.submit(await shared.user(), await shared.effect(workflow, cost=0))
    settings = shared.engine.settings
    env = {
        "PATH": "/usr/bin:/bin",
        "COMFYRELAY_DATA_DIR": str(tmp_path / "scaler"),
        "COMFYRELAY_DATABASE_URL": settings.central_url,
        "COMFYRELAY_SHARDS": f'{{"main": "{settings.shard_urls["main"]}"}}',
    }
    scaler = await start("fleet", "scaler", "--bind", "127.0.0.1:0", env=env)
    async with asyncio.timeout(PATIENCE_SECONDS):
        found = re.search(r":(\d+)", (await scaler.err.readline()).decode())
        assert found is not None
        async with connect_keda(int(found[1])) as keda:
            assert await keda.is_active(fleet=FLEET)
            assert (await keda.metric(fleet=FLEET))[1] == 1
    scaler.process.send_signal(signal.SIGTERM)
    assert (await scaler.ended()).code == 0
