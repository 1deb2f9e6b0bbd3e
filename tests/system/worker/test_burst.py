"""Jobs burst to Comfy Cloud, with a real server, two workers and two simulators."""

import asyncio

import pytest

from comfyrelay.simulator import Simulator, Stuck
from tests.support.whole_system import COST, TOKENS, System
from tests.support.world import PATIENCE_SECONDS

# Without a history, jobs are expected to take 60 s.
PRICE = 1_000
EXPECTED = 60 * PRICE


async def until_waiting_reason(system: System, job: str, words: str) -> None:
    """Wait until operators see this wait reason."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while words not in (await system.waiting(job))["text"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.journey
async def test_impatient_jobs_burst_to_the_cloud_until_the_budget_is_spent(any_system: System) -> None:
    system = any_system
    effect = await system.plain_effect(
        provider="any", cloud_micros_per_second=PRICE, self_hosted_micros_per_second=1, burst_micros_per_hour=EXPECTED
    )
    here = system.simulator.misbehave(Stuck(class_type="ImageInvert"))
    await system.started("gpu-1", prefetch=0)
    running = await system.plain(effect)
    await system.until_running()
    async with Simulator(cloud=True, api_key="the-key") as cloud:
        there = cloud.misbehave(Stuck(class_type="ImageInvert"))
        await system.started(
            "cloud-1",
            simulators=[],
            comfy_providers="cloud",
            comfy_cloud_api_key="the-key",
            comfy_cloud_base_url=cloud.url,
        )
        patient = await system.submit(effect, input_payload={"color": 90}, max_wait_seconds=3600)
        hasty = await system.submit(effect, input_payload={"color": 91}, max_wait_seconds=10)
        await system.until_running(cloud)
        assert (await system.lease_of(hasty))["worker_id"] == "cloud-1"
        late = await system.submit(effect, input_payload={"color": 92}, max_wait_seconds=10)
        await until_waiting_reason(system, late, "Not sent to Comfy Cloud: the hourly cost limit is reached.")
        assert [(await system.lease_of(job_id))["provider"] for job_id in (running, patient, hasty, late)] == [
            "self_hosted",
            "self_hosted",
            "cloud",
            "self_hosted",
        ]
        here.end()
        await system.completed(running)
        await system.completed(patient)
        await system.completed(late)
        there.end()
        await system.completed(hasty)
        assert cloud.log.leaked_credentials == []
        assert cloud.log.prompts_queued == 1
    done = await system.job(hasty)
    [burst] = (await system.admin("GET", "/bursts"))["items"]
    assert done["expected_cost_micros"] == burst["expected_cost_micros"] == EXPECTED
    assert done["cost_micros"] == burst["cost_micros"] > 0
    assert burst["reason"].startswith("Sent to Comfy Cloud: the wait would be about")
    assert (await system.lease_of(hasty))["cost_micros"] == done["cost_micros"]
    assert all([(await system.job(job_id))["cost_micros"] > 0 for job_id in (running, patient, late)])
    assert (await system.user("GET", "/wallet"))["balance"] == TOKENS - 4 * COST
