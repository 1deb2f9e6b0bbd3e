"""Capacity decides when a worker polls for another job."""

from typing import Any

import pytest

from comfyrelay.protocol.progress import Phase
from comfyrelay.worker.capacity import Capacity, background_slots, capacity_for, max_processes_per_gpu
from comfyrelay.worker.lease import Lease
from tests.support.leases import make_lease


def held(*phases: Phase, provider: str = "self_hosted") -> list[Lease]:
    return [make_lease(provider=provider, phase=phase) for phase in phases]


def capacity(leases: list[Lease], **changes: Any) -> Capacity | None:
    settings: dict[str, Any] = {"slots": {"self_hosted": 1}, "max_concurrency": 1, "prefetch": 1, "upload_behind": 1}
    return capacity_for(leases, **{**settings, **changes})


def test_idle_worker_asks_for_a_job() -> None:
    assert capacity([]) == Capacity(providers=("self_hosted",), max_concurrency=1, prefetch=1, current_load=0)


def test_running_job_allows_one_prefetch() -> None:
    assert capacity(held(Phase.RUNNING)) is not None
    assert capacity(held(Phase.RUNNING, Phase.FETCHING)) is None
    assert capacity(held(Phase.RUNNING, Phase.WAITING)) is None


def test_uploading_job_uses_no_slot_but_is_held() -> None:
    found = capacity(held(Phase.STORING, Phase.RUNNING))
    assert found is not None
    assert found.prefetch == 2
    assert found.current_load == 1


def test_delayed_uploads_block_new_jobs() -> None:
    assert capacity(held(Phase.STORING, Phase.SETTLING)) is not None
    assert capacity(held(Phase.STORING, Phase.STORING, Phase.SETTLING)) is None


def test_few_uploads_do_not_block_many_gpus() -> None:
    leases = held(*[Phase.RUNNING] * 4, Phase.STORING, Phase.STORING)
    assert capacity(leases, slots={"self_hosted": 8}, max_concurrency=8) is not None


@pytest.mark.parametrize("phase", Phase)
def test_worker_without_overlap_holds_one_job(phase: Phase) -> None:
    assert capacity(held(phase), prefetch=0, upload_behind=0) is None


def test_worker_without_servers_requests_no_job() -> None:
    assert capacity([], slots={"self_hosted": 0}) is None


def test_only_providers_with_capacity_are_requested() -> None:
    slots = {"self_hosted": 1, "cloud": 3}
    busy = held(Phase.RUNNING, Phase.WAITING)
    found = capacity(busy, slots=slots, max_concurrency=4)
    assert found is not None
    assert found.providers == ("cloud",)
    found = capacity(held(Phase.RUNNING), slots={"self_hosted": 0, "cloud": 1}, max_concurrency=4)
    assert found is not None
    assert found.providers == ("cloud",)


def test_max_concurrency_limits_the_jobs() -> None:
    leases = held(Phase.RUNNING, Phase.RUNNING)
    assert capacity(leases, slots={"self_hosted": 4}, max_concurrency=2, prefetch=0) is None
    found = capacity(leases, slots={"self_hosted": 4}, max_concurrency=3, prefetch=0)
    assert found is not None
    assert found.max_concurrency == 3


@pytest.mark.parametrize(
    ("usual", "times"), [([], 1), ([0.8, 0.7], 4), ([0.8, None], 1), ([0.8, 60.0], 1), ([10.0], 4)]
)
def test_short_jobs_are_prefetched_for_every_server(usual: list[float | None], times: int) -> None:
    assert background_slots(usual, slots=4, short_seconds=10.0) == times


def test_processes_per_gpu_are_limited_by_the_concurrency() -> None:
    assert max_processes_per_gpu(None, gpus=1) is None
    assert [max_processes_per_gpu(at_once, gpus=2) for at_once in (1, 2, 3, 4)] == [1, 1, 2, 2]
