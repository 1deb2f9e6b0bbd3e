"""How fast `auto` reaches the best number of processes on simulated GPUs, and how much work the search costs.

As on a real H200, ComfyUI takes 15 s to start, and 6 s to load the models of Stable Diffusion 1.5.
"""

from collections.abc import Callable, Mapping
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from comfyrelay.domain.packing.search import next_count, unsure_count
from comfyrelay.domain.packing.state import (
    Measurement,
    Packing,
    PackingChange,
    PackingLimits,
    PackingResult,
)
from comfyrelay.domain.queue.memory import GIB
from tests.support.gpu_world import World, rate, shared

START_LOOKS = 15
LOAD_SECONDS = 6.0
CLIMB_SECONDS = 60
# Images a minute, measured on an H200 under MPS at 512 × 512 and 1024 × 1024; numbers in between are interpolated.
H200 = {1: 59, 2: 116, 3: 180, 4: 262, 5: 265, 6: 274, 7: 280, 8: 270}
H200_LARGE = {1: 51, 2: 65, 3: 75, 4: 77, 5: 77, 6: 77, 7: 77, 8: 77}
LINEAR = {count: 60 * count for count in range(1, 9)}
FLAT = dict.fromkeys(range(1, 9), 60)
PEAK_AT_TWO = {1: 60, 2: 100, 3: 85, 4: 75, 5: 70, 6: 66, 7: 63, 8: 61}
PEAK_AT_THREE = {1: 60, 2: 90, 3: 108, 4: 84, 5: 80, 6: 75, 7: 70, 8: 65}
PEAK_AT_SIX = {1: 60, 2: 115, 3: 165, 4: 210, 5: 245, 6: 270, 7: 265, 8: 250}
# Two processes already slow each other down below the rate of one.
HARMFUL = {1: 60, 2: 40, 3: 30, 4: 24, 5: 20, 6: 18, 7: 16, 8: 15}


def curve(per_minute: Mapping[int, float]) -> Callable[[int], float]:
    return lambda running: 60 * running / per_minute[min(max(running, 1), 8)]


def cold_gpu(seconds: Callable[[int], float], *, seed: int = 1, noise: float = 0.05, memory_gib: int = 140) -> World:
    """One ComfyUI that has just started, with a full queue."""
    return World(
        seconds=seconds,
        memory_bytes=memory_gib * GIB,
        start_looks=START_LOOKS,
        load_seconds=LOAD_SECONDS,
        noise=noise,
        random=Random(seed),
        is_ahead=True,
        waiting=1_000_000,
    )


def best_rate(world: World) -> float:
    """Return the best rate per minute of all numbers of processes that fit."""
    fitting = int(world.memory_bytes * 0.95 // world.copy_bytes)
    return 60 * max(rate(world.seconds, count) for count in range(1, min(fitting, 8) + 1))


def per_minute(world: World, since: float, until: float) -> float:
    return 60 * sum(since < at <= until for at in world.completed_at) / (until - since)


def seconds_to(world: World, goal: float, *, window: float = 10.0) -> float:
    """Return the start of the first window that reaches this rate."""
    return next(
        (
            begin
            for begin in map(float, range(int(world.now - window)))
            if per_minute(world, begin, begin + window) >= goal
        ),
        float("inf"),
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rates", [H200, H200_LARGE, LINEAR, FLAT, PEAK_AT_TWO, PEAK_AT_THREE, PEAK_AT_SIX, HARMFUL])
def test_nine_tenths_of_the_best_rate_are_reached_within_a_minute(rates: dict[int, float], seed: int) -> None:
    world = cold_gpu(curve(rates), seed=seed)
    world.run(CLIMB_SECONDS + 20)
    assert seconds_to(world, 0.9 * best_rate(world)) <= CLIMB_SECONDS
    world.run(300)
    assert per_minute(world, world.now - 100, world.now) >= 0.9 * best_rate(world)
    assert world.packing.trial is None


@pytest.mark.parametrize("memory_gib", [5, 9, 13, 18, 24])
def test_memory_limits_the_climb_and_does_not_delay_it(memory_gib: int) -> None:
    world = cold_gpu(curve(LINEAR), memory_gib=memory_gib)
    world.run(CLIMB_SECONDS + 20)
    assert seconds_to(world, 0.9 * best_rate(world)) <= CLIMB_SECONDS
    assert len(world.processes) == int(memory_gib * 0.95 // 4)


@pytest.mark.parametrize("rates", [H200, H200_LARGE, LINEAR, FLAT, PEAK_AT_TWO, PEAK_AT_THREE, PEAK_AT_SIX])
def test_rate_never_falls_below_that_of_one_process(rates: dict[int, float]) -> None:
    world = cold_gpu(curve(rates), noise=0.0)
    world.run(300)
    work = [done for at, done in world.work if at > LOAD_SECONDS]
    assert min(later - done for done, later in zip(work, work[5:], strict=False)) >= 0.99 * 5 * rates[1] / 60


@given(gains=st.lists(st.floats(-0.5, 1.0), min_size=7, max_size=7), seed=st.integers(0, 1000))
@example(gains=[-0.5] * 7, seed=0)
@settings(max_examples=60, deadline=None)
def test_work_lost_by_trying_is_bounded_on_any_curve(gains: list[float], seed: int) -> None:
    """However slow additional processes are, only a few jobs are lost, and only once."""
    rates = {1: 60.0}
    for count, gain in enumerate(gains, start=2):
        rates[count] = max(rates[count - 1] + 60 * gain, 15.0)
    world = cold_gpu(curve(rates), seed=seed)
    world.run(600)
    lost = max(at - LOAD_SECONDS - done for at, done in world.work)
    # Four running jobs and four queued ones, at a quarter of the rate.
    assert lost <= 45
    assert per_minute(world, 300, 600) >= 0.9 * rates[1]


def test_worse_number_is_left_before_its_turn_is_over() -> None:
    """With four processes a job takes 40 s, so that a whole turn would take 80 s."""
    world = cold_gpu(curve({**HARMFUL, 4: 6}), noise=0.0)
    world.run_until("Trying 4 processes.")
    world.run_until("Trying 2 processes.", looks=60)
    assert world.run(200) == 1


def test_next_processes_start_while_others_are_measured() -> None:
    world = cold_gpu(shared(0.77, 0.366))
    world.run_until("trying 8.")
    assert world.decisions[-1].number == 4
    # Two processes could still be better than four. They are measured while four more start.
    assert world.look().active == 2
    assert len(world.starting) == 4


def test_turn_in_which_a_process_loads_its_models_does_not_count() -> None:
    """While the others load their models, the first process is as fast as it is alone."""
    world = cold_gpu(curve(FLAT), noise=0.0)
    world.run_until("Trying 2 processes.")
    assert world.packing.trial is not None
    assert [span for _, span in world.packing.trial.measured[4].spans] == pytest.approx([4.0] * 4)


def test_doubling_ends_with_the_first_number_that_gains_too_little() -> None:
    limits = PackingLimits()

    def measured(rates: Mapping[int, float]) -> dict[int, Measurement]:
        return {count: Measurement(spans=(("w", count / value),), turns=2) for count, value in rates.items()}

    assert next_count(measured({1: 1, 4: 4}), limits, floor=1, largest=8) == 8
    assert next_count(measured({1: 1, 4: 1}), limits, floor=1, largest=4) == 2
    assert next_count(measured({1: 1, 2: 1.5, 4: 1}), limits, floor=1, largest=4) == 3
    assert next_count(measured({1: 1, 2: 1.5, 3: 1.2, 4: 1}), limits, floor=1, largest=4) is None
    # A number that was remembered or set by others is compared with its half, but with no number below the floor.
    assert next_count(measured({4: 1}), limits, floor=1, largest=4) == 2
    assert next_count(measured({4: 1}), limits, floor=3, largest=4) == 3
    assert unsure_count(measured({1: 1, 2: 1.11}), limits, floor=1) == 1
    # A pinned process is not paused in order to measure fewer processes again.
    assert unsure_count(measured({1: 1, 2: 1.11}), limits, floor=2) is None
    assert unsure_count(measured({1: 1, 2: 1.5}), limits, floor=1) is None


def remembered(processes: int, *, seconds: float, is_limit: bool = True) -> Packing:
    return Packing(remembered={"w": PackingResult(processes=processes, seconds=seconds, is_limit=is_limit)})


def test_remembered_number_starts_at_once_and_is_confirmed() -> None:
    world = cold_gpu(curve(H200))
    world.packing = remembered(4, seconds=4 * 60 / 262)
    # The memory of the workflow is remembered, too.
    first = world.look(copy_bytes=world.copy_bytes)
    assert (first.change, first.number) == (PackingChange.ADD, 3)
    world.run_until("4 processes: as fast as before the restart.")
    assert world.now <= START_LOOKS + LOAD_SECONDS + 10
    world.run(100)
    assert world.changes == [PackingChange.ADD]
    assert world.packing.proven == world.packing.max_useful == {"w": 4}
    assert world.packing.remembered == {}


def test_remembered_number_that_has_become_slower_is_measured_again() -> None:
    world = cold_gpu(curve(PEAK_AT_TWO))
    world.packing = remembered(4, seconds=4 * 60 / 262)
    world.run_until("4 processes: slower than before the restart.")
    assert world.run(200) == 2
    result = world.packing.results["w"]
    assert (result.processes, result.is_limit) == (2, True)
    assert result.seconds == pytest.approx(1.2, rel=0.1)


def test_remembered_single_process_is_confirmed_without_a_trial() -> None:
    world = cold_gpu(curve(FLAT))
    world.packing = remembered(1, seconds=1.0)
    world.run(100)
    assert world.changes == []
    assert world.look().reason == "1 process: more did not pay off for the current workflows."


def test_remembered_number_without_a_limit_may_still_grow() -> None:
    world = cold_gpu(curve(LINEAR))
    world.packing = remembered(4, seconds=1.0, is_limit=False)
    assert world.run(150) == 8


def test_remembered_number_is_limited_by_the_current_memory() -> None:
    world = cold_gpu(curve(LINEAR), memory_gib=13)
    world.packing = remembered(8, seconds=1.0)
    assert world.run(60) == 3


def test_trial_result_has_the_measured_number_and_seconds() -> None:
    world = cold_gpu(curve(PEAK_AT_THREE), noise=0.0)
    world.run(150)
    [result] = world.packing.results.values()
    assert (result.processes, result.is_limit) == (3, True)
    assert result.seconds == pytest.approx(60 * 3 / 108)
