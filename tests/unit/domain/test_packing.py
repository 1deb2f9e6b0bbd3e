"""How many ComfyUI processes run on a GPU, with simulated GPUs."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyrelay.domain.packing.decide import decide
from comfyrelay.domain.packing.resources import copies_that_fit
from comfyrelay.domain.packing.state import (
    GpuObservation,
    Packing,
    PackingChange,
    PackingDecision,
    gain_of,
)
from comfyrelay.domain.queue.memory import GIB
from tests.support.gpu_world import World, rate, shared

# Measured on one H200 with Stable Diffusion 1.5: seconds per thread, and seconds in which running jobs wait for each
# other.
SMALL, LARGE, UNDER_MPS = (0.77, 0.366), (0.55, 0.88), (0.55, 0.64)

# Each kept process increases the rate by at least a tenth, with some tolerance for the measurement.
GAIN_SEEN = 1.09


def long_looks(world: World) -> float:
    """Return an observation interval with several observations per trial, but long enough for the trial to end."""
    return world.seconds(8) / 2


def test_second_process_is_tried_when_jobs_wait() -> None:
    world = World(seconds=shared(*SMALL))
    assert world.look().change is PackingChange.ADD
    assert "jobs wait" in world.decisions[-1].reason


@pytest.mark.parametrize("curve", [SMALL, LARGE, UNDER_MPS])
def test_packing_reaches_the_best_count_on_measured_gpu_curves(curve: tuple[float, float]) -> None:
    world = World(seconds=shared(*curve), waiting=10_000)
    count = world.run(600)
    best = max(rate(world.seconds, number) for number in range(1, 5))
    assert rate(world.seconds, count) >= 0.95 * best


def test_gpu_that_one_process_fills_keeps_one() -> None:
    world = World(seconds=shared(0.0, 1.0))
    assert world.run(200) == 1
    assert world.changes == [PackingChange.ADD, PackingChange.REMOVE]
    assert any("below the required 10%: back to 1." in decision.reason for decision in world.decisions)


def test_proven_count_is_restored_without_a_new_trial() -> None:
    world = World(seconds=shared(*SMALL), waiting=10_000)
    count = world.run(600)
    world.waiting = 0
    assert world.run(300) == 1
    world.waiting, world.decisions = 10_000, []
    assert world.run(20) == count
    assert [decision.number for decision in world.decisions if decision.number] == [count - 1]
    assert world.packing.trial is None


def test_out_of_memory_removes_one_process_for_good() -> None:
    world = World(seconds=shared(*SMALL), waiting=10_000)
    count = world.run(600)
    assert world.look(out_of_memory=frozenset({"w"})).change is PackingChange.REMOVE
    assert world.run(300) == count - 1


def test_processes_that_no_longer_fit_are_removed() -> None:
    world = World(seconds=shared(*SMALL), waiting=10_000)
    assert world.run(600) > 2
    world.copy_bytes, world.decisions = 30 * GIB, []
    assert world.run(20) == 2
    assert (
        "GPU memory is low"
        in next(decision for decision in world.decisions if decision.change is PackingChange.REMOVE).reason
    )
    world.copy_bytes = 70 * GIB
    assert world.run(300) == 1


def test_low_host_memory_removes_one_process_for_a_while() -> None:
    world = World(seconds=shared(*SMALL), waiting=10_000)
    count = world.run(600)
    little = {"machine_free_bytes": GIB // 4, "machine_copy_bytes": 2 * GIB}
    decision = world.look(**little)
    assert (decision.change, decision.reason) == (
        PackingChange.REMOVE,
        "The machine is low on memory: 0.2 GiB free.",
    )
    for _ in range(200):
        assert world.look(machine_free_bytes=60 * GIB, machine_copy_bytes=2 * GIB).change is PackingChange.NOTHING
    for _ in range(count):
        world.look(**little)
    assert len(world.processes) == 1


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ({"waiting": 0}, "no jobs are waiting"),
        ({"memory_bytes": None}, "the GPU's memory is unknown"),
        ({"copy_bytes": None}, "the memory use of its jobs is not known yet"),
        ({"free_bytes": GIB}, "another one takes 4.0 GiB, but 1.0 GiB are free"),
        ({"memory_bytes": 8 * GIB}, "the GPU has 8.0 GiB, and each process takes 4.0 GiB"),
        (
            {"machine_free_bytes": 4 * GIB, "machine_copy_bytes": 4 * GIB},
            "another one takes 4.0 GiB of machine memory, with 4.0 GiB free and 1.0 GiB in reserve",
        ),
        ({"spare_cores": 0.9}, "no CPU core is free"),
        ({"load": 0.95}, "the GPU is busy 95% of the time"),
    ],
)
def test_process_is_not_added_without_work_or_resources(seen: dict[str, Any], reason: str) -> None:
    decision = World(seconds=shared(*SMALL)).look(**seen)
    assert decision == PackingDecision(change=PackingChange.NOTHING, active=1, reason=f"1 process: {reason}.")


def test_failed_start_is_retried_after_a_while() -> None:
    world = World(seconds=shared(*SMALL), failure="Its port is taken.")
    world.look()
    assert world.look().reason == "Another ComfyUI did not start: Its port is taken."
    assert world.look().reason == "1 process: another one did not start and is retried after 300 s."
    assert world.run(100) == 1
    assert world.changes == [PackingChange.ADD]
    assert world.run(300) > 1


def test_large_workflow_reduces_the_count_only_while_it_runs() -> None:
    world = World(seconds=shared(*SMALL), mix=[("small", 1.0)], waiting=100_000)
    count = world.run(600)
    world.mix, world.copy_bytes = [("small", 1.0), ("big", 1.0)], 40 * GIB
    assert world.run(20) == 1
    world.mix, world.copy_bytes, world.decisions = [("small", 1.0)], 4 * GIB, []
    assert world.look().change is PackingChange.ADD
    assert world.run(60) == count


def test_process_removed_for_memory_is_not_restarted_at_once() -> None:
    """Another program starts and stops."""
    world = World(seconds=shared(*SMALL), waiting=100_000)
    count = world.run(600)
    assert world.look(memory_bytes=(count - 1) * 5 * GIB).change is PackingChange.REMOVE
    assert world.run(200) == count - 1
    assert world.run(200) == count


def test_out_of_memory_limits_only_its_workflow() -> None:
    world = World(seconds=shared(*SMALL), waiting=100_000)
    count = world.run(600)
    world.mix = [("w", 1.0), ("x", 1.0)]
    world.look(out_of_memory=frozenset("x"))
    assert world.run(30) == count - 1
    world.mix = [("w", 1.0)]
    assert world.run(30) == count


def test_trial_judges_only_workflows_that_ran() -> None:
    world = World(seconds=shared(0.0, 1.0), waiting=100_000)
    for _ in range(200):
        world.look(workflows=frozenset("wx"))
    assert world.packing.max_useful == {"w": 1}
    assert world.changes == [PackingChange.ADD, PackingChange.REMOVE]
    world.mix, world.seconds = [("x", 1.0)], shared(*SMALL)
    world.run(400)
    assert len(world.processes) > 1


def test_restarting_process_is_not_replaced_and_its_trial_continues() -> None:
    world = World(seconds=shared(*SMALL), memory_bytes=9 * GIB, waiting=100_000)
    world.run(4)
    assert world.packing.trial is not None
    world.lose("p2")
    assert world.look().reason == "1 process: one is restarting."
    world.run(50)
    assert world.packing.trial is not None
    world.find()
    world.run(30)
    assert "2 processes complete 51% more jobs than 1: kept." in world.reasons
    count = world.run(600)
    for lost in ("p1", f"p{count}"):
        world.decisions = []
        world.lose(lost)
        world.run(50)
        world.find()
        assert world.run(50) == count
        assert world.changes == []


def test_surplus_processes_are_removed() -> None:
    world = World(seconds=shared(0.0, 1.0), waiting=100_000)
    assert world.run(200) == 1
    world.processes["p9"] = None
    assert world.look().change is PackingChange.REMOVE
    assert world.run(100) == 1


def test_unknown_workflow_is_measured_with_the_current_count() -> None:
    world = World(seconds=shared(*SMALL), waiting=100_000)
    assert world.run(600) > 2
    world.mix, world.seconds, world.decisions = [("full", 1.0)], shared(0.0, 1.0), []
    assert world.run(100) == 1
    assert PackingChange.ADD not in world.changes


def test_small_gain_is_measured_for_longer() -> None:
    def takes(gain: float) -> float:
        world = World(
            seconds=lambda running: running if running == 1 else running / gain, memory_bytes=9 * GIB, waiting=10_000
        )
        world.run_until("kept.")
        return world.now

    assert takes(1.11) > 1.5 * takes(1.2) > 1.5 * takes(1.5)


def test_pinned_process_stays_when_there_is_no_work() -> None:
    world = World(seconds=shared(*SMALL), waiting=10_000)
    assert world.run(600) > 2
    world.waiting = 0
    for _ in range(300):
        world.look(pinned=2)
    assert len(world.processes) == 2
    assert world.run(300) == 1


def test_pinned_processes_stay_when_their_trial_fails() -> None:
    # Two processes fit, and are no faster than one.
    world = World(seconds=float, memory_bytes=9 * GIB, waiting=10_000, start_looks=30)
    for _ in range(400):
        world.look(pinned=len(world.processes))
    assert len(world.processes) == world.active == 2
    assert any("back to 1" in decision.reason for decision in world.decisions)


def test_turn_without_enough_work_does_not_count() -> None:
    world = World(seconds=shared(*SMALL), memory_bytes=9 * GIB, waiting=4)
    world.run(60)
    assert len(world.processes) == 2
    assert world.packing.trial is not None
    world.waiting = 1000
    world.run(30)
    assert any("2 processes complete" in decision.reason and "kept" in decision.reason for decision in world.decisions)


def test_lost_process_ends_its_trial_and_is_retried_later() -> None:
    world = World(seconds=shared(*SMALL), memory_bytes=9 * GIB)
    world.run(3)
    del world.processes["p2"]
    assert world.look().reason == "1 process: another one did not start and is retried after 300 s."
    assert world.packing.trial is None
    world.run(100)
    assert world.changes == [PackingChange.ADD]
    world.run(250)
    assert len(world.processes) > 1


def test_only_workflows_that_ran_with_and_without_are_compared() -> None:
    assert gain_of([("a", 1.0)], [("b", 1.0)], size=2, base=1) is None
    more, fewer = [("a", 2.0), ("b", 100.0)], [("a", 1.5), ("c", 1.0)]
    assert gain_of(more, fewer, size=2, base=1) == pytest.approx(0.5)


curves = st.one_of(
    # From a thread that leaves the GPU idle to a GPU that is busy with one.
    st.tuples(st.floats(0.0, 1.0), st.floats(0.2, 3.0)).map(lambda pair: shared(*pair)),
    st.lists(st.floats(0.3, 1.6), min_size=9, max_size=9).map(
        lambda gains: lambda running: running / max(sum(gains[:running]), 0.1)
    ),
)
worlds = st.builds(
    World,
    seconds=curves,
    memory_bytes=st.integers(1, 100).map(lambda size: size * GIB),
    copy_bytes=st.integers(1, 12).map(lambda size: size * GIB),
    cores=st.floats(1, 12),
    waiting=st.just(1_000_000),
)
sights = st.builds(
    GpuObservation,
    now=st.just(0.0),
    processes=st.integers(1, 4).map(lambda count: tuple(f"p{number}" for number in range(count))),
    waiting=st.integers(0, 3),
    workflows=st.frozensets(st.sampled_from("ab")),
    memory_bytes=st.integers(1, 100).map(lambda size: size * GIB) | st.none(),
    free_bytes=st.integers(0, 100).map(lambda size: size * GIB) | st.none(),
    copy_bytes=st.integers(1, 60).map(lambda size: size * GIB) | st.none(),
    machine_free_bytes=st.integers(0, 20).map(lambda size: size * GIB) | st.none(),
    machine_copy_bytes=st.integers(1, 9).map(lambda size: size * GIB) | st.none(),
    spare_cores=st.floats(0, 4) | st.none(),
    load=st.floats(0, 1) | st.none(),
)
# Observations in which more processes are needed, as far as memory allows.
eager = st.builds(
    GpuObservation,
    now=st.just(0.0),
    processes=st.integers(1, 4).map(lambda count: tuple(f"p{number}" for number in range(count))),
    waiting=st.just(9),
    workflows=st.just(frozenset("a")),
    memory_bytes=st.integers(1, 100).map(lambda size: size * GIB),
    free_bytes=st.integers(0, 20).map(lambda size: size * GIB),
    copy_bytes=st.integers(1, 20).map(lambda size: size * GIB),
)
packings = st.builds(
    Packing,
    max_useful=st.dictionaries(st.sampled_from("ab"), st.integers(1, 4)),
    proven=st.dictionaries(st.sampled_from("ab"), st.integers(1, 5)),
)


@given(seen=sights | eager, packing=packings)
def test_known_memory_is_never_exceeded(seen: GpuObservation, packing: Packing) -> None:
    _, decision = decide(packing, seen)
    count = len(seen.processes) + decision.number * (-1 if decision.change is PackingChange.REMOVE else 1)
    if decision.change is PackingChange.ADD:
        assert seen.memory_bytes is not None
        assert seen.copy_bytes is not None
        assert seen.free_bytes is not None
        assert count * seen.copy_bytes <= seen.memory_bytes
        assert 0 < decision.number * seen.copy_bytes <= seen.free_bytes
        if seen.machine_free_bytes is not None and seen.machine_copy_bytes is not None:
            assert decision.number * seen.machine_copy_bytes <= seen.machine_free_bytes
        if seen.spare_cores is not None:
            assert decision.number <= seen.spare_cores
    elif seen.memory_bytes is not None and seen.copy_bytes is not None:
        # Processes that do not fit are removed one by one.
        assert count <= max(copies_that_fit(seen.memory_bytes, seen.copy_bytes), len(seen.processes) - 1)


@settings(max_examples=30)
@given(world=worlds)
def test_count_settles_while_the_work_stays_the_same(world: World) -> None:
    world.run(300, by=long_looks(world))
    settled = len(world.changes)
    world.run(100, by=long_looks(world))
    assert len(world.changes) == settled
    # A removal is final.
    assert "".join("+" if change is PackingChange.ADD else "-" for change in world.changes).count("-+") == 0
    assert len(world.processes) * world.copy_bytes <= world.memory_bytes or len(world.processes) == 1


@settings(max_examples=30)
@given(world=worlds)
def test_kept_process_gains_at_least_a_tenth(world: World) -> None:
    world.run(300, by=long_looks(world))
    count = len(world.processes)
    if world.packing.trial is None and count > 1:
        assert max(rate(world.seconds, count) / rate(world.seconds, base) for base in range(1, count)) >= GAIN_SEEN


def test_process_finishing_its_job_does_not_slow_the_turn_of_the_others() -> None:
    """3 processes complete 8 % more than 1. Observations are so rare that a job may end between two of them."""
    world = World(seconds=shared(0.3125, 2.5), memory_bytes=4 * GIB, copy_bytes=GIB, cores=3, waiting=1_000_000)
    assert world.run(300, by=long_looks(world)) == 1
    assert "3 processes complete 8% more jobs than 1, below the required 10%: back to 1." in world.reasons


@settings(max_examples=30)
@given(world=worlds, looks=st.integers(0, 200))
def test_last_process_remains_without_work(world: World, looks: int) -> None:
    world.run(looks)
    world.waiting = 0
    world.run(20, by=world.limits.idle_seconds)
    assert len(world.processes) == 1


@given(seen=sights, packing=packings, more=st.integers(0, 50))
def test_more_resources_never_reduce_the_count(seen: GpuObservation, packing: Packing, more: int) -> None:
    better = replace(
        seen,
        waiting=seen.waiting + more,
        memory_bytes=seen.memory_bytes and seen.memory_bytes + more * GIB,
        free_bytes=None if seen.free_bytes is None else seen.free_bytes + more * GIB,
        copy_bytes=seen.copy_bytes and max(seen.copy_bytes - more * GIB, GIB),
        machine_free_bytes=None if seen.machine_free_bytes is None else seen.machine_free_bytes + more * GIB,
        spare_cores=None if seen.spare_cores is None else seen.spare_cores + more,
        load=None if seen.load is None else seen.load / (1 + more),
    )
    rank = [PackingChange.REMOVE, PackingChange.NOTHING, PackingChange.ADD]
    assert rank.index(decide(packing, better)[1].change) >= rank.index(decide(packing, seen)[1].change)


@settings(max_examples=30)
@given(world=worlds, looks=st.integers(1, 60))
def test_every_decision_has_a_reason(world: World, looks: int) -> None:
    world.run(looks)
    assert all(decision.reason.endswith(".") and len(decision.reason) > 10 for decision in world.decisions)


# Events at an observation: a process crashes, all are back, the next start fails, a process is abandoned.
happenings = st.lists(st.sampled_from(["", "", "", "lose", "find", "fail", "gone"]), max_size=120)
mixes = st.lists(st.floats(0.5, 3.0), min_size=1, max_size=3).map(
    lambda lengths: [(name, length) for name, length in zip("abc", lengths, strict=False)]
)


@settings(max_examples=20, deadline=None)
@given(world=worlds, mix=mixes, happenings=happenings, start_looks=st.integers(0, 3), pick=st.randoms())
def test_count_fits_settles_and_returns_to_one_after_any_events(
    world: World, mix: list[tuple[str, float]], happenings: list[str], start_looks: int, pick: Random
) -> None:
    """The simulated world checks the memory each time a process is added."""
    world.mix, world.start_looks = mix, start_looks
    for happening in happenings:
        if happening == "lose" and len(world.processes) > 1:
            world.lose(pick.choice(list(world.processes)))
        elif happening == "find":
            world.find()
        elif happening == "fail":
            world.failure = "It broke."
        elif happening == "gone" and world.away:
            world.away.pop()
        world.look(long_looks(world))
    world.find()
    world.failure = None
    # Failed starts are retried.
    world.look(world.limits.retry_seconds)
    world.run(400, by=long_looks(world))
    settled = len(world.changes)
    world.look(world.limits.retry_seconds)
    world.run(60, by=long_looks(world))
    assert len(world.changes) == settled
    assert len(world.processes) * world.copy_bytes <= world.memory_bytes or len(world.processes) == 1
    world.waiting = 0
    world.run(20, by=world.limits.idle_seconds)
    assert len(world.processes) == 1
