from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.comfyui.pool.queues.queue import Buckets
from comfyrelay.comfyui.pool.ticket import Bucket, Ticket
from tests.support.pool import anywhere, ticket


def filled(*tickets: Ticket) -> Buckets:
    buckets = Buckets()
    for each in tickets:
        buckets.add(each)
    return buckets


def drained(buckets: Buckets) -> list[str]:
    taken = []
    while (each := buckets.take(anywhere)) is not None:
        taken.append(each.id)
    return taken


def test_highest_priority_goes_first_then_the_oldest() -> None:
    buckets = filled(ticket(1), ticket(2, priority=5, workflow="v"), ticket(3, priority=5), ticket(4, priority=-1))
    assert drained(buckets) == ["job-2", "job-3", "job-1", "job-4"]


def test_blocked_job_does_not_delay_others() -> None:
    buckets = filled(ticket(1, workflow="blocked", priority=9), ticket(2, workflow="free"))
    taken = buckets.take(lambda bucket: bucket.workflow_hash == "free")
    assert taken is not None
    assert taken.id == "job-2"
    assert buckets.take(lambda bucket: bucket.workflow_hash == "free") is None
    assert len(buckets) == 1


def test_requeued_job_has_its_old_place() -> None:
    buckets = filled(ticket(1), ticket(2), ticket(3))
    first = buckets.take(anywhere)
    assert first is not None
    buckets.add(first)
    assert drained(buckets) == ["job-1", "job-2", "job-3"]


def test_buckets_tell_servers_apart() -> None:
    there = Bucket("w", exclude_clients=frozenset({"a"}))
    buckets = filled(ticket(1, bucket=there), ticket(2))
    taken = buckets.take(lambda bucket: bucket != there)
    assert taken is not None
    assert taken.id == "job-2"


def test_removing_from_the_front_the_middle_and_the_end() -> None:
    buckets = filled(*(ticket(number) for number in range(6)))
    assert all(buckets.remove(f"job-{number}") for number in (0, 2, 3, 5))
    assert not buckets.remove("job-2")
    assert len(buckets) == 2
    assert drained(buckets) == ["job-1", "job-4"]
    assert buckets.take(anywhere) is None


def test_decision_looks_at_buckets_and_not_at_jobs() -> None:
    buckets = filled(*(ticket(number, workflow=str(number % 3)) for number in range(10_000)))
    asked: list[Bucket] = []

    def refuse(bucket: Bucket) -> bool:
        asked.append(bucket)
        return False

    assert buckets.take(refuse) is None
    assert len(asked) == 3


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
            each = ticket(number, workflow=str(what), priority=value)
            buckets.add(each)
            model.append(each)
        elif action == "remove":
            there = [each for each in model if each.id == f"job-{value}"]
            assert buckets.remove(f"job-{value}") is bool(there)
            model = [each for each in model if each not in there]
        else:
            fitting = [each for each in model if each.bucket.workflow_hash in what]
            expected = min(fitting, key=lambda each: (-each.priority, each.sequence), default=None)
            assert buckets.take(lambda bucket, free=what: bucket.workflow_hash in free) is expected  # type: ignore[misc]
            if expected is not None:
                model.remove(expected)
        assert len(buckets) == len(model)
