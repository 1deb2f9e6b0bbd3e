from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.comfyui.pool.queues.queue import Buckets
from comfyrelay.comfyui.pool.ticket import Bucket, Ticket
from tests.support.pool import anywhere, ticket


def filled(*tickets: Ticket) -> Buckets:
    buckets = Buckets()
    for job in tickets:
        buckets.add(job)
    return buckets


def take_all(buckets: Buckets) -> list[str]:
    taken = []
    while (job := buckets.take(anywhere)) is not None:
        taken.append(job.id)
    return taken


def test_order_is_by_priority_then_age() -> None:
    buckets = filled(ticket(1), ticket(2, priority=5, workflow="v"), ticket(3, priority=5), ticket(4, priority=-1))
    assert take_all(buckets) == ["job-2", "job-3", "job-1", "job-4"]


def test_blocked_job_does_not_delay_others() -> None:
    buckets = filled(ticket(1, workflow="blocked", priority=9), ticket(2, workflow="free"))
    taken = buckets.take(lambda bucket: bucket.workflow_hash == "free")
    assert taken is not None
    assert taken.id == "job-2"
    assert buckets.take(lambda bucket: bucket.workflow_hash == "free") is None
    assert len(buckets) == 1


def test_requeued_job_keeps_its_place() -> None:
    buckets = filled(ticket(1), ticket(2), ticket(3))
    first = buckets.take(anywhere)
    assert first is not None
    buckets.add(first)
    assert take_all(buckets) == ["job-1", "job-2", "job-3"]


def test_bucket_includes_the_excluded_servers() -> None:
    bucket_without_a = Bucket("w", exclude_clients=frozenset({"a"}))
    buckets = filled(ticket(1, bucket=bucket_without_a), ticket(2))
    taken = buckets.take(lambda bucket: bucket != bucket_without_a)
    assert taken is not None
    assert taken.id == "job-2"


def test_jobs_are_removed_from_any_position() -> None:
    buckets = filled(*(ticket(number) for number in range(6)))
    assert all(buckets.remove(f"job-{number}") for number in (0, 2, 3, 5))
    assert not buckets.remove("job-2")
    assert len(buckets) == 2
    assert take_all(buckets) == ["job-1", "job-4"]
    assert buckets.take(anywhere) is None


def test_take_checks_buckets_not_jobs() -> None:
    buckets = filled(*(ticket(number, workflow=str(number % 3)) for number in range(10_000)))
    checked: list[Bucket] = []

    def refuse(bucket: Bucket) -> bool:
        checked.append(bucket)
        return False

    assert buckets.take(refuse) is None
    assert len(checked) == 3


workflows = st.sampled_from("abc")
actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), workflows, st.integers(-2, 2)),
        st.tuples(st.just("take"), st.frozensets(workflows), st.just(0)),
        st.tuples(st.just("remove"), st.just(""), st.integers(0, 30)),
    ),
    max_size=60,
)


@given(actions=actions)
def test_buckets_behave_like_a_sorted_list(actions: list[tuple[str, str | frozenset[str], int]]) -> None:
    buckets = Buckets()
    model: list[Ticket] = []
    for number, (action, what, value) in enumerate(actions):
        if action == "add":
            added = ticket(number, workflow=str(what), priority=value)
            buckets.add(added)
            model.append(added)
        elif action == "remove":
            removed = [job for job in model if job.id == f"job-{value}"]
            assert buckets.remove(f"job-{value}") is bool(removed)
            model = [job for job in model if job not in removed]
        else:
            fitting = [job for job in model if job.bucket.workflow_hash in what]
            expected = min(fitting, key=lambda job: (-job.priority, job.sequence), default=None)
            assert buckets.take(lambda bucket, free=what: bucket.workflow_hash in free) is expected  # type: ignore[misc]
            if expected is not None:
                model.remove(expected)
        assert len(buckets) == len(model)
