"""A job waits for a limited time while no server can run it."""

import pytest

from comfyrelay.comfyui.pool import Bucket
from comfyrelay.comfyui.pool.unserved_jobs import UnservedJobs
from tests.support.pool import ticket

JOB = ticket(1, give_up_after_seconds=10.0)
PICKY = ticket(2, give_up_after_seconds=10.0, bucket=Bucket("w", exclude_clients=frozenset({"a"})))


@pytest.fixture
def unserved() -> UnservedJobs:
    return UnservedJobs()


def test_job_without_servers_is_overdue_at_its_deadline(unserved: UnservedJobs) -> None:
    unserved.add(JOB, now=100.0)
    for now in (100.0, 105.0, 109.999):
        assert unserved.overdue([], now=now) == []
        assert unserved.next_deadline == 110.0
    assert unserved.overdue([], now=110.0) == [JOB.id]
    unserved.discard(JOB)
    assert unserved.overdue([], now=111.0) == []
    assert unserved.next_deadline is None


def test_online_server_resets_the_deadline(unserved: UnservedJobs) -> None:
    unserved.add(JOB, now=100.0)
    unserved.overdue([], now=100.0)
    assert unserved.overdue(["a"], now=109.0) == []
    assert unserved.next_deadline is None
    assert unserved.overdue(["a"], now=500.0) == []
    assert unserved.overdue([], now=501.0) == []
    assert unserved.next_deadline == 511.0
    assert unserved.overdue([], now=511.0) == [JOB.id]


def test_excluded_server_does_not_serve_a_job(unserved: UnservedJobs) -> None:
    unserved.add(JOB, now=100.0)
    unserved.add(PICKY, now=100.0)
    assert unserved.overdue(["a"], now=100.0) == []
    assert unserved.overdue(["a"], now=110.0) == [PICKY.id]
    assert unserved.overdue(["a", "b"], now=111.0) == []


def test_each_job_has_its_own_deadline(unserved: UnservedJobs) -> None:
    unserved.add(JOB, now=100.0)
    unserved.overdue([], now=100.0)
    later = ticket(3, give_up_after_seconds=10.0)
    unserved.add(later, now=108.0)
    assert unserved.overdue([], now=110.0) == [JOB.id]
    unserved.discard(JOB)
    assert unserved.next_deadline == 118.0
    assert unserved.overdue([], now=118.0) == [later.id]


def test_job_without_a_limit_waits_forever(unserved: UnservedJobs) -> None:
    unserved.add(ticket(4), now=0.0)
    assert unserved.overdue([], now=1e9) == []
    assert unserved.next_deadline is None
