from tests.harness import World


async def test_a_completed_job_is_consumed(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.leased()
    assert await desk.balance() == 990
    assert (await world.job(job)).status == "processing"
    assert await world.complete(leased) == "completed"
    assert (await world.job(job)).status == "completed"
    assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_CONSUME": 0}
