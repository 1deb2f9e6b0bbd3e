from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.comfyui.pool.buckets import Lanes
from comfyrelay.comfyui.pool.ticket import Lane, Ticket
from tests.pool.harness import anywhere, ticket


def filled(*tickets: Ticket) -> Lanes:
    lanes = Lanes()
    for each in tickets:
        lanes.add(each)
    return lanes


def drained(lanes: Lanes) -> list[str]:
    taken = []
    while (each := lanes.take(anywhere)) is not None:
        taken.append(each.id)
    return taken


def test_the_highest_priority_goes_first_then_the_first_come() -> None:
    lanes = filled(ticket(1), ticket(2, priority=5, workflow="v"), ticket(3, priority=5), ticket(4, priority=-1))
    assert drained(lanes) == ["job-2", "job-3", "job-1", "job-4"]


def test_a_job_that_may_not_run_holds_up_nobody() -> None:
    lanes = filled(ticket(1, workflow="blocked", priority=9), ticket(2, workflow="free"))
    taken = lanes.take(lambda lane: lane.workflow_hash == "free")
    assert taken is not None
    assert taken.id == "job-2"
    assert lanes.take(lambda lane: lane.workflow_hash == "free") is None
    assert len(lanes) == 1


def test_a_job_that_comes_back_has_its_old_place() -> None:
    lanes = filled(ticket(1), ticket(2), ticket(3))
    first = lanes.take(anywhere)
    assert first is not None
    lanes.add(first)
    assert drained(lanes) == ["job-1", "job-2", "job-3"]


def test_lanes_tell_servers_apart() -> None:
    there = Lane("w", exclude_clients=frozenset({"a"}))
    lanes = filled(ticket(1, lane=there), ticket(2))
    taken = lanes.take(lambda lane: lane != there)
    assert taken is not None
    assert taken.id == "job-2"


def test_removing_from_the_front_the_middle_and_the_end() -> None:
    lanes = filled(*(ticket(number) for number in range(6)))
    assert all(lanes.remove(f"job-{number}") for number in (0, 2, 3, 5))
    assert not lanes.remove("job-2")
    assert len(lanes) == 2
    assert drained(lanes) == ["job-1", "job-4"]
    assert lanes.take(anywhere) is None


def test_a_decision_looks_at_lanes_and_not_at_jobs() -> None:
    lanes = filled(*(ticket(number, workflow=str(number % 3)) for number in range(10_000)))
    asked: list[Lane] = []

    def refuse(lane: Lane) -> bool:
        asked.append(lane)
        return False

    assert lanes.take(refuse) is None
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
def test_they_do_what_a_sorted_list_does(actions: list[tuple[str, str | frozenset[str], int]]) -> None:
    lanes = Lanes()
    model: list[Ticket] = []
    for number, (action, what, value) in enumerate(actions):
        if action == "add":
            each = ticket(number, workflow=str(what), priority=value)
            lanes.add(each)
            model.append(each)
        elif action == "remove":
            there = [each for each in model if each.id == f"job-{value}"]
            assert lanes.remove(f"job-{value}") is bool(there)
            model = [each for each in model if each not in there]
        else:
            fitting = [each for each in model if each.lane.workflow_hash in what]
            expected = min(fitting, key=lambda each: (-each.priority, each.sequence), default=None)
            assert lanes.take(lambda lane, free=what: lane.workflow_hash in free) is expected  # type: ignore[misc]
            if expected is not None:
                model.remove(expected)
        assert len(lanes) == len(model)
