"""A worker retries a refused registration as long as its cause may disappear."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from comfyrelay import __version__
from comfyrelay.protocol.worker import PROTOCOL
from comfyrelay.simulator.misbehaviour import Stuck
from comfyrelay.worker import registration
from comfyrelay.worker.control import ControlPlane
from comfyrelay.worker.registration import Registrar
from comfyrelay.worker.settings import WorkerSettings
from comfyrelay.worker.state import StateFolder
from tests.support.api import FLEET_SECRET
from tests.support.whole_system import FLEET, System

REGISTER = "POST /api/worker/register"


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        pytest.param({"MAX_FLEET_WORKERS": "1"}, "gpu-2", id="a full fleet"),
        pytest.param({}, "gpu-1", id="a name that is taken"),
    ],
)
async def test_refused_registration_is_retried_until_it_succeeds(
    system: System, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "RETRY_SECONDS", 0.1)
    await system.plain_effect()
    first = await system.started("gpu-1")
    state = StateFolder(tmp_path / "second")
    state.open()
    control = ControlPlane(system.api.url, worker_id=name)
    own = WorkerSettings(api_base_url=system.api.url, fleet_secret=FLEET_SECRET, fleet_slug=FLEET)
    waiting = asyncio.create_task(Registrar(own, control, state).register({"max_concurrency": 1}))
    try:
        # one registration by the other worker and two refused ones
        await system.api.until_asked(REGISTER, 1 + 3)
        assert not waiting.done()
        first.send(signal.SIGTERM)
        assert await first.ended() == 0
        assert await waiting
        assert state.saved_token() == control.token != ""
        assert [worker["worker_id"] for worker in (await system.admin("GET", "/workers"))["items"]] == [name]
    finally:
        waiting.cancel()
        await control.close()
        state.close()


@pytest.mark.parametrize("settings", [{"MAX_FLEET_WORKERS": "1"}])
async def test_worker_refused_by_a_full_fleet_reports_it_and_can_be_stopped(system: System) -> None:
    await system.plain_effect()
    await system.started("gpu-1")
    second = system.worker("gpu-2")
    await second.start()
    await second.wait_for_log("worker.registration_refused")
    assert "Raise its limit, or wait until a worker leaves." in second.logged("worker.registration_refused")[0]["why"]
    second.send(signal.SIGTERM)
    assert await second.ended() == 0


async def test_worker_registers_again_after_a_lost_response(system: System) -> None:
    await system.plain_effect()
    system.api.lose_answers(REGISTER.encode(), count=2)
    await system.started("gpu-1")
    assert system.api.asked(REGISTER) == 3
    [listed] = (await system.admin("GET", "/workers"))["items"]
    assert (listed["worker_id"], listed["protocol"], listed["version"]) == ("gpu-1", PROTOCOL, __version__)


@pytest.mark.journey
async def test_worker_that_lost_its_token_returns_its_jobs_and_continues(system: System) -> None:
    effect = await system.plain_effect()
    stuck = system.simulator.misbehave(Stuck(class_type="ImageInvert"))
    worker = await system.started("gpu-1")
    job = await system.submit(effect)
    await system.until_running(system.simulator)
    await worker.kill()
    stuck.end()
    (system.folder / "worker" / "gpu-1" / "token.json").unlink()
    await worker.start()
    await system.completed(job)
    assert (await system.job(job))["attempts"] == 1


async def test_worker_keeps_its_job_when_its_token_is_rotated(system: System) -> None:
    effect = await system.plain_effect()
    stuck = system.simulator.misbehave(Stuck(class_type="ImageInvert"))
    worker = await system.started("gpu-1", prefetch=0)
    job = await system.submit(effect)
    await system.until_running(system.simulator)
    await system.admin("POST", "/workers/gpu-1/rotate-token")
    await worker.wait_for_log("worker.registered", count=2)
    stuck.end()
    await system.completed(job)
    assert worker.logged("worker.job_lost") == []
    assert worker.logged("worker.job_leased")[1:] == []


async def test_worker_that_cannot_register_again_releases_its_job(system: System) -> None:
    effect = await system.plain_effect()
    stuck = system.simulator.misbehave(Stuck(class_type="ImageInvert"))
    worker = await system.started("gpu-1", prefetch=0)
    await system.submit(effect)
    await system.until_running(system.simulator)
    await system.admin("POST", "/workers/gpu-1/revoke")
    await worker.wait_for_log("worker.job_lost")
    stuck.end()
    assert len(worker.logged("worker.registered")) == 1


async def test_refused_worker_reports_it_before_comfyui_answers(system: System) -> None:
    await system.plain_effect()
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"fleet_slug": "none"}, "has no production fleet 'none'"),
        ({"fleet_stage": "staging"}, "FLEET_SECRET must be one of its secrets for staging"),
    ]
    for wrong, message in wrongs:
        worker = system.worker(comfyui_base_url="http://127.0.0.1:1", comfyui_folders=None, **wrong)
        await worker.start()
        assert await worker.ended() == 2
        assert message in worker.text()
