"""A run is stopped at its limit, which counts from its start."""

import asyncio

import pytest

from comfyrelay.errors import Fault, RunTimedOut
from comfyrelay.worker.jobs.run_limit import RunLimit


async def test_run_is_stopped_at_its_limit_and_not_tried_again() -> None:
    limit = RunLimit(0.01)

    async def run() -> None:
        async with limit.enforced():
            limit.start()
            await asyncio.Event().wait()

    with pytest.raises(RunTimedOut) as stopped:
        await run()
    assert stopped.value.fault is Fault.JOB
    assert stopped.value.detail == "The run was stopped after 0.01 s, which is the limit for this job."


@pytest.mark.parametrize("starts", [False, True])
async def test_time_before_and_between_runs_does_not_count(starts: bool) -> None:
    limit = RunLimit(0.01)
    waited = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.05, waited.set_result, None)
    async with limit.enforced():
        if starts:
            limit.start()
            limit.reset()
        await waited


async def test_job_may_wait_for_another_run_after_a_run_has_ended() -> None:
    limit = RunLimit(0.01)
    for _ in range(2):
        async with limit.enforced():
            limit.start()
        limit.reset()


async def test_other_timeout_is_not_the_limit() -> None:
    limit = RunLimit(60)

    async def run() -> None:
        async with limit.enforced():
            limit.start()
            raise TimeoutError

    with pytest.raises(TimeoutError):
        await run()


async def test_job_without_a_limit_runs_to_its_end() -> None:
    limit = RunLimit(None)
    async with limit.enforced():
        limit.start()
        await asyncio.sleep(0)
