"""Delays between retries back off."""

import pytest

from comfyrelay.retry import Backoff, Retries


def test_delays_double_up_to_the_maximum() -> None:
    exact = Backoff(first_seconds=1, max_seconds=5, jitter=0)
    assert [exact.delay(failures) for failures in range(6)] == [0, 1, 2, 4, 5, 5]
    assert exact.delay(10_000) == 5


@pytest.mark.parametrize("failures", [1, 3, 50])
def test_jitter_spreads_delays_around_the_exact_delay(failures: int) -> None:
    spread = Backoff(first_seconds=1, max_seconds=5)
    exact = Backoff(first_seconds=1, max_seconds=5, jitter=0).delay(failures)
    delays = [spread.delay(failures) for _ in range(200)]
    assert all(0.8 * exact <= delay <= 1.2 * exact for delay in delays)
    assert len(set(delays)) > 100


def test_retry_after_is_the_minimum() -> None:
    backoff = Backoff(first_seconds=1, max_seconds=5)
    assert backoff.delay(1, at_least=30) == 30
    assert backoff.delay(3, at_least=0.1) >= 3.2


async def test_retries_count_failures_until_reset() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    retries = Retries(Backoff(first_seconds=1, max_seconds=8, jitter=0), sleep=sleep)
    for _ in range(3):
        await retries.wait()
    retries.reset()
    await retries.wait(at_least=2)
    assert (slept, retries.failures) == ([1, 2, 4, 2], 1)
