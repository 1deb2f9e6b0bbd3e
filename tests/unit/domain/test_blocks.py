from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.domain.queue.blocks import Block, FailoverPolicy, is_blocked, record_failure

NOW = datetime(2026, 1, 1, tzinfo=UTC)
COOLDOWN = timedelta(seconds=60)


def fail_often(times: int, policy: FailoverPolicy, *, every: timedelta = timedelta(0)) -> Block:
    block: Block | None = None
    for number in range(times):
        block = record_failure(block, policy=policy, now=NOW + number * every)
    assert block is not None
    return block


def test_first_failure_blocks_for_the_cooldown() -> None:
    block = record_failure(None, policy=FailoverPolicy(), now=NOW)
    assert block == Block(failure_count=1, blocked_until=NOW + COOLDOWN)


@pytest.mark.parametrize(
    ("after", "blocked"),
    [(0, True), (5, True), (30, True), (59.999999, True), (60, False), (61, False)],
)
def test_block_ends_at_its_exact_end(after: float, blocked: bool) -> None:
    block = record_failure(None, policy=FailoverPolicy(), now=NOW)
    assert is_blocked(block.blocked_until, now=NOW + timedelta(seconds=after)) is blocked


def test_pair_without_a_block_is_free() -> None:
    assert not is_blocked(None, now=NOW)


def test_further_failure_restarts_the_cooldown() -> None:
    block = fail_often(2, FailoverPolicy(), every=timedelta(seconds=59))
    assert block == Block(failure_count=2, blocked_until=NOW + timedelta(seconds=119))


@given(limit=st.integers(1, 20), failures=st.integers(1, 40))
def test_pair_is_blocked_from_its_nth_failure_on(limit: int, failures: int) -> None:
    block = fail_often(failures, FailoverPolicy(max_failures_before_block=limit))
    assert block.failure_count == failures
    assert is_blocked(block.blocked_until, now=NOW) is (failures >= limit)


def test_no_worker_is_blocked_without_a_cooldown() -> None:
    block = fail_often(3, FailoverPolicy(cooldown=timedelta(0)))
    assert not is_blocked(block.blocked_until, now=NOW)
