"""Memory in the worker protocol: models that stay loaded, and jobs that did not fit a GPU."""

from tests.support.api import Api, Caller, data_of
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


async def run_out_of_memory(api: Api) -> tuple[Caller, Caller]:
    """Let `gpu-1` run out of memory, which blocks the workflow there because `gpu-2` may have enough. Return both."""
    user, effect = await api.user(tokens=100), await api.effect()
    sick, healthy = await api.worker(), await api.worker("gpu-2")
    await submit(user, effect)
    job = await lease(sick)
    body = {**lease_of(job), "error_message": "no memory", "fault": "worker", "code": "out_of_memory"}
    answer = await sick.post("/api/worker/fail", {**body, "gpu_memory_bytes": 8 * 2**30})
    # The worker may restart ComfyUI.
    assert answer == {"status": "queued", "is_blocked": True}
    await submit(user, effect)
    assert (await sick.post("/api/worker/poll", {"worker_id": "gpu-1"}))["job"] is None
    return sick, healthy


async def test_restart_of_comfyui_ends_blocks_for_running_out_of_memory(api: Api) -> None:
    sick, healthy = await run_out_of_memory(api)
    # The restart of another worker changes nothing.
    await healthy.post("/api/worker/poll", {"worker_id": "gpu-2", "comfyui_restarted": True, "providers": ["cloud"]})
    assert (await sick.post("/api/worker/poll", {"worker_id": "gpu-1"}))["job"] is None
    assert (await sick.post("/api/worker/poll", {"worker_id": "gpu-1", "comfyui_restarted": True}))["job"] is not None


async def test_restart_of_comfyui_does_not_end_other_blocks(api: Api) -> None:
    user, effect = await api.user(tokens=100), await api.effect()
    worker = await api.worker()
    await submit(user, effect)
    failed = {**lease_of(await lease(worker)), "error_message": "no disk", "fault": "worker"}
    assert await worker.post("/api/worker/fail", failed) == {"status": "queued"}
    assert (await worker.post("/api/worker/poll", {"worker_id": "gpu-1", "comfyui_restarted": True}))["job"] is None


async def test_administrator_sees_the_reason_of_a_block_and_ends_it(api: Api) -> None:
    sick, _ = await run_out_of_memory(api)
    admin = await api.user("root@example.com", is_admin=True)
    [block] = (await admin.get("/api/admin/workers/gpu-1"))["blocks"]
    assert (block["reason"], block["is_out_of_memory"]) == ("ran out of memory on a GPU of 8 GiB", True)
    other = await admin.post("/api/admin/workers/gpu-1/unblock", {"workflow_hash": "0" * 64})
    assert [block["workflow_hash"] for block in other["blocks"]] == [block["workflow_hash"]]
    assert (await admin.post("/api/admin/workers/gpu-1/unblock", {"workflow_hash": block["workflow_hash"]}))[
        "blocks"
    ] == []
    assert (await sick.post("/api/worker/poll", {"worker_id": "gpu-1"}))["job"] is not None
    entries = (await admin.get("/api/admin/workers/gpu-1/audit-logs"))["items"]
    [entry] = [entry for entry in entries if entry["event"] == "client:unblocked_workflow"]
    assert entry["data"]["by"] == "root@example.com"
