"""The estimated time for the rest of a batch."""

from datetime import UTC, datetime, timedelta

import pytest

from comfyrelay.domain.queue.wait_reasons import CompletedItem, expected_seconds

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def done(*ends: float) -> list[CompletedItem]:
    return [CompletedItem(at(end - 100), at(end)) for end in ends]


def test_estimate_uses_the_time_between_completions() -> None:
    # Each item ran for 100 s, but two at a time.
    assert expected_seconds(done(100, 150, 200), queued=4, processing=0, now=at(200)) == 200
    assert expected_seconds(done(200, 100, 150), queued=4, processing=0, now=at(200)) == 200


def test_pause_between_two_items_does_not_count() -> None:
    assert expected_seconds(done(10, 20, 5000, 5010), queued=1, processing=0, now=at(5010)) == 10


@pytest.mark.parametrize("ends", [(100, 20_100), (100, 20_100, 20_200), (100, 200, 40_000, 80_000)])
def test_long_outages_do_not_count(ends: tuple[float, ...]) -> None:
    assert expected_seconds(done(*ends), queued=3, processing=0, now=at(ends[-1])) == 300
    # Nor does an outage that lasts.
    assert expected_seconds(done(*ends), queued=3, processing=0, now=at(ends[-1] + 20_000)) == 300


def test_single_completed_item_sets_the_estimate() -> None:
    assert expected_seconds(done(100), queued=3, processing=0, now=at(100)) == 300


@pytest.mark.parametrize(("later", "expected"), [(0, 40), (4, 36), (10, 30), (500, 30)])
def test_running_item_counts_down_to_the_time_of_the_queued_ones(later: float, expected: float) -> None:
    assert expected_seconds(done(10, 20), queued=3, processing=1, now=at(20 + later)) == expected


def test_clock_set_back_does_not_extend_the_estimate() -> None:
    assert expected_seconds(done(10, 20), queued=0, processing=1, now=at(0)) == 10


@pytest.mark.parametrize(
    ("found", "queued"),
    [(done(10, 20), 0), ([], 3), ([CompletedItem(None, START)], 3)],
    ids=["over", "none", "never started"],
)
def test_no_estimate_exists_without_a_completed_item(found: list[CompletedItem], queued: int) -> None:
    assert expected_seconds(found, queued=queued, processing=0, now=START) is None
