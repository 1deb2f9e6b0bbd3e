"""If a worker is killed while it submits or cancels a Comfy Cloud run, the job runs and is paid at most once."""

import sys

import pytest

from comfyrelay.simulator import Simulator, Slow
from tests.support.api_calls import png
from tests.support.kill_points import VARIABLE, KillPoint
from tests.support.side_effects import CLOUD_KILL_POINTS
from tests.support.whole_system import System

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is a thing of POSIX")


@pytest.mark.parametrize("point", CLOUD_KILL_POINTS, ids=str)
async def test_job_of_a_killed_worker_runs_once_on_comfy_cloud(system: System, point: KillPoint) -> None:
    effect = await system.effect(provider="cloud")
    cancels = "cancel" in point.function
    async with Simulator(cloud=True, api_key="the-key") as cloud:
        if cancels:
            # the run would occupy the service for ten minutes
            cloud.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=6000, times=1))
        worker = system.worker(
            simulators=[],
            comfy_providers="cloud",
            comfy_cloud_api_key="the-key",
            comfy_cloud_base_url=cloud.url,
        )
        worker.environment.update(point.environment)
        await worker.start()
        job = await system.submit(effect, png("#102030"))
        if cancels:
            # the run is recorded and then reported
            await system.until_phase(job, "running")
            await system.user("POST", f"/ai-jobs/{job}/cancel")
        await worker.ended()
        del worker.environment[VARIABLE]
        await worker.start()
        if cancels:
            await system.until(job, "canceled")
            job = await system.submit(effect, png("#102031"))
        if not cancels and point.when == "after":
            # The worker did not learn the id of the job, and Comfy Cloud does not return it again.
            await system.until(job, "failed")
            assert "could be charged twice" in (await system.lease_of(job))["last_error"]
        else:
            await system.completed(job)
        assert cloud.log.prompts_queued == (2 if cancels else 1)
