"""How long a job waits while no server can run it."""

import pytest

from comfyrelay.comfyui.pool import Bucket
from comfyrelay.comfyui.pool.unserved_jobs import UnservedJobs
from tests.support.pool import ticket

JOB = ticket(1, give_up_after_seconds=10.0)
PICKY = ticket(2, give_up_after_seconds=10.0, bucket=Bucket("w", exclude_clients=frozenset({"a"})))


@pytest.fixture
def unserved() -> UnservedJobs:
    return UnservedJobs()


def test_timeline_of_a_job_without_servers(unserved: UnservedJobs) -> None:
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


def test_excluded_server_is_not_there_for_a_job(unserved: UnservedJobs) -> None:
    unserved.add(JOB, now=100.0)
    unserved.add(PICKY, now=100.0)
    assert unserved.overdue(["a"], now=100.0) == []
    assert unserved.overdue(["a"], now=110.0) == [PICKY.id]
    assert unserved.overdue(["a", "b"], now=111.0) == []


def test_job_that_comes_later_waits_as_long_as_any_other(unserved: UnservedJobs) -> None:
    unserved.add(JOB, now=100.0)
    unserved.overdue([], now=100.0)
    later = ticket(3, give_up_after_seconds=10.0)
    unserved.add(later, now=108.0)
    assert unserved.overdue([], now=110.0) == [JOB.id]
    unserved.discard(JOB)
    assert unserved.next_deadline == 118.0
    assert unserved.overdue([], now=118.0) == [later.id]


def test_job_that_does_not_say_how_long_waits_for_ever(unserved: UnservedJobs) -> None:
    unserved.add(ticket(4), now=0.0)
    assert unserved.overdue([], now=1e9) == []
    assert unserved.next_deadline is None
