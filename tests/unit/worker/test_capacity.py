"""When a worker polls for another job, and the capacity that it reports."""

from typing import Any

import pytest

from comfyrelay.protocol.progress import Phase
from comfyrelay.worker.capacity import Capacity, background_slots, capacity_for, max_processes_per_gpu
from comfyrelay.worker.lease import Lease
from tests.support.leases import make_lease


def held(*phases: Phase, provider: str = "self_hosted") -> list[Lease]:
    return [make_lease(provider=provider, phase=phase) for phase in phases]


def room(leases: list[Lease], **changes: Any) -> Capacity | None:
    given: dict[str, Any] = {"slots": {"self_hosted": 1}, "max_concurrency": 1, "prefetch": 1, "upload_behind": 1}
    return capacity_for(leases, **{**given, **changes})


def test_idle_worker_asks_for_a_job() -> None:
    assert room([]) == Capacity(providers=("self_hosted",), max_concurrency=1, prefetch=1, current_load=0)


def test_running_job_allows_one_prefetch() -> None:
    assert room(held(Phase.RUNNING)) is not None
    assert room(held(Phase.RUNNING, Phase.FETCHING)) is None
    assert room(held(Phase.RUNNING, Phase.WAITING)) is None


def test_uploading_job_takes_no_slot_but_is_still_held() -> None:
    found = room(held(Phase.STORING, Phase.RUNNING))
    assert found is not None
    assert found.prefetch == 2
    assert found.current_load == 1


def test_uploads_that_lag_behind_hold_up_new_jobs() -> None:
    assert room(held(Phase.STORING, Phase.SETTLING)) is not None
    assert room(held(Phase.STORING, Phase.STORING, Phase.SETTLING)) is None


def test_uploads_of_a_few_do_not_hold_up_many_gpus() -> None:
    leases = held(*[Phase.RUNNING] * 4, Phase.STORING, Phase.STORING)
    assert room(leases, slots={"self_hosted": 8}, max_concurrency=8) is not None


@pytest.mark.parametrize("phase", Phase)
def test_without_overlap_one_job_is_done_after_the_other(phase: Phase) -> None:
    assert room(held(phase), prefetch=0, upload_behind=0) is None


def test_worker_without_servers_requests_no_job() -> None:
    assert room([], slots={"self_hosted": 0}) is None


def test_only_providers_with_room_are_named() -> None:
    slots = {"self_hosted": 1, "cloud": 3}
    busy = held(Phase.RUNNING, Phase.WAITING)
    found = room(busy, slots=slots, max_concurrency=4)
    assert found is not None
    assert found.providers == ("cloud",)
    found = room(held(Phase.RUNNING), slots={"self_hosted": 0, "cloud": 1}, max_concurrency=4)
    assert found is not None
    assert found.providers == ("cloud",)


def test_no_more_at_once_than_was_set() -> None:
    leases = held(Phase.RUNNING, Phase.RUNNING)
    assert room(leases, slots={"self_hosted": 4}, max_concurrency=2, prefetch=0) is None
    found = room(leases, slots={"self_hosted": 4}, max_concurrency=3, prefetch=0)
    assert found is not None
    assert found.max_concurrency == 3


@pytest.mark.parametrize(
    ("usual", "times"), [([], 1), ([0.8, 0.7], 4), ([0.8, None], 1), ([0.8, 60.0], 1), ([10.0], 4)]
)
def test_each_server_prefetches_while_jobs_are_short(usual: list[float | None], times: int) -> None:
    assert background_slots(usual, slots=4, short_seconds=10.0) == times


def test_no_more_comfyui_are_on_a_gpu_than_could_have_a_job() -> None:
    assert max_processes_per_gpu(None, gpus=1) is None
    assert [max_processes_per_gpu(at_once, gpus=2) for at_once in (1, 2, 3, 4)] == [1, 1, 2, 2]
