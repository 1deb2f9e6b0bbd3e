from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from comfyrelay.comfyui.pool import FailoverStrategy, Failure, FailureVerdict, SmartFailover, WorkflowPool
from comfyrelay.comfyui.pool.failover import steady_clock
from comfyrelay.errors import InvalidInput, OutOfMemory
from tests.support.pool import NOW

ERROR = OutOfMemory()


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def failover(clock: Clock) -> FailoverStrategy:
    return SmartFailover(clock=clock)


def test_block_ends_after_its_cooldown(failover: FailoverStrategy, clock: Clock) -> None:
    assert failover.record_failure("client-1", "abc", ERROR) == NOW + timedelta(seconds=60)
    for seconds in (0, 5, 30, 59.999999):
        clock.seconds = seconds
        assert failover.should_skip("client-1", "abc")
        assert failover.release() == []
    assert failover.seconds_to_release() == pytest.approx(0.000001)
    clock.seconds = 60
    assert not failover.should_skip("client-1", "abc")
    assert failover.blocked_hashes("client-1") == frozenset()
    assert failover.release() == [("client-1", "abc")]
    assert failover.release() == []
    assert failover.seconds_to_release() is None


def test_only_the_pair_is_blocked(failover: FailoverStrategy) -> None:
    failover.record_failure("client-1", "abc", ERROR)
    assert not failover.should_skip("client-1", "other")
    assert not failover.should_skip("client-2", "abc")
    assert failover.blocked_hashes("client-1") == {"abc"}
    assert failover.blocked_hashes("client-2") == frozenset()


def test_success_ends_the_block(failover: FailoverStrategy) -> None:
    failover.record_failure("client-1", "abc", ERROR)
    assert failover.record_success("client-1", "abc")
    assert not failover.should_skip("client-1", "abc")
    assert failover.release() == []
    assert failover.seconds_to_release() is None
    assert not failover.record_success("client-1", "abc")


def test_further_failure_restarts_the_cooldown(failover: FailoverStrategy, clock: Clock) -> None:
    failover.record_failure("client-1", "abc", ERROR)
    clock.seconds = 40
    failover.record_failure("client-1", "abc", ERROR)
    clock.seconds = 60
    assert failover.should_skip("client-1", "abc")
    assert failover.release() == []
    assert failover.seconds_to_release() == 40
    clock.seconds = 100
    assert failover.release() == [("client-1", "abc")]


def test_next_block_to_end_is_announced_first(failover: FailoverStrategy, clock: Clock) -> None:
    failover.record_failure("client-1", "abc", ERROR)
    clock.seconds = 10
    failover.record_failure("client-2", "abc", ERROR)
    assert failover.seconds_to_release() == 50
    clock.seconds = 65
    assert failover.release() == [("client-1", "abc")]
    assert failover.seconds_to_release() == 5


def test_failures_are_counted_up_to_the_limit_and_from_one_after_a_success(clock: Clock) -> None:
    failover = SmartFailover(max_failures_before_block=3, clock=clock)
    assert failover.record_failure("client-1", "abc", ERROR) is None
    assert failover.record_failure("client-1", "abc", ERROR) is None
    assert not failover.record_success("client-1", "abc")
    assert failover.record_failure("client-1", "abc", ERROR) is None
    assert failover.record_failure("client-1", "abc", ERROR) is None
    assert not failover.should_skip("client-1", "abc")
    assert failover.record_failure("client-1", "abc", ERROR) is not None
    assert failover.should_skip("client-1", "abc")


def test_failure_count_restarts_after_a_block(clock: Clock) -> None:
    failover = SmartFailover(max_failures_before_block=2, cooldown_seconds=10, clock=clock)
    failover.record_failure("client-1", "abc", ERROR)
    failover.record_failure("client-1", "abc", ERROR)
    clock.seconds = 10
    assert failover.record_failure("client-1", "abc", ERROR) is None


def test_no_server_is_blocked_without_a_cooldown(clock: Clock) -> None:
    failover = SmartFailover(cooldown_seconds=0, clock=clock)
    assert failover.record_failure("client-1", "abc", ERROR) is None
    assert not failover.should_skip("client-1", "abc")
    assert failover.release() == []


def test_steady_clock_advances() -> None:
    clock = steady_clock()
    assert abs(clock() - datetime.now(UTC)) < timedelta(seconds=1)
    assert clock() <= clock()


class OnlyJudges:
    def judge(self, failure: Failure) -> FailureVerdict:
        return FailureVerdict.AGAIN

    def should_skip(self, client_id: str, workflow_hash: str) -> bool:
        return False


class Inherits(FailoverStrategy):
    """A strategy that inherits the protocol's methods, which do nothing."""

    def judge(self, failure: Failure) -> FailureVerdict:
        return FailureVerdict.AGAIN

    def should_skip(self, client_id: str, workflow_hash: str) -> bool:
        return False


@pytest.mark.parametrize("strategy", [OnlyJudges, Inherits])
async def test_incomplete_strategy_is_refused_by_the_pool(strategy: type[Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        WorkflowPool(["http://127.0.0.1:1"], failover=strategy())
    missing = "blocked_hashes, blocks, lift, record_failure, record_success, release, restore, seconds_to_release"
    assert caught.value.detail == (
        f"failover: {strategy.__name__} lacks {missing}. Implement all methods of FailoverStrategy, "
        "or subclass SmartFailover."
    )


async def test_class_in_place_of_a_strategy_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"pass an instance, such as SmartFailover\(\)"):
        WorkflowPool(["http://127.0.0.1:1"], failover=cast(Any, SmartFailover))


async def test_incomplete_queue_is_refused_by_the_pool() -> None:
    with pytest.raises(InvalidInput, match=r"queue: object lacks __len__, begin, .*subclass MemoryQueue"):
        WorkflowPool(["http://127.0.0.1:1"], queue=cast(Any, object()))
