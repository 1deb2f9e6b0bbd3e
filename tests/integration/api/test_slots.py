"""Worker slots: where jobs run, as administrators see it."""

from typing import Any

import pytest

from comfyrelay.store.central.tables.workers import workers
from tests.support.api import Api, Caller, problem_of

pytestmark = pytest.mark.both_databases

GIB = 1024**3
DEVICES = [
    {"server": "comfyui-1", "name": "NVIDIA RTX", "memory_total": 24 * GIB, "memory_used": 4 * GIB, "load": 0.5},
    {"server": "comfyui-2", "unavailable_reason": "Nobody answers there."},
]
PROGRESS = {
    "value": 0.4,
    "phase": "running",
    "server": "comfyui-1",
    "node_id": "4",
    "node": "Paint the cat",
    "step": 8,
    "steps": 20,
    "began_at": "2020-01-01T00:00:00+00:00",
}


async def running(api: Api) -> tuple[Caller, dict[str, Any], dict[str, Any]]:
    """Return a worker that runs the first job of a batch of three, its lease, and the batch."""
    effect_id = await api.effect()
    user = await api.user(tokens=100)
    batch = await user.post("/api/batches", {"effect_id": effect_id, "label": "Cats", "items": [{"label": "a"}] * 3})
    worker = await api.worker(max_concurrency=2, display_name="Big one")
    job = (await worker.post("/api/worker/poll", {"worker_id": "gpu-1"}))["job"]
    return worker, job, batch


async def test_slot_shows_its_gpu_and_job_progress(api: Api) -> None:
    worker, job, batch = await running(api)
    admin = await api.user("root@example.com", is_admin=True)
    lease = {"dispatch_id": job["dispatch_id"], "lease_token": job["lease_token"]}
    await worker.post("/api/worker/heartbeat", {**lease, "progress": PROGRESS, "devices": DEVICES})
    slots = await admin.get("/api/slots")
    busy, unreachable = slots["items"]
    assert {
        name: busy[name] for name in ("worker_id", "name", "gpu", "memory_used", "load", "state", "unavailable_reason")
    } == {
        "worker_id": "gpu-1",
        "name": "Big one",
        "gpu": "NVIDIA RTX",
        "memory_used": 4 * GIB,
        "load": 0.5,
        "state": "busy",
        "unavailable_reason": None,
    }
    assert busy["job"] == {
        "id": job["job_id"],
        "batch_id": batch["id"],
        "label": "a",
        "item_no": busy["job"]["item_no"],
        "total": 3,
        "node": "4",
        "node_title": "Paint the cat",
        "step": 8,
        "steps": 20,
        "progress": 0.4,
        "started_at": "2020-01-01T00:00:00Z",
        "expected_seconds": None,
    }
    assert (unreachable["state"], unreachable["unavailable_reason"], unreachable["job"]) == (
        "idle",
        "Nobody answers there.",
        None,
    )
    # another process sees the same once the reports are stored
    assert await api.engine.workers.slots.write_noted() == {"gpu-1"}
    assert await admin.get("/api/slots") == slots


async def test_device_reports_are_not_written_per_heartbeat(api: Api) -> None:
    worker, job, _ = await running(api)
    await api.stop_loops()
    lease = {"dispatch_id": job["dispatch_id"], "lease_token": job["lease_token"]}
    for _ in range(3):
        await worker.post("/api/worker/heartbeat", {**lease, "devices": DEVICES})
    async with api.engine.databases.central.read() as tx:
        rows = await tx.execute(workers.select())
        assert [row.devices for row in rows] == [None]


async def test_only_administrators_see_slots(api: Api) -> None:
    problem_of(await (await api.user()).call("GET", "/api/slots"), 403)


async def test_slots_are_paginated_by_worker(api: Api) -> None:
    await api.effect()
    admin = await api.user("root@example.com", is_admin=True)
    for name in ("gpu-1", "gpu-2", "gpu-3"):
        await api.worker(name)
    first = await admin.get("/api/slots?limit=2")
    assert [item["worker_id"] for item in first["items"]] == ["gpu-1", "gpu-2"]
    rest = await admin.get(f"/api/slots?limit=2&cursor={first['next_cursor']}")
    assert ([item["worker_id"] for item in rest["items"]], rest["next_cursor"]) == (["gpu-3"], None)
