"""A worker written only from the protocol page completes, fails and returns jobs."""

from asyncio import to_thread

import pytest
import requests

from tests.support.api import FLEET_SECRET
from tests.support.whole_system import FLEET, TOKENS, System
from tests.system.worker.minimal_worker import PICTURE, MinimalWorker, lease

pytestmark = pytest.mark.parametrize("settings", [{"LEASE_TTL_SECONDS": "1", "LATE_GRACE_SECONDS": "600"}])


async def registered(system: System) -> MinimalWorker:
    worker = MinimalWorker(str(system.http.base_url).rstrip("/"), name="minimal", fleet=FLEET, secret=FLEET_SECRET)
    await to_thread(worker.register)
    return worker


async def test_minimal_worker_runs_local_and_cloud_jobs_without_heartbeats(system: System) -> None:
    own = await system.effect("own")
    cloud = await system.effect("cloud", provider="cloud")
    worker = await registered(system)
    for effect, options in ((own, {}), (cloud, {"providers": ["cloud"]})):
        job_id = await system.image(effect)
        job = await to_thread(worker.poll, **options)
        assert (job["job_id"], job["attempt"]) == (job_id, 1)
        await to_thread(worker.work, job)
        assert await to_thread(worker.complete, job) == "completed"
        # the first response may have been lost
        assert await to_thread(worker.complete, job) == "completed"
        assert await system.completed(job_id) == PICTURE
        assert (await system.job(job_id))["attempts"] == 1


async def test_minimal_worker_fails_requeues_and_deregisters(system: System) -> None:
    effect = await system.plain_effect()
    worker = await registered(system)
    failing = await system.plain(effect)
    assert (await to_thread(worker.call, "fail", **lease(await to_thread(worker.poll))))["status"] == "failed"
    await system.until(failing, "failed")
    assert (await system.user("GET", "/wallet"))["balance"] == TOKENS

    job_id = await system.plain(effect)
    job = await to_thread(worker.poll)
    assert (await to_thread(worker.call, "requeue", **lease(job), reason="busy"))["status"] == "queued"
    job = await to_thread(worker.poll)
    # the worker crashed and lost its token
    assert (await to_thread(worker.register))["leases"] == 1
    with pytest.raises(requests.HTTPError, match="404"):
        await to_thread(worker.call, "heartbeat", dispatch_id=job["dispatch_id"], lease_token="of somebody else")
    assert await to_thread(worker.call, "deregister") == {"released": 1}
    with pytest.raises(requests.HTTPError, match="401"):
        await to_thread(worker.poll)

    again = await registered(system)
    job = await to_thread(again.poll)
    assert (job["job_id"], job["attempt"]) == (job_id, 1)
    await to_thread(again.work, job)
    assert await to_thread(again.complete, job) == "completed"
    assert await system.completed(job_id) == PICTURE
