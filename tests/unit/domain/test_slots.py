"""The assignment of jobs to the slots of a worker."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comfyrelay.domain.queue.progress import Progress
from comfyrelay.domain.queue.slots import SlotLease, SlotState, slots_of
from comfyrelay.domain.queue.states import WorkerState

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TWO = [
    {"server": "comfyui-1", "name": "A"},
    {"server": "comfyui-2", "name": "B", "unavailable_reason": "It does not answer."},
]


def held(job_id: str, *, is_prefetch: bool = False, age: float = 0.0, **progress: Any) -> SlotLease:
    return SlotLease(
        tenant_id="t",
        job_id=job_id,
        shard="main",
        workflow_id=1,
        worker_id="gpu-1",
        is_prefetch=is_prefetch,
        leased_at=NOW - timedelta(seconds=age),
        progress=Progress.from_report(progress),
    )


def slots(*jobs: SlotLease, devices: Any = TWO, state: WorkerState = WorkerState.BUSY, **more: Any) -> list[SlotState]:
    fields = {"max_concurrency": 2, "comfyui": None, **more}
    return slots_of(worker_id="gpu-1", name="Big one", state=state, devices=devices, held=jobs, **fields)


def jobs_of(found: list[SlotState]) -> list[str | None]:
    return [slot.held.job_id if slot.held is not None else None for slot in found]


def test_job_is_shown_on_its_server() -> None:
    found = slots(held("j", server="comfyui-2", phase="running"))
    assert jobs_of(found) == [None, "j"]
    assert [slot.state for slot in found] == [WorkerState.IDLE, WorkerState.BUSY]
    assert [(slot.gpu, slot.unavailable_reason) for slot in found] == [("A", None), ("B", "It does not answer.")]


def test_details_of_a_shared_gpu_are_on_each_of_its_slots() -> None:
    shared = {"name": "A", "on_gpu": 2, "packing": "2 at once: nothing waits."}
    found = slots(devices=[{"server": "comfyui-1", **shared}, {"server": "comfyui-2", **shared}])
    assert [(slot.on_gpu, slot.packing) for slot in found] == [(2, "2 at once: nothing waits.")] * 2


def test_job_without_a_server_uses_a_free_slot() -> None:
    assert jobs_of(slots(held("new"), held("j", server="comfyui-1", phase="running"))) == ["j", "new"]


def test_prefetched_job_has_no_slot() -> None:
    assert jobs_of(slots(held("j", server="comfyui-1"), held("next", is_prefetch=True, phase="waiting"))) == ["j", None]


def test_running_job_replaces_one_being_stored() -> None:
    old = held("old", age=100, server="comfyui-1", phase="storing")
    assert jobs_of(slots(old, held("new", server="comfyui-1", phase="running"))) == ["new", None]


def test_server_with_several_slots_has_as_many_slots() -> None:
    cloud = [{"server": "comfy-cloud", "name": "Comfy Cloud", "slots": 3}]
    jobs = [held(name, server="comfy-cloud", phase="running") for name in "ab"]
    assert jobs_of(slots(*jobs, devices=cloud)) == ["a", "b", None]


@pytest.mark.parametrize("comfyui", [None, "x", [1], [{"gpus": []}], [{"gpus": [{"name": "A", "memory_total": 7}]}]])
def test_older_worker_has_one_slot_per_concurrent_job(comfyui: Any) -> None:
    found = slots(held("j", phase="running"), devices=None, comfyui=comfyui)
    assert jobs_of(found) == ["j", None]
    known = isinstance(comfyui, list) and comfyui[0] == {"gpus": [{"name": "A", "memory_total": 7}]}
    assert (found[0].gpu, found[0].memory_total) == (("A", 7) if known else (None, None))


@pytest.mark.parametrize("state", [WorkerState.OFFLINE, WorkerState.DRAINING, WorkerState.REVOKED, WorkerState.IDLE])
def test_empty_slot_has_the_state_of_its_worker(state: WorkerState) -> None:
    assert [slot.state for slot in slots(state=state)] == [state, state]


def test_job_on_an_unknown_server_has_no_slot() -> None:
    assert jobs_of(slots(held("j", server={}, phase="running"))) == [None, None]
