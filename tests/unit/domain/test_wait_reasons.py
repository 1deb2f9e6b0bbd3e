"""The wait reason that is reported if several apply, and its text."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comfyrelay.domain.queue.wait_reasons import CandidateWorker, Reason, StartingMachines, Waiting, explain_wait

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
FREE = CandidateWorker(slots=1, leases=0)
BUSY = CandidateWorker(slots=1, leases=1)
BLOCKED = CandidateWorker(slots=1, leases=0, blocked_until=NOW + timedelta(seconds=60))


def explain(*serving: CandidateWorker, **changed: Any) -> Waiting:
    facts: dict[str, Any] = {
        "is_paused": False,
        "available_at": NOW,
        "shard_is_down": False,
        "ahead": 0,
        "expected": None,
        "now": NOW,
    }
    return explain_wait(workers=list(serving), **facts | changed)


def test_longest_lasting_reason_is_reported() -> None:
    later = NOW + timedelta(seconds=1)
    assert explain(is_paused=True, shard_is_down=True, available_at=later).reason is Reason.PAUSED
    assert explain(shard_is_down=True, available_at=later).reason is Reason.SHARD_DOWN
    assert explain(FREE, comfyui_unreachable=["http://a"], available_at=later).reason is Reason.NO_COMFYUI
    assert explain(available_at=later).reason is Reason.NOT_BEFORE
    assert explain().reason is Reason.NO_WORKER
    assert explain(BLOCKED).reason is Reason.BLOCKED
    assert explain(BLOCKED, BUSY).reason is Reason.BUSY
    assert explain(BLOCKED, BUSY, FREE).reason is Reason.STARTING


def test_job_waits_for_a_starting_worker() -> None:
    """A restarted desk answers before its worker has registered."""
    waiting = explain(is_worker_starting=True)
    assert (waiting.reason, waiting.position) == (Reason.MACHINE_STARTING, 1)
    assert waiting.text.startswith("The worker is starting.")
    # A longer-lasting reason is still reported, and a registered worker does not count as starting.
    assert explain(is_worker_starting=True, comfyui_unreachable=["It is off."]).reason is Reason.NO_COMFYUI
    assert explain(FREE, is_worker_starting=True).reason is Reason.STARTING


def test_unreachable_comfyui_is_named() -> None:
    assert explain(FREE, comfyui_unreachable=["It is off.", "So is this."]).text.startswith("It is off. So is this. ")


def test_free_worker_with_jobs_ahead_is_busy() -> None:
    assert explain(FREE, ahead=1).reason is Reason.BUSY


def test_earliest_block_end_is_reported() -> None:
    sooner = CandidateWorker(slots=1, leases=0, blocked_until=NOW + timedelta(seconds=5))
    assert explain(BLOCKED, sooner).until == sooner.blocked_until


def test_blocked_workers_do_not_shorten_the_wait() -> None:
    waiting = explain(BUSY, BLOCKED, ahead=3, expected=40)
    assert (waiting.workers, waiting.expected_start_seconds) == (1, 40)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 s"), (89, "89 s"), (90, "2 min"), (3600, "60 min"), (5400, "1.5 h")]
)
def test_wait_is_shown_in_readable_units(seconds: float, words: str) -> None:
    assert f"in {words}." in explain(available_at=NOW + timedelta(seconds=seconds)).text


class TestStartingMachines:
    def test_starting_machine_is_the_reason_without_workers(self) -> None:
        waiting = explain(machines=StartingMachines(boot_seconds_left=[170.0]))
        assert (waiting.reason, waiting.expected_start_seconds) == (Reason.MACHINE_STARTING, 170.0)
        assert waiting.text == "A machine is starting and should be ready in about 3 minutes."

    @pytest.mark.parametrize(
        ("seconds", "words"), [(0.4, "about 1 second"), (80, "about 80 seconds"), (91, "about 2 minutes")]
    )
    def test_boot_time_is_shown_in_readable_units(self, seconds: float, words: str) -> None:
        assert (
            explain(machines=StartingMachines(boot_seconds_left=[seconds])).text
            == f"A machine is starting and should be ready in {words}."
        )

    def test_first_of_several_starting_machines_is_reported(self) -> None:
        starting = StartingMachines(boot_seconds_left=[300.0, 60.0])
        assert (
            explain(machines=starting).text == "2 machines are starting. The first should be ready in about 60 seconds."
        )
        assert [explain(machines=starting, ahead=ahead).expected_start_seconds for ahead in range(3)] == [
            60.0,
            300.0,
            None,
        ]

    def test_busy_worker_or_starting_machine_counts_whichever_is_sooner(self) -> None:
        waiting = explain(BUSY, expected=500, machines=StartingMachines(boot_seconds_left=[60.0]))
        assert (waiting.reason, waiting.expected_start_seconds) == (Reason.BUSY, 60.0)
        assert waiting.text.endswith(" A machine is starting and should be ready in about 60 seconds.")
        assert (
            explain(BUSY, expected=5, machines=StartingMachines(boot_seconds_left=[60.0])).expected_start_seconds == 5
        )

    def test_next_job_for_a_free_worker_has_no_machine_reason(self) -> None:
        assert explain(FREE, machines=StartingMachines(boot_seconds_left=[60.0], limit="x")) == explain(FREE)

    def test_limit_on_launches_is_named(self) -> None:
        for serving, reason in (((), Reason.NO_WORKER), ((BUSY,), Reason.BUSY)):
            waiting = explain(*serving, machines=StartingMachines(limit="the limit is 10 machines"))
            assert waiting.reason is reason
            assert waiting.text.endswith(" No machine can be launched: the limit is 10 machines.")
