"""Memory in the worker protocol: models that stay loaded, and jobs that did not fit a GPU."""

from tests.support.api import Api, data_of
from tests.support.api_calls import lease, lease_of, submit


async def test_lease_marks_workflows_that_stay_loaded(api: Api) -> None:
    admin = await api.user("root@example.com", is_admin=True)
    user, effect = await api.user(tokens=100), await api.effect()
    worker = await api.worker()
    await submit(user, effect)
    assert not (await lease(worker))["keep_loaded"]
    [workflow] = (await admin.get("/api/admin/workflows"))["items"]
    changed = await admin.call("PATCH", f"/api/admin/workflows/{workflow['slug']}", {"keep_loaded": True})
    assert data_of(changed)["keep_loaded"]
    other = await api.worker("gpu-2")
    await submit(user, effect)
    assert (await lease(other, "gpu-2"))["keep_loaded"]


async def test_out_of_memory_job_is_leased_to_a_larger_gpu(api: Api) -> None:
    user, effect = await api.user(tokens=100), await api.effect()
    small, large = await api.worker(), await api.worker("gpu-2")
    devices = [{"server": "comfyui-1", "name": "RTX", "memory_total": 24 * 2**30}]
    await large.post("/api/worker/poll", {"worker_id": "gpu-2", "devices": devices})
    await api.engine.workers.slots.write_noted()
    await submit(user, effect)
    job = await lease(small)
    body = {**lease_of(job), "error_message": "no memory", "fault": "worker", "code": "out_of_memory"}
    answer = await small.post("/api/worker/fail", {**body, "gpu_memory_bytes": 8 * 2**30})
    assert answer["status"] == "queued"
    assert (await small.post("/api/worker/poll", {"worker_id": "gpu-1"}))["job"] is None
    again = await lease(large, "gpu-2")
    assert (again["attempt"], again["ran_out_bytes"]) == (1, 8 * 2**30)
